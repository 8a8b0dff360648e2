"""Conversations whose keys and values are given up last, so that their next turn finds them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from aethermind.cache.hashed_prefix_cache import HashedPrefixCache, RememberedBlock

__all__ = ["Sessions"]


class _Session(NamedTuple):
    used_s: float
    blocks: list[RememberedBlock]


class Sessions:
    """What each session's last completed turn left in the prefix cache is pinned there, within a budget and a time.

    Pins are a promise among equals, not a reservation: blocks of running requests come first, and where nothing else
    is left to give up, pinned blocks are. Not thread-safe.
    """

    def __init__(
        self,
        cache: HashedPrefixCache | None,
        max_sessions: int,
        max_blocks: int,
        ttl_s: float,
        clock: Callable[[], float],
    ) -> None:
        """Pin in `cache`, if there is one. `ttl_s` seconds after its last turn a session's time is up."""
        self._cache = cache
        self._max_sessions = max_sessions
        self._max_blocks = max_blocks
        self._ttl_s = ttl_s
        self._clock = clock
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        self.num_blocks = 0

    def __len__(self) -> int:
        """Those whose time is not up. Other threads may ask."""
        oldest_s = self._clock() - self._ttl_s
        return sum(one.used_s > oldest_s for one in list(self._sessions.values()))

    def keep(self, name: str, token_ids: Sequence[int], extra_key: bytes) -> None:
        """Pin a turn in place of the session's last; those used least recently make room."""
        if self._cache is None:
            return
        blocks = self._cache.pin(token_ids, extra_key)
        if name in self._sessions:
            self._forget(name)
        self._sessions[name] = _Session(self._clock(), blocks)
        self.num_blocks += len(blocks)
        self.expire()
        while len(self._sessions) > self._max_sessions or self.num_blocks > self._max_blocks:
            self._forget(next(iter(self._sessions)))

    def expire(self) -> None:
        """Forget the sessions whose time is up."""
        oldest_s = self._clock() - self._ttl_s
        while self._sessions:
            name, session = next(iter(self._sessions.items()))
            if session.used_s > oldest_s:
                return
            self._forget(name)

    def _forget(self, name: str) -> None:
        assert self._cache is not None, "sessions are kept in a cache"
        session = self._sessions.pop(name)
        self.num_blocks -= len(session.blocks)
        self._cache.unpin(session.blocks)
