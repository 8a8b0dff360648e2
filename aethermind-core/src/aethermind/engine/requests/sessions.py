"""Sessions: conversations whose blocks are pinned in the prefix cache for their next turn."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from aethermind.cache.prefix_cache import CachedBlock, HashedPrefixCache

__all__ = ["Sessions"]


class _Session(NamedTuple):
    used_s: float
    blocks: list[CachedBlock]


class Sessions:
    """Pins the blocks of each session's last completed turn, within a budget and a time to live. Not thread-safe.

    Pinned blocks are evicted last. They are not reserved: if no other block can be evicted for a running request, they
    are.
    """

    def __init__(
        self,
        cache: HashedPrefixCache | None,
        max_sessions: int,
        max_blocks: int,
        ttl_s: float,
        clock: Callable[[], float],
    ) -> None:
        """Pin in `cache`, if there is one. A session expires `ttl_s` seconds after its last turn."""
        self._cache = cache
        self._max_sessions = max_sessions
        self._max_blocks = max_blocks
        self._ttl_s = ttl_s
        self._clock = clock
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        self.num_blocks = 0

    def __len__(self) -> int:
        """The number of sessions that have not expired. Any thread may call this."""
        oldest_s = self._clock() - self._ttl_s
        return sum(session.used_s > oldest_s for session in list(self._sessions.values()))

    def pin(self, name: str, token_ids: Sequence[int], extra_key: bytes) -> None:
        """Pin a turn in place of the session's last one; the least recently used sessions are evicted."""
        if self._cache is None:
            return
        blocks = self._cache.pin(token_ids, extra_key)
        if name in self._sessions:
            self._unpin(name)
        self._sessions[name] = _Session(self._clock(), blocks)
        self.num_blocks += len(blocks)
        self.expire()
        while len(self._sessions) > self._max_sessions or self.num_blocks > self._max_blocks:
            self._unpin(next(iter(self._sessions)))

    def expire(self) -> None:
        """Unpin the sessions that have expired."""
        oldest_s = self._clock() - self._ttl_s
        while self._sessions:
            name, session = next(iter(self._sessions.items()))
            if session.used_s > oldest_s:
                return
            self._unpin(name)

    def _unpin(self, name: str) -> None:
        assert self._cache is not None, "sessions are pinned in a cache"
        session = self._sessions.pop(name)
        self.num_blocks -= len(session.blocks)
        self._cache.unpin(session.blocks)
