"""Commands that plugins add through `register_commands`; one that fails is recorded and takes no other with it."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, Any

import typer

from aethermind.plugins.discovery import PluginRecord, call_each

if TYPE_CHECKING:
    import pluggy

__all__ = ["collect_commands", "load_commands"]


def load_commands(taken: Container[str]) -> dict[str, Any]:
    """Load the installed plugins and return their commands by name."""
    from aethermind.plugins.trial import load_installed

    records, manager = load_installed()
    return collect_commands(records, manager, taken)


def collect_commands(
    records: Sequence[PluginRecord], manager: pluggy.PluginManager, taken: Container[str]
) -> dict[str, Any]:
    """Ask each loaded plugin for its commands; failures and names already taken are written into its record."""
    commands: dict[str, Any] = {}
    for record in records:
        app = typer.Typer(rich_markup_mode=None)
        has_answered = list(call_each(manager, [record], "register_commands", app=app))
        if not has_answered or not (app.registered_commands or app.registered_groups):
            continue
        found = typer.main.get_group(app).commands
        clashes = [name for name in found if name in taken or name in commands]
        if clashes:
            record.fail(f"its command {clashes[0]!r} exists already; rename it.")
        added = {name: command for name, command in found.items() if name not in clashes}
        record.registered["commands"] = sorted(added)
        commands.update(added)
    return commands
