"""`aethermind bench`: how fast, and how far from what the hardware allows."""

from __future__ import annotations

import typer

from aethermind.cli.bench import latency, limits
from aethermind.cli.configured import ConfiguredCommand

__all__ = ["app"]

app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Measure speed, and what limits it.",
    epilog=latency.EXAMPLES,
)
app.command("latency", cls=ConfiguredCommand, epilog=latency.EXAMPLES)(latency.latency)
app.command("limits", cls=ConfiguredCommand, epilog=limits.EXAMPLES)(limits.limits)
