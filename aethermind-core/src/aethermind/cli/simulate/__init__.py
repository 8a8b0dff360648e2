"""`aethermind simulate`: what scheduling policies would have made of a day's requests."""

from __future__ import annotations

from aethermind.cli.simulate.command import EXAMPLES, simulate

__all__ = ["EXAMPLES", "simulate"]
