"""`aethermind simulate`: replay a trace of requests under several scheduling policies."""

from __future__ import annotations

from aethermind.cli.simulate.command import EXAMPLES, simulate

__all__ = ["EXAMPLES", "simulate"]
