"""The states of cached content and the one table of legal transitions between them.

    FREE ──open──▶ ACTIVE ◀──park/resume──▶ STANDBY
                     │  ▲                      │
          swap out/in│  │reuse       idle, kept│for reuse
                     ▼  │                      ▼
                   SWAPPED ◀──────────────── WARM ──reclaim──▶ FREE

Protected is an overlay, not a state: what a pinned sequence holds stays in device memory with its owner. A sequence
is Active, Standby or Swapped; a block is what its sequences are, Warm if only a prefix cache holds it, else Free.
"""

from __future__ import annotations

from enum import Enum
from types import MappingProxyType

__all__ = ["CacheState", "LEGAL_TRANSITIONS", "is_legal"]


class CacheState(Enum):
    """Where content is, and who may want it."""

    FREE = "free"
    """Nothing is stored."""
    ACTIVE = "active"
    """A running sequence reads and writes it."""
    STANDBY = "standby"
    """Its owner is idle (a session between two turns); it may be read and shared, not written."""
    WARM = "warm"
    """Nobody owns it; a prefix cache keeps it for reuse and gives it up when room is needed."""
    SWAPPED = "swapped"
    """It is in a store outside device memory."""


LEGAL_TRANSITIONS = MappingProxyType(
    {
        CacheState.FREE: frozenset({CacheState.ACTIVE}),
        CacheState.ACTIVE: frozenset({CacheState.STANDBY, CacheState.WARM, CacheState.SWAPPED, CacheState.FREE}),
        CacheState.STANDBY: frozenset({CacheState.ACTIVE, CacheState.WARM, CacheState.SWAPPED, CacheState.FREE}),
        CacheState.WARM: frozenset({CacheState.ACTIVE, CacheState.SWAPPED, CacheState.FREE}),
        CacheState.SWAPPED: frozenset({CacheState.ACTIVE, CacheState.FREE}),
    }
)
"""For each state, the states that content may go to next."""

_HELD_WHEN_PROTECTED = frozenset({CacheState.ACTIVE, CacheState.STANDBY})


def is_legal(state: CacheState, target: CacheState, *, is_protected: bool = False) -> bool:
    """Whether content in `state` may go to `target`."""
    return target in LEGAL_TRANSITIONS[state] and (not is_protected or target in _HELD_WHEN_PROTECTED)
