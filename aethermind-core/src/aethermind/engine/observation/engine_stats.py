"""Statistics of an engine, for metrics and health checks; they are cheap to read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aethermind.engine.kv_offload.health import KVStoreStats
from aethermind.hal.device import DeviceUsage

if TYPE_CHECKING:
    from aethermind.engine.engine import Engine

__all__ = ["EngineStats"]


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot of an engine's state.

    Blocks are those of the KV cache. `num_free_blocks` includes those that can be evicted from the prefix cache.
    `num_swapped_blocks` of `num_swap_blocks` in host memory hold swapped-out sequences; bytes swapped and preemptions
    are counted since the engine started. `memory_pressure` is the cache's: at 1 all blocks and the swap store are full,
    and preempted requests are recomputed. `kv_store` has the counters of a KV store, if there is one; requests that
    wait for it are among `num_waiting`. Of `num_draft_tokens` that were verified, `num_accepted_tokens` were accepted
    (see `engine.speculative`). A model with recurrent layers has `num_state_slots` for the states of requests, and
    others none. `max_num_seqs`, `max_num_batched_tokens` and `max_prefill_chunk` are the limits of a step in force.
    `device_usage` has an entry for each device of the engine that reports its usage.
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
    num_state_slots: int = 0
    num_free_state_slots: int = 0
    max_num_seqs: int = 0
    max_num_batched_tokens: int = 0
    max_prefill_chunk: int | None = None
    device_usage: tuple[DeviceUsage, ...] = ()

    @property
    def step_limits(self) -> dict[str, int | None]:
        """The limits of a step by name."""
        return {
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "max_prefill_chunk": self.max_prefill_chunk,
        }

    @property
    def acceptance_rate(self) -> float:
        """The acceptance rate of drafts, from 0 to 1; 0 if none were verified."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0

    @property
    def kv_cache_usage(self) -> float:
        """Fraction of the KV cache that open requests hold, from 0 to 1."""
        return 1.0 - self.num_free_blocks / self.num_blocks

    @classmethod
    def of(cls, engine: Engine) -> EngineStats:
        """Read the statistics; in another thread than the engine's, values may be from two consecutive steps."""
        speculator = engine.speculator
        store = engine.swap_store
        offload, spec = engine.kv_offload, engine.compiled.cache_spec
        slot_bytes = spec.bytes_per_slot if engine.cache.is_recurrent else 0
        states_out, states_in = (count * slot_bytes for count in engine.cache.num_moved_states)
        return cls(
            num_waiting=len(engine.waiting) + (offload.num_waiting if offload else 0),
            num_running=len(engine.running),
            num_blocks=engine.compiled.num_kv_blocks,
            num_free_blocks=engine.cache.num_available_blocks,
            num_swap_blocks=store.num_blocks if store else 0,
            num_swapped_blocks=store.num_used_blocks if store else 0,
            swapped_out_bytes=states_out + (store.num_moved_out * spec.bytes_per_block if store else 0),
            swapped_in_bytes=states_in + (store.num_moved_in * spec.bytes_per_block if store else 0),
            num_preemptions=engine.num_preemptions,
            memory_pressure=engine.cache.memory_pressure,
            num_sessions=len(engine.sessions),
            kv_store=offload.stats if offload else None,
            num_draft_tokens=speculator.num_draft_tokens if speculator else 0,
            num_accepted_tokens=speculator.num_accepted_tokens if speculator else 0,
            num_state_slots=spec.num_sequence_slots,
            num_free_state_slots=engine.cache.num_free_slots,
            max_num_seqs=engine.budget.max_num_seqs,
            max_num_batched_tokens=engine.budget.max_num_batched_tokens,
            max_prefill_chunk=engine.budget.max_prefill_chunk,
            device_usage=engine.device_usage.latest() if engine.device_usage else (),
        )
