"""Sequences and blocks that a policy reserves for its most urgent requests (see `SchedulingPolicy.reserved_share`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aethermind.cache.kv_cache import KVCache
from aethermind.engine.policies.base import SchedulingPolicy
from aethermind.engine.requests.request import Request

__all__ = ["ReservedShare"]


class ReservedShare:
    """Checks that requests leave the share that is reserved for others. A policy without a reserve costs nothing.

    Only admission is restricted: a request that runs may take blocks of the reserve as it grows. A request that would
    run beside none of its kind is always admitted, so a reserve blocks no queue.
    """

    __slots__ = ("_cache", "_share_of")

    def __init__(self, cache: KVCache, policy: SchedulingPolicy) -> None:
        self._cache = cache
        self._share_of: Callable[[Request], float] | None = getattr(policy, "reserved_share", None)

    def num_slots(self, request: Request, running: Sequence[Request], max_num_seqs: int) -> int:
        """How many more sequences for `request` may run beside `running`: 0 or less for none."""
        num_free, share = max_num_seqs - len(running), self._share(request)
        if share == 0.0:
            return num_free
        num_usable = max(max_num_seqs - int(share * max_num_seqs), 1)
        return min(num_free, num_usable - len(self._restricted(running)))

    def leaves_blocks(self, request: Request, running: Sequence[Request]) -> bool:
        """Whether the reserved blocks remain when `request` is admitted beside `running`; VIPs may hold them already.

        All tokens of the request count, also those that it may find in the prefix cache.
        """
        share = self._share(request)
        if share == 0.0 or not (others := self._restricted(running)):
            return True
        held = {block for other in others for block in self._cache.held_blocks(other.request_id)}
        num_blocks = self._cache.pool.num_blocks
        num_wanted = self._cache.spec.num_blocks_for(request.num_kv_tokens)
        return len(held) + num_wanted <= num_blocks - int(share * num_blocks)

    def _share(self, request: Request) -> float:
        return 0.0 if self._share_of is None else self._share_of(request)

    def _restricted(self, running: Sequence[Request]) -> list[Request]:
        """The running requests that have to leave a share."""
        return [other for other in running if self._share(other) > 0.0]
