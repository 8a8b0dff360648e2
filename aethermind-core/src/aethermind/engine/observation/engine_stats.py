"""What an engine is busy with, in numbers that cost nothing to read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aethermind.engine.kv_offload.stats import KVStoreStats

if TYPE_CHECKING:
    from aethermind.engine.engine import Engine

__all__ = ["EngineStats"]


@dataclass(frozen=True, slots=True)
class EngineStats:
    """One moment of an engine. Blocks are those of the KV cache: `num_free_blocks` can be had at once, those that keep
    past prompts for reuse included. `num_swapped_blocks` of `num_swap_blocks` in host memory keep what was swapped out;
    bytes are those moved, and preemptions those that happened, since the engine was made. `memory_pressure` is the
    cache's: at 1 there is no room left in it or outside, and whoever gives way is computed again. `kv_store` says what
    became of a store's blocks, where there is one; who waits for it is among `num_waiting`. Of `num_draft_tokens` that
    were checked, `num_accepted_tokens` were right (see `engine.speculative`).
    """

    num_waiting: int
    num_running: int
    num_blocks: int
    num_free_blocks: int
    num_swap_blocks: int
    num_swapped_blocks: int
    swapped_out_bytes: int
    swapped_in_bytes: int
    num_preemptions: int
    memory_pressure: float
    num_sessions: int = 0
    kv_store: KVStoreStats | None = None
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0

    @property
    def acceptance_rate(self) -> float:
        """Fraction of the checked drafts that were right, from 0 to 1; 0 where none were checked."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0

    @property
    def kv_cache_usage(self) -> float:
        """Fraction of the KV cache that open requests hold, from 0 to 1."""
        return 1.0 - self.num_free_blocks / self.num_blocks

    @classmethod
    def of(cls, engine: Engine) -> EngineStats:
        """Read them; from another thread than the engine's they may be of two neighbouring moments."""
        speculator = engine.speculator
        store = engine.swap_store
        bytes_per_block = engine.planned.cache_spec.bytes_per_block if store else 0
        offload = engine.kv_offload
        return cls(
            num_waiting=len(engine.waiting) + (offload.num_waiting if offload else 0),
            num_running=len(engine.running),
            num_blocks=engine.planned.num_kv_blocks,
            num_free_blocks=engine.cache.num_available_blocks,
            num_swap_blocks=store.num_blocks if store else 0,
            num_swapped_blocks=store.num_used_blocks if store else 0,
            swapped_out_bytes=store.num_moved_out * bytes_per_block if store else 0,
            swapped_in_bytes=store.num_moved_in * bytes_per_block if store else 0,
            num_preemptions=engine.num_preemptions,
            memory_pressure=engine.cache.memory_pressure,
            num_sessions=len(engine.sessions),
            kv_store=offload.stats if offload else None,
            num_draft_tokens=speculator.num_draft_tokens if speculator else 0,
            num_accepted_tokens=speculator.num_accepted_tokens if speculator else 0,
        )
