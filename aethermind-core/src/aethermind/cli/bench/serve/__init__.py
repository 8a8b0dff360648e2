"""`aethermind bench serve`: a server under load, as its clients see it."""

from __future__ import annotations

from aethermind.cli.bench.serve.command import EXAMPLES, serve

__all__ = ["EXAMPLES", "serve"]
