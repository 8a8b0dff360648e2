"""`aethermind plugins`: the installed plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from aethermind import env
from aethermind.cli import console, options
from aethermind.cli.commands import SummaryGroup
from aethermind.cli.plugin_new import EXAMPLES as NEW_EXAMPLES
from aethermind.cli.plugin_new import new
from aethermind.first_party import pip_install_command
from aethermind.plugins.compatibility import negotiate

if TYPE_CHECKING:
    from aethermind.plugins.discovery import PluginRecord
    from aethermind.runtime import Runtime

__all__ = ["app", "boot", "disabling_advice", "plugin_records", "plugin_rows"]

_FIELDS = (
    "name",
    "distribution",
    "version",
    "is_first_party",
    "api_version",
    "api_versions",
    "status",
    "error",
    "advice",
    "load_ms",
    "register_ms",
    "registered",
    "deprecated",
    "hints",
    "replaced",
)

EXAMPLES = console.examples("aethermind plugins list", "aethermind plugins list --json")

app = typer.Typer(
    cls=SummaryGroup,
    rich_markup_mode=None,
    invoke_without_command=True,
    help="List installed plugins.",
    epilog=EXAMPLES,
)


@app.callback()
def _root(ctx: typer.Context) -> None:
    """List installed plugins."""
    if ctx.invoked_subcommand is None:
        list_plugins()


app.command("new", hidden=True, epilog=NEW_EXAMPLES.replace("plugin new", "plugins new"))(new)


@app.command("list", epilog=EXAMPLES)
def list_plugins(as_json: options.AsJson = False) -> None:
    """Show each plugin with its package, its load time and what it registered, or why it failed."""
    runtime = boot()
    records = runtime.plugins
    if as_json:
        console.print_json({"plugins": plugin_records(records), "built_in": runtime.built_in})
    elif records:
        print(console.columns(plugin_rows(records), indent=""))
        for line in disabling_advice(records):
            print(line)
    elif (allowed := env.plugin_allow_list()) is not None:
        print(f"No plugins are installed that AETHERMIND_PLUGINS lets load: {', '.join(sorted(allowed)) or 'none'}.")
    else:
        print(f"No plugins are installed. Run `{pip_install_command('aethermind')}`.")


def boot() -> Runtime:
    """Load all installed plugins, with their operators, commands and third-party kernels.

    Failures and hints are in the `plugins` of the result. Plugins whose sandboxed load failed before are loaded again.
    """
    from aethermind.cli.app import app as root
    from aethermind.cli.commands import collect_commands
    from aethermind.plugins.sandbox_load import forget_failures
    from aethermind.runtime import Runtime
    from aethermind.runtime.kernel_hints import add_kernel_hints

    forget_failures()
    runtime = Runtime.boot()
    _ = runtime.operators  # registers them
    collect_commands(runtime.plugins, runtime.manager, typer.main.get_group(root).commands)
    add_kernel_hints(runtime.plugins)
    return runtime


def plugin_records(records: list[PluginRecord]) -> list[dict[str, Any]]:
    """Return the records of plugins, for `--json`."""
    return [
        {name: getattr(record, name) for name in _FIELDS}
        | {
            "negotiation": negotiate(record.api_versions, record.distribution).summary,
            # Deprecated names of is_first_party, api_version and api_versions, kept while plugin API 1 is supported.
            "is_ours": record.is_first_party,
            "contract": record.api_version,
            "contracts": record.api_versions,
        }
        for record in records
    ]


def plugin_rows(records: list[PluginRecord]) -> list[tuple[str, ...]]:
    """Return plugins as rows of text, each with its load time and what it registered, or with its error."""
    rows: list[tuple[str, ...]] = []
    for record in records:
        package = f"{record.distribution} {record.version}"
        if record.error is None:
            registered = (f"{kind.replace('_', ' ')} {', '.join(names)}" for kind, names in record.registered.items())
            details = f"in {record.load_ms + record.register_ms:.0f} ms: {'; '.join(registered) or 'nothing'}"
            details += "".join(f"; deprecated: {note}" for note in record.deprecated)
            details += "".join(f"; hint: {hint}" for hint in record.hints)
            details += "".join(f"; {sentence}" for sentence in record.replaced)
        else:
            details = f"{record.error} {record.advice}".rstrip()
        rows.append((record.name, package, f"plugin API {record.api_version}", record.status, details))
    return rows


def disabling_advice(records: list[PluginRecord]) -> list[str]:
    """Return a line that says how to disable the plugins that failed; none if all work."""
    working = [record.name for record in records if record.error is None]
    if len(working) == len(records):
        return []
    return [f"To do without what failed until it is repaired: export AETHERMIND_PLUGINS={','.join(working)}"]
