"""`aethermind plugin`: begin a package of one's own."""

from __future__ import annotations

import typer

from aethermind.cli.plugin_new import new
from aethermind.cli.summaries import SummaryGroup

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
