"""`aethermind plugin`: write packages that extend AetherMind."""

from __future__ import annotations

import typer

from aethermind.cli.commands import SummaryGroup
from aethermind.cli.plugin_new import new

__all__ = ["app"]

app = typer.Typer(
    cls=SummaryGroup,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Write packages that extend AetherMind.",
    epilog=new.EXAMPLES,
)


@app.callback()
def _root() -> None:
    """Write packages that extend AetherMind."""


app.command("new", epilog=new.EXAMPLES)(new.new)
