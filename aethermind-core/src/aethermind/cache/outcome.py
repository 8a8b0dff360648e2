"""Results of calls on the KV cache. A lack of free blocks is a result like any other, not an exception."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from aethermind.cache.positions import BlockShift

__all__ = ["CacheOutcome", "OpenResult", "ReserveResult", "SaveResult"]


class CacheOutcome(Enum):
    """How a call on the cache ended. Anything but `OK` means that all sequences keep their tokens and reservations."""

    OK = "ok"
    NO_FREE_BLOCKS = "no free blocks"
    """Too few blocks or state slots are free now, on the device or in the swap store. More are free when others end."""
    TOO_LONG = "too long"
    """The sequence would exceed `max_model_len`."""
    UNKNOWN_SEQUENCE = "unknown sequence"
    ALREADY_OPEN = "already open"
    ILLEGAL_STATE = "illegal state"
    """The sequence's state has no such transition, see `sequence.LEGAL_TRANSITIONS`."""
    PARTIAL_BLOCK = "part of a block"
    """The range begins or ends inside a block of several tokens. Only what is removed may end in the sequence's last
    block, however full that is."""
    OUT_OF_ORDER = "out of order"
    """Positions would not ascend any more, or not be from 0 to 2**63 - 1."""
    BEHIND_WINDOW = "behind a sliding window whose blocks are freed"
    """Keys that the next token of the truncated sequence would see were freed when the sequence was longer: truncate it
    to 0 and compute it again, see `KVCache.truncate_or_reset`."""
    WINDOWS_FREED = "sliding windows free blocks of the sequence"
    """Tokens before the last cannot be dropped or moved in a model whose sliding windows free blocks: a token's index
    says in which block it is and what its window sees."""
    RECURRENT_STATE = "the sequence has a recurrent state"
    """A recurrent state stands for all tokens of the sequence, so that tokens cannot be dropped: restart from a
    checkpoint or a snapshot of the state, see `KVCache.truncate_or_reset`."""
    LATENT_KEYS = "the model caches latent vectors"
    """Positions cannot be shifted with multi-head latent attention (MLA): only a part of a cached row is rotated."""


@dataclass(frozen=True, slots=True)
class OpenResult:
    """The result of `KVCache.open`, `open_to_load` or `load`, and how many leading tokens are cached already."""

    outcome: CacheOutcome
    num_cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ReserveResult:
    """The result of `KVCache.reserve`.

    `copies` are `(source, destination)` blocks to copy, in order; `shifts` are blocks whose keys are to be rotated
    after that. Both must be done before the step writes.
    """

    outcome: CacheOutcome
    copies: tuple[tuple[int, int], ...] = ()
    shifts: tuple[BlockShift, ...] = ()


@dataclass(frozen=True, slots=True)
class SaveResult:
    """The result of `KVCache.save`, and the serialised sequence; no bytes unless the outcome is `OK`."""

    outcome: CacheOutcome
    data: bytes = b""
