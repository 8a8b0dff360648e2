"""KV cache bookkeeping: which block holds which tokens of which sequence. It touches no device memory."""

from __future__ import annotations

from aethermind.cache.block_pool import BlockPool
from aethermind.cache.hashed_prefix_cache import HashedPrefixCache
from aethermind.cache.host_swap_store import BlockMover, HostSwapStore
from aethermind.cache.kv_cache import KVCache
from aethermind.cache.outcome import OpenResult, Outcome, ReserveResult, SaveResult
from aethermind.cache.prefix_cache import NoPrefixCache, PrefixCache
from aethermind.cache.shift import BlockShift
from aethermind.cache.spec import KVCacheSpec
from aethermind.cache.states import CacheState
from aethermind.cache.swap import NoSwapStore, SwapStore

__all__ = [
    "BlockMover",
    "BlockPool",
    "BlockShift",
    "CacheState",
    "HashedPrefixCache",
    "HostSwapStore",
    "KVCache",
    "KVCacheSpec",
    "NoPrefixCache",
    "NoSwapStore",
    "OpenResult",
    "Outcome",
    "PrefixCache",
    "ReserveResult",
    "SaveResult",
    "SwapStore",
]
