"""`aethermind plugins`: what is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from aethermind.cli import console, options

if TYPE_CHECKING:
    from aethermind.plugins.discovery import PluginRecord
    from aethermind.runtime import Runtime

__all__ = ["app", "boot", "plugin_records", "plugin_rows"]

EXAMPLES = console.examples("aethermind plugins list", "aethermind plugins list --json")

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="List installed plugins.", epilog=EXAMPLES)


@app.callback()
def _root() -> None:
    """List installed plugins."""


@app.command("list", epilog=EXAMPLES)
def list_plugins(as_json: options.AsJson = False) -> None:
    """Show each plugin with its package, and why it failed if it did."""
    records = boot().plugins
    if as_json:
        console.print_json({"plugins": plugin_records(records)})
    elif records:
        print(console.columns(plugin_rows(records), indent=""))
    else:
        print("No plugins are installed. Install aethermind[cpu,qwen2].")


def boot() -> Runtime:
    """Everything installed, loaded as far as it goes, commands included; failures are in `plugins`."""
    from aethermind.cli.app import app as root
    from aethermind.cli.plugin_commands import collect_commands
    from aethermind.runtime import Runtime

    runtime = Runtime.boot()
    collect_commands(runtime.plugins, runtime.manager, typer.main.get_group(root).commands)
    return runtime


def plugin_records(records: list[PluginRecord]) -> list[dict[str, Any]]:
    """Plugins for `--json`."""
    names = ("name", "distribution", "version", "contract", "status", "error", "load_ms")
    return [{name: getattr(record, name) for name in names} for record in records]


def plugin_rows(records: list[PluginRecord]) -> list[tuple[str, ...]]:
    """Plugins as rows of text."""
    rows: list[tuple[str, ...]] = []
    for record in records:
        package = f"{record.distribution} {record.version}"
        rest = (f"in {record.load_ms:.0f} ms",) if record.error is None else (record.error,)
        rows.append((record.name, package, f"contract {record.contract}", record.status, *rest))
    return rows
