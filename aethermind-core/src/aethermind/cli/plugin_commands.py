"""Commands that plugins add through `register_commands`; one that fails is recorded and takes no other with it."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

import typer

from aethermind.log import get_logger
from aethermind.plugins.discovery import PluginRecord, discover, load

__all__ = ["collect_commands", "load_commands"]

logger = get_logger(__name__)


def load_commands(taken: Container[str]) -> dict[str, Any]:
    """Load the installed plugins and return their commands by name."""
    records = discover()
    return collect_commands(records, load(records), taken)


def collect_commands(records: Sequence[PluginRecord], manager: Any, taken: Container[str]) -> dict[str, Any]:
    """Ask each loaded plugin for its commands; failures and names already taken are written into its record."""
    commands: dict[str, Any] = {}
    loaded = [record for record in records if record.error is None]
    for record in loaded:
        others = [manager.get_plugin(other.name) for other in loaded if other is not record]
        try:
            found = _commands_of(manager.subset_hook_caller("register_commands", remove_plugins=others))
        except BaseException as error:  # as at import, a plugin may raise anything
            if isinstance(error, KeyboardInterrupt):
                raise
            record.error = f"register_commands raised {type(error).__name__}: {error}"
            logger.info("plugin %s failed: %s", record.title, record.error)
            continue
        clashes = [name for name in found if name in taken or name in commands]
        if clashes:
            record.error = f"its command {clashes[0]!r} exists already; rename it."
        commands.update((name, command) for name, command in found.items() if name not in clashes)
    return commands


def _commands_of(hook: Any) -> dict[str, Any]:
    app = typer.Typer(rich_markup_mode=None)
    hook(app=app)
    if not app.registered_commands and not app.registered_groups:
        return {}
    return dict(typer.main.get_group(app).commands)
