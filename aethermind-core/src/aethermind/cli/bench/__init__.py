"""`aethermind bench`: latency, hardware limits, quality of quantisation, and load tests of servers."""

from __future__ import annotations

import typer

from aethermind.cli.bench import latency, limits, prefill_stream, quality, serve
from aethermind.cli.commands import SummaryGroup
from aethermind.cli.configured import ConfiguredCommand

__all__ = ["app"]

app = typer.Typer(
    cls=SummaryGroup,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Measure speed, its limits, and what quantisation costs in quality.",
    epilog=latency.EXAMPLES,
)
app.command("latency", cls=ConfiguredCommand, epilog=latency.EXAMPLES)(latency.latency)
app.command("limits", cls=ConfiguredCommand, epilog=limits.EXAMPLES)(limits.limits)
app.command("prefill-stream", cls=ConfiguredCommand, epilog=prefill_stream.EXAMPLES)(prefill_stream.prefill_stream)
app.command("quality", cls=ConfiguredCommand, epilog=quality.EXAMPLES)(quality.quality)
app.command("serve", cls=ConfiguredCommand, epilog=serve.EXAMPLES)(serve.serve)
