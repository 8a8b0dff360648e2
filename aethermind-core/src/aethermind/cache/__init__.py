"""KV cache bookkeeping: the mapping from sequences and tokens to blocks. It does not touch device memory."""

from __future__ import annotations

from aethermind.cache.block_pool import BlockPool
from aethermind.cache.kv_cache import KVCache
from aethermind.cache.outcome import CacheOutcome, OpenResult, ReserveResult, SaveResult
from aethermind.cache.positions import BlockShift
from aethermind.cache.prefix_cache import HashedPrefixCache, NoPrefixCache, PrefixCache
from aethermind.cache.sequence import CacheState
from aethermind.cache.spec import KVCacheSpec
from aethermind.cache.swap_store import BlockMover, HostSwapStore, NoSwapStore, SwapStore

__all__ = [
    "BlockMover",
    "BlockPool",
    "BlockShift",
    "CacheOutcome",
    "CacheState",
    "HashedPrefixCache",
    "HostSwapStore",
    "KVCache",
    "KVCacheSpec",
    "NoPrefixCache",
    "NoSwapStore",
    "OpenResult",
    "PrefixCache",
    "ReserveResult",
    "SaveResult",
    "SwapStore",
]
