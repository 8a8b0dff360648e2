"""What a cache call came to. Lack of room is an ordinary answer, never an exception or another's loss."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from aethermind.cache.shift import BlockShift

__all__ = ["OpenResult", "Outcome", "ReserveResult", "SaveResult"]


class Outcome(Enum):
    """How a call on the cache ended; anything but `OK` left the cache as it was."""

    OK = "ok"
    NO_ROOM = "no room"
    """Too few free blocks now; others finishing can change that."""
    TOO_LONG = "too long"
    """The sequence would exceed `max_model_len`; nothing can change that."""
    UNKNOWN_SEQUENCE = "unknown sequence"
    ALREADY_OPEN = "already open"
    ILLEGAL_STATE = "illegal state"
    """The sequence's state has no such transition, see `states`."""
    PARTIAL_BLOCK = "part of a block"
    """The range begins or ends inside a block of several tokens, and more of the sequence follows."""
    OUT_OF_ORDER = "out of order"
    """The tokens would no longer stand behind those before them, or at positions of 0 to 2**63 - 1."""


@dataclass(frozen=True, slots=True)
class OpenResult:
    """How `KVCache.open` ended, and how many leading tokens have their KV in the cache already."""

    outcome: Outcome
    num_cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ReserveResult:
    """How `KVCache.reserve` ended.

    `copies` are `(source, destination)` blocks whose content must be copied, in order, and `shifts` the blocks
    whose keys must be turned after that, both before the step writes.
    """

    outcome: Outcome
    copies: tuple[tuple[int, int], ...] = ()
    shifts: tuple[BlockShift, ...] = ()


@dataclass(frozen=True, slots=True)
class SaveResult:
    """How `KVCache.save` ended, and the sequence as bytes; none unless it is `OK`."""

    outcome: Outcome
    data: bytes = b""
