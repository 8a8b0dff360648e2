"""What the memory of an engine is used for, counted by those who asked for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aethermind.engine.loading.planned_model import PlannedModel
from aethermind.hal.host_memory import resident_bytes

if TYPE_CHECKING:
    from aethermind.engine.steps.model_runner import ModelRunner

__all__ = ["MemoryUse", "measure_memory"]


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes at a moment.

    `weights` are in the checkpoint's layout (where the device reads them in place, no copies of it), `packed_weights`
    in that of kernels. `activations` is the arena of intermediate values, `inputs` what a step is given, `other`
    everything else that the device's allocator has handed out. `resident_bytes` is what the process holds of the
    host's memory, None where the system does not say.
    """

    moment: str
    weights: int
    packed_weights: int
    kv_cache: int
    activations: int
    inputs: int
    other: int
    resident_bytes: int | None

    def categories(self) -> dict[str, int]:
        """Bytes by category, without those of the process."""
        names = ("weights", "packed_weights", "kv_cache", "activations", "inputs", "other")
        return {name: getattr(self, name) for name in names}


def measure_memory(moment: str, planned: PlannedModel, runner: ModelRunner | None = None) -> MemoryUse:
    """Count the memory of a model that is planned, or loaded by a runner."""
    backend = planned.open_device.backend
    allocated = backend.allocator.stats().allocated_bytes
    if runner is None:
        return MemoryUse(moment, 0, 0, 0, 0, 0, allocated, resident_bytes())
    packed = runner.constants.packed_bytes
    plain = runner.constants.nbytes - packed
    arena = sum(executor.arena_bytes for executor in runner.executors)
    inputs = sum(executor.input_bytes for executor in runner.executors)
    from_allocator = packed - runner.constants.found_bytes + runner.kv_cache_bytes + arena + inputs
    if not backend.capabilities.is_host_accessible:
        from_allocator += plain
    other = max(allocated - from_allocator, 0)
    return MemoryUse(moment, plain, packed, runner.kv_cache_bytes, arena, inputs, other, resident_bytes())
