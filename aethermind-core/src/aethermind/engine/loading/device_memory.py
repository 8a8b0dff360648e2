"""How many KV blocks a device has room for, beside a planned model: by its free memory and by the model's plans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from aethermind.engine.loading.model_graph import GraphKey
from aethermind.errors import OutOfMemoryError
from aethermind.graph.constants import allocation_sizes
from aethermind.graph.run_inputs import place_inputs
from aethermind.log import get_logger

if TYPE_CHECKING:
    from aethermind.engine.loading.planned_model import PlannedModel
    from aethermind.graph.plan import Plan

__all__ = ["MemoryNeeds", "fitting_num_blocks"]

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class MemoryNeeds:
    """Bytes of a device that a model takes once it is loaded, as its allocator rounds them, those of a draft model
    included. `block_parts` are what one KV block takes of each tensor, before rounding by `footprint`.
    """

    weights: int
    steps: int
    block_parts: tuple[int, ...]
    footprint: Callable[[int], int]

    @classmethod
    def of(cls, planned: PlannedModel, *, is_draft: bool = False) -> Self:
        """Of a model whose weights are not read yet. One that drafts takes plain steps only."""
        footprint = planned.open_device.backend.allocator.footprint
        types, plain = planned.parameter_types, planned.compiled.plan
        plans = [plain]
        if not is_draft:  # other kinds of steps take memory when they first come up: for the usual one there is room
            plans.append(planned.compile(GraphKey(is_adjusted=True)).plan)
        if planned.adapters is not None:
            types |= planned.adapters.types
            plans.append(planned.compile(GraphKey(has_adapters=True)).plan)
        weights = sum(map(footprint, allocation_sizes(plans, types)))
        steps = sum(_step_bytes(planned, plan) for plan in plans)
        parts = tuple(type.nbytes({}) // planned.num_kv_blocks for type in plain.states.values())
        if planned.draft is None:
            return cls(weights, steps, parts, footprint)
        draft = cls.of(planned.draft, is_draft=True)
        return cls(weights + draft.weights, steps + draft.steps, parts + draft.block_parts, footprint)

    def of_blocks(self, num_blocks: int) -> int:
        """What so many blocks take."""
        return sum(self.footprint(num_blocks * part) for part in self.block_parts)


def fitting_num_blocks(planned: PlannedModel) -> int:
    """As many KV blocks as there is free memory for, up to `gpu_memory_utilization`, and no more than are planned.

    OutOfMemoryError where a sequence of the length that was asked for does not fit, or nothing at all.
    """
    needs = MemoryNeeds.of(planned)
    opened, config, spec = planned.open_device, planned.config, planned.cache_spec
    total = opened.backend.devices.properties(opened.device.index).total_memory_bytes
    free = opened.backend.free_memory()
    assert free is not None, "asked of devices that tell"
    in_use = total - free
    room = int(config.gpu_memory_utilization * total) - in_use - needs.weights - needs.steps
    block = max(1, sum(needs.block_parts))
    num_blocks = min(planned.num_kv_blocks, room // block)
    while num_blocks > 0 and (excess := needs.of_blocks(num_blocks) - room) > 0:
        num_blocks -= -(-excess // block)
    num_wanted = 1 if config.max_model_len is None else spec.num_blocks_for(planned.max_model_len)
    if num_blocks < num_wanted:
        num_tokens = min(num_wanted * spec.block_size, planned.max_model_len)
        raise OutOfMemoryError(
            f"{opened.device} has no room for a KV cache of {num_tokens} tokens, which takes "
            f"{_size(needs.of_blocks(num_wanted))}: weights take {_size(needs.weights)}, steps {_size(needs.steps)}, "
            f"{_size(in_use)} of its {_size(total)} are in use, and {config.gpu_memory_utilization:.0%} may be. "
            "Lower --max-model-len or --max-num-batched-tokens, raise --gpu-memory-utilization, choose a smaller "
            "model, or end what else uses the device."
        )
    if (num_tokens := num_blocks * spec.block_size) < planned.max_model_len:
        logger.warning(
            "%s has room for the keys and values of %s tokens beside this model, so contexts end there instead of at "
            "%s. Pass --kv-cache-dtype int8 for nearly twice as many.",
            opened.device,
            num_tokens,
            planned.max_model_len,
        )
    return num_blocks


def _step_bytes(planned: PlannedModel, plan: Plan) -> int:
    backend = planned.open_device.backend
    inputs = max((sum(place) for place in place_inputs(plan.inputs, plan.symbols).values()), default=0)
    return sum(map(backend.allocator.footprint, (plan.arena_bytes, inputs, backend.workspace_bytes(plan))))


def _size(nbytes: int) -> str:
    return f"{nbytes / (1 << 30):.2f} GiB" if nbytes >> 30 else f"{nbytes / (1 << 20):.1f} MiB"
