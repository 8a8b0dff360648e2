"""`aethermind bench serve`: a load test of a server, measured by its client."""

from __future__ import annotations

from aethermind.cli.bench.serve.command import EXAMPLES, serve

__all__ = ["EXAMPLES", "serve"]
