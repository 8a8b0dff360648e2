"""Creation of an engine's KV cache with its prefix cache, swap store and sessions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from aethermind.cache.block_pool import BlockPool
from aethermind.cache.kv_cache import KVCache
from aethermind.cache.prefix_cache import HashedPrefixCache
from aethermind.cache.swap_store import HostSwapStore
from aethermind.engine.kv_memory.memory import MemoryContents
from aethermind.engine.kv_offload import fingerprint
from aethermind.engine.requests.session_files import SessionFiles
from aethermind.engine.requests.sessions import Sessions
from aethermind.engine.scheduling.preemption_cost import SwapVsRecomputeCosts, TimedSwapStore
from aethermind.env import expand_home
from aethermind.model.hub import title_of

if TYPE_CHECKING:
    from aethermind.engine.kv_memory.memory import KVMemory
    from aethermind.engine.loading.compiled_model import CompiledModel

__all__ = ["open_cache", "open_sessions"]


def open_cache(
    compiled: CompiledModel, memory: KVMemory, costs: SwapVsRecomputeCosts, clock: Callable[[], float]
) -> tuple[KVCache, HashedPrefixCache | None, HostSwapStore | None]:
    """Create the KV cache of an engine, whose bytes are in `memory`, with its prefix cache and its swap store.

    `costs` receives the times of swaps. The last two are None if they are off.
    """
    num_swap_blocks, swap_store, timed = compiled.num_swap_blocks, None, None
    if num_swap_blocks:
        swaps = memory.swap_stream(num_swap_blocks, costs.observe_move)
        swap_store = HostSwapStore(swaps or memory.alloc_swap_blocks(num_swap_blocks), num_swap_blocks)
        if swaps is None:
            timed = TimedSwapStore(swap_store, compiled.cache_spec.bytes_per_block, costs, clock)
    pool = BlockPool(compiled.num_kv_blocks)
    prefix_cache = _create_prefix_cache(compiled, pool)
    cache = KVCache(
        compiled.cache_spec,
        compiled.num_kv_blocks,
        compiled.max_model_len,
        prefix_cache=prefix_cache,
        swap_store=timed or swap_store,
        swap_threshold=compiled.config.swap_threshold,
        pool=pool,
    )
    return cache, prefix_cache, swap_store


def open_sessions(
    compiled: CompiledModel,
    memory: KVMemory,
    cache: KVCache,
    prefix_cache: HashedPrefixCache | None,
    clock: Callable[[], float],
) -> Sessions:
    """Create the sessions of an engine: parked sequences if there is swap space, else pinned blocks of prefixes."""
    config, files = compiled.config, None
    if config.session_dir is not None:
        spec = compiled.cache_spec
        layout = ([repr(layer) for layer in spec.layers], spec.dtype_name, spec.block_size)
        files = SessionFiles(
            expand_home(config.session_dir),
            title_of(compiled.source.path),
            (*_model_key(compiled), compiled.open_device.backend.name, layout),
            lambda: MemoryContents(memory, fingerprint(compiled)),
        )
    return Sessions(
        prefix_cache,
        config.max_sessions,
        compiled.num_kv_blocks // 2 + compiled.num_swap_blocks,
        config.session_ttl,
        clock,
        cache,
        files,
        parks_sequences=compiled.num_swap_blocks > 0,
    )


def _create_prefix_cache(compiled: CompiledModel, pool: BlockPool) -> HashedPrefixCache | None:
    if not compiled.config.enable_prefix_caching:
        return None
    if compiled.config.kv_store is None:
        salt = repr(_model_key(compiled))
    else:
        salt = fingerprint(compiled)
    spec = compiled.cache_spec
    return HashedPrefixCache(pool, spec.block_size, salt.encode(), windows=spec.windows)


def _model_key(compiled: CompiledModel) -> tuple[str, str, str | None]:
    """Return the path of the model, its dtype and its quantisation."""
    return str(compiled.source.path.resolve()), compiled.dtype.label, compiled.config.quantization
