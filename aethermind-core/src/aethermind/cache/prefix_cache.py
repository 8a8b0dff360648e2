"""Reuse of what was computed before: the contract between the KV cache and whatever remembers prefixes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

__all__ = ["NoPrefixCache", "PrefixCache"]


class PrefixCache(Protocol):
    """Finds blocks by the tokens they hold, and keeps one reference of its own to each block it remembers.

    An `extra_key` says what else the content depends on (the images among the tokens, say): other key, other content.
    """

    @property
    def num_reclaimable(self) -> int:
        """Blocks that only the prefix cache references, so that `reclaim` can free them."""
        ...

    def match(self, token_ids: Sequence[int], extra_key: bytes = b"") -> Sequence[int]:
        """Return the full blocks that hold the longest known prefix of `token_ids`, in order, unacquired."""
        ...

    def publish(self, token_ids: Sequence[int], blocks: Sequence[int], extra_key: bytes = b"") -> None:
        """Learn that `blocks`, all full, hold `token_ids`; acquire the ones worth remembering."""
        ...

    def reclaim(self, num_blocks: int) -> None:
        """Free up to `num_blocks` blocks that nobody else references, the least valuable first."""
        ...


class NoPrefixCache:
    """Remembers nothing."""

    __slots__ = ()

    @property
    def num_reclaimable(self) -> int:
        """Always 0."""
        return 0

    def match(self, token_ids: Sequence[int], extra_key: bytes = b"") -> Sequence[int]:
        """Return no blocks."""
        return ()

    def publish(self, token_ids: Sequence[int], blocks: Sequence[int], extra_key: bytes = b"") -> None:
        """Forget at once."""

    def reclaim(self, num_blocks: int) -> None:
        """Free nothing."""
