"""The adapter of one request, as far as requests and the scheduler need to know it."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["AdapterChoice", "NO_ADAPTER"]


class AdapterChoice(NamedTuple):
    """An adapter's number for the operators, and what its keys and values depend on besides tokens."""

    number: int
    key: bytes


NO_ADAPTER = AdapterChoice(-1, b"")
