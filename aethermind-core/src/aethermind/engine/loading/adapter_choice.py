"""The LoRA adapter of one request, as requests and the scheduler see it."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["AdapterChoice", "NO_ADAPTER"]


class AdapterChoice(NamedTuple):
    """An adapter: its number for the operators, and the key that separates its KV blocks from other adapters'."""

    number: int
    key: bytes


NO_ADAPTER = AdapterChoice(-1, b"")
