"""The size of a model's KV cache: bytes per token, number of blocks, and the context length that fits into memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from aethermind.cache.groups import group_layers
from aethermind.cache.layers import has_latent
from aethermind.cache.recurrent_states import NUM_RESERVED_SLOTS
from aethermind.cache.spec import KVCacheSpec
from aethermind.engine.config import EngineConfig
from aethermind.engine.loading.model_graph import GraphKey
from aethermind.errors import InvalidArgumentError, OutOfMemoryError
from aethermind.graph.constants import allocation_sizes
from aethermind.graph.run_inputs import place_inputs
from aethermind.hal.backend import Backend, Capabilities
from aethermind.hal.device import DeviceId
from aethermind.hal.dtype import DType
from aethermind.hal.host_memory import host_memory_bytes
from aethermind.log import get_logger
from aethermind.model.architecture import CausalLM, TextEncoder, cache_layout
from aethermind.model.config import DecoderConfig
from aethermind.ops.schema import CODE_DTYPES
from aethermind.runtime import OpenDevice

if TYPE_CHECKING:
    from aethermind.engine.loading.compiled_model import CompiledModel
    from aethermind.graph.plan import Plan

__all__ = [
    "KVPlan",
    "MemoryNeeds",
    "find_swap_device",
    "fitting_num_blocks",
    "for_whole_texts",
    "plan_kv",
    "plan_one_sequence",
    "warn_of_short_context",
]

logger = get_logger(__name__)

_MIN_CHUNK = 64
"""The chunk of a prompt, in tokens, for which a layer group with a sliding window always has blocks.

When blocks are short, chunks shrink to this size, as at the end of a prompt that fills the cache. Every token of a
chunk needs a slot in each group with a window.
"""

_MAX_EMPTY_BLOCKS = 4096
"""Maximum number of blocks of a context if the model has no attention. Its blocks hold nothing: they count tokens, and
the prefix cache finds snapshots by their hashes.
"""


@dataclass(frozen=True, slots=True)
class KVPlan:
    """The size of a KV cache before its memory is allocated. `num_swap_blocks` are in swap space.

    If `is_upper_bound`, `num_blocks` is the most that requests could ever use, and `fitting_num_blocks` decides how
    many of them fit.
    """

    spec: KVCacheSpec
    num_blocks: int
    num_swap_blocks: int
    max_model_len: int
    is_upper_bound: bool = False


def plan_kv(
    config: EngineConfig,
    dtype: DType,
    model: CausalLM | TextEncoder,
    opened: OpenDevice,
    *,
    has_checkpoints: bool = False,
) -> KVPlan:
    """Plan the KV cache of a model that computes in `dtype`.

    `has_checkpoints` says whether recurrent states are checkpointed for wrong drafts (`KVCache.checkpoint`).

    Raises InvalidArgumentError for a dtype or a context length that the model does not support, and for a block size
    that the device's kernels do not take; OutOfMemoryError for a cache that does not fit into memory.
    """
    config, spec, num_swap_blocks, wanted_len = _plan_spec(config, dtype, model, opened, has_checkpoints)
    if spec.is_recurrent:
        _warn_of_few_slots(config, spec, opened)
    if config.num_kv_blocks is None and _reports_free_memory(opened):
        return KVPlan(spec, _max_num_blocks(config, spec, wanted_len), num_swap_blocks, wanted_len, True)
    num_blocks = config.num_kv_blocks or _default_num_blocks(config, spec, wanted_len, opened)
    _check_fits(num_blocks, spec, opened)
    num_tokens = spec.num_tokens_in(num_blocks)
    if not num_tokens:
        raise InvalidArgumentError(
            f"A KV cache of {num_blocks} blocks holds no sequence: the layers of this model are {len(spec.groups)} "
            "groups, and each needs a block. Raise num_kv_blocks."
        )
    if config.num_kv_blocks is None and num_tokens < wanted_len:
        warn_of_short_context(opened, num_tokens, wanted_len)
    return KVPlan(spec, num_blocks, num_swap_blocks, min(wanted_len, num_tokens))


def plan_one_sequence(config: EngineConfig, dtype: DType, model: CausalLM | TextEncoder, opened: OpenDevice) -> KVPlan:
    """Plan the smallest KV cache for the context length: that of one sequence, whether it fits into memory or not."""
    has_checkpoints = config.speculative_method is not None
    _, spec, num_swap_blocks, wanted_len = _plan_spec(config, dtype, model, opened, has_checkpoints)
    return KVPlan(spec, spec.num_blocks_for(wanted_len), num_swap_blocks, wanted_len)


def _plan_spec(
    config: EngineConfig, dtype: DType, model: CausalLM | TextEncoder, opened: OpenDevice, has_checkpoints: bool
) -> tuple[EngineConfig, KVCacheSpec, int, int]:
    """Return the configuration, the spec, the number of swap blocks, and the context length.

    For a model without attention, whose blocks take no memory, the configuration has a number of blocks.
    """
    wanted_len = _wanted_len(config, model.config)
    if isinstance(model, TextEncoder):
        spec = _minimal_spec(wanted_len)
    else:
        block_size = _block_size(config, wanted_len, opened.backend.capabilities)
        spec = _choose_spec(config, dtype, model, wanted_len, block_size)
        if spec.has_attention:
            _check_block_size(config, block_size, opened.backend)
        spec = _with_slots(spec, config, opened, has_checkpoints)
    if not spec.has_attention and config.num_kv_blocks is None:  # blocks take no memory: enough for whole contexts
        config = replace(config, num_kv_blocks=(spec.max_sequences + 1) * spec.num_blocks_for(wanted_len))
    spec, num_swap_blocks = _with_swap_space(config, spec, wanted_len, opened)
    return config, spec, num_swap_blocks, wanted_len


def for_whole_texts(config: EngineConfig, encoder: DecoderConfig) -> EngineConfig:
    """Adapt the options of an encoder: a step computes a whole text, because tokens attend in both directions."""
    length = _wanted_len(config, encoder)
    num_tokens = max(config.max_num_batched_tokens, length)
    return replace(config, max_num_batched_tokens=num_tokens, num_kv_blocks=1)


def _minimal_spec(max_model_len: int) -> KVCacheSpec:
    """Return the spec for encoders. They cache nothing, but requests need blocks; these have two bytes a token."""
    return KVCacheSpec.uniform(1, 1, 1, "int8", max_model_len)


def _block_size(config: EngineConfig, max_model_len: int, capabilities: Capabilities) -> int:
    """Return the tokens per block: by the layout, by the option, or the number that the device prefers."""
    if config.kv_cache_layout != "paged":
        return 1 if config.kv_cache_layout == "cell" else max_model_len
    return capabilities.default_block_size if config.block_size is None else config.block_size


def _check_block_size(config: EngineConfig, block_size: int, backend: Backend) -> None:
    if not (sizes := backend.capabilities.block_sizes) or block_size in sizes:
        return
    is_paged, listed = config.kv_cache_layout == "paged", ", ".join(map(str, sizes))
    raise InvalidArgumentError(
        f"The kernels of {backend.name} take KV blocks of {listed} tokens, not of {block_size}"
        + (". Pass one of these as block_size." if is_paged else ": pass paged as kv_cache_layout."),
        param="block_size" if is_paged else "kv_cache_layout",
    )


def _choose_spec(
    config: EngineConfig, dtype: DType, model: CausalLM, max_model_len: int, block_size: int
) -> KVCacheSpec:
    """Return the spec: keys and values in the dtype of the computation, or quantised with a scale a head and token.

    Layers with a sliding window form separate groups if that saves memory in contexts of `max_model_len`. There is only
    one group with a KV store, because stored blocks hold all layers of their tokens, and with a context shift, because
    that drops blocks in the middle. For a model without attention the block size is raised to limit the number of
    blocks (`_MAX_EMPTY_BLOCKS`).
    """
    stored = dtype if config.kv_cache_dtype == "auto" else DType.parse(config.kv_cache_dtype)
    if stored not in (dtype, *CODE_DTYPES):
        raise InvalidArgumentError(
            f"A KV cache in {stored} needs a model that computes in {stored}, and this one computes in {dtype}. "
            f"Pass dtype='{stored}', or auto, int8 or fp8 as kv_cache_dtype."
        )
    scale_bits = 32 if stored in CODE_DTYPES else 0
    layers, max_chunk = cache_layout(model), config.max_num_batched_tokens
    if stored in CODE_DTYPES and has_latent(layers):
        raise InvalidArgumentError(
            f"This model caches latent vectors, which are not quantised to {stored}: they are small as they are. Pass "
            "auto as kv_cache_dtype.",
            param="kv_cache_dtype",
        )
    has_groups = config.kv_store is None and not config.context_shift
    groups = group_layers(layers, block_size, max_model_len, max_chunk) if has_groups else ()
    spec = KVCacheSpec(layers, stored.label, block_size, scale_bits, groups, min(max_chunk, _MIN_CHUNK))
    return (
        spec
        if spec.has_attention
        else replace(spec, block_size=max(block_size, -(-max_model_len // _MAX_EMPTY_BLOCKS)))
    )


def _with_slots(spec: KVCacheSpec, config: EngineConfig, opened: OpenDevice, has_checkpoints: bool) -> KVCacheSpec:
    """Add state slots to the spec of a recurrent model: one for each running request, and one for its checkpoint.

    With a prefix cache there are two snapshots for each request: its own, and one that the prefix cache keeps; but no
    more than blocks, at whose ends they are taken. All slots take at most a third of the memory; if that holds fewer,
    half of them are for snapshots.
    """
    if not spec.is_recurrent:
        return spec
    max_num_seqs = min(config.max_num_seqs, config.max_num_batched_tokens)
    total = opened.backend.devices.properties(opened.device.index).total_memory_bytes
    total = min(filter(None, (total, config.memory_bytes)), default=0)
    num_affordable = total // 3 // spec.bytes_per_slot - NUM_RESERVED_SLOTS if total else 3 * max_num_seqs
    num_snapshots = min(2 * max_num_seqs, max(0, num_affordable) // 2) if config.enable_prefix_caching else 0
    if spec.has_attention and config.num_kv_blocks is not None:
        num_snapshots = min(num_snapshots, config.num_kv_blocks)
    with_checkpoint = 2 if has_checkpoints else 1
    num_seqs = min(max_num_seqs, max(1, (num_affordable - num_snapshots) // with_checkpoint))
    num_slots = with_checkpoint * num_seqs + NUM_RESERVED_SLOTS + num_snapshots
    num_checkpoints = num_slots - num_snapshots - NUM_RESERVED_SLOTS - num_seqs
    return replace(spec, num_slots=num_slots, num_checkpoints=num_checkpoints, num_snapshots=num_snapshots)


def _warn_of_few_slots(config: EngineConfig, spec: KVCacheSpec, opened: OpenDevice) -> None:
    max_num_seqs, num_seqs = min(config.max_num_seqs, config.max_num_batched_tokens), spec.max_sequences
    if num_seqs < max_num_seqs:
        logger.warning(
            "The state of a sequence takes %s, and %s holds those of %s, so no more requests run at once, though "
            "max_num_seqs is %s.",
            _size(spec.bytes_per_slot),
            opened.device,
            num_seqs,
            max_num_seqs,
        )


def _wanted_len(config: EngineConfig, decoder: DecoderConfig) -> int:
    """Return the context length: beyond max_position_embeddings only on request, and as far as RoPE scaling allows."""
    limit = max(decoder.max_position_embeddings, decoder.rope.max_positions)
    if config.max_model_len is None:
        return decoder.max_position_embeddings
    if config.max_model_len > limit:
        raise InvalidArgumentError(
            f"max_model_len {config.max_model_len} is more than the {limit} positions that the model is made for. "
            "Lower it, or set rope scaling in config.json.",
            param="max_model_len",
        )
    return config.max_model_len


def _reports_free_memory(opened: OpenDevice) -> bool:
    """Whether the device has its own memory and reports how much of it is free."""
    return not opened.backend.capabilities.is_host_accessible and opened.backend.free_memory() is not None


def _max_num_blocks(config: EngineConfig, cache: KVCacheSpec, max_model_len: int) -> int:
    """Return the blocks of all sequences of a step at full length, and at least `_typical_num_blocks`."""
    num_seqs = min(config.max_num_seqs, config.max_num_batched_tokens)
    return max(num_seqs * cache.num_blocks_for(max_model_len), _typical_num_blocks(config, cache, max_model_len))


def _typical_num_blocks(config: EngineConfig, cache: KVCacheSpec, max_model_len: int) -> int:
    """Return the blocks of one sequence of full length and of a batch of medium ones."""
    num_seqs, medium_len = min(config.max_num_seqs, 16), min(max_model_len, 2048)
    if len(cache.groups) > 1:
        return cache.num_blocks_for(max_model_len) + num_seqs * cache.num_blocks_for(medium_len)
    return cache.num_blocks_for(max_model_len) + cache.num_blocks_for(num_seqs * medium_len)


def _default_num_blocks(config: EngineConfig, cache: KVCacheSpec, max_model_len: int, opened: OpenDevice) -> int:
    """Return `_typical_num_blocks`, limited to a third of the memory, because other processes use host memory, too.

    With the option `memory` there is no such limit. `loader` lowers the number to what is free.
    """
    wanted = _typical_num_blocks(config, cache, max_model_len)
    if config.memory is not None:
        return wanted
    total = opened.backend.devices.properties(opened.device.index).total_memory_bytes
    affordable = total // 3 // cache.bytes_per_block if total else wanted
    least = 1 if config.max_model_len is None else cache.num_blocks_for(max_model_len)
    return max(least, min(wanted, affordable))


def _check_fits(num_blocks: int, cache: KVCacheSpec, opened: OpenDevice) -> None:
    total = opened.backend.devices.properties(opened.device.index).total_memory_bytes
    states = cache.num_slots * cache.bytes_per_slot
    if total and states > total:
        raise OutOfMemoryError(
            f"The recurrent states of {cache.num_slots} sequences take {states} bytes, and {opened.device} has {total} "
            "in all. Choose a smaller model."
        )
    wanted = num_blocks * cache.bytes_per_block + states
    if total and wanted > total:
        raise OutOfMemoryError(
            f"{num_blocks} KV blocks of {cache.block_size} tokens take {wanted} bytes, and {opened.device} has {total} "
            "in all. Lower num_kv_blocks or max_model_len."
        )


def _with_swap_space(
    config: EngineConfig, cache: KVCacheSpec, max_model_len: int, opened: OpenDevice
) -> tuple[KVCacheSpec, int]:
    """Divide the swap space into state slots and blocks; returns the spec with these slots, and the number of blocks.

    There are state slots for at most as many sequences as run at once. They take at most half of the space, unless
    blocks are empty.
    """
    wanted, total, where = int(config.swap_space * 2**30), host_memory_bytes(), "the host"
    if config.swap_device is not None:
        device = find_swap_device(opened, config.swap_device)
        total, where = opened.backend.devices.properties(device.index).total_memory_bytes, str(device)
    if total and wanted > total:
        raise OutOfMemoryError(
            f"A swap space of {config.swap_space} GiB does not fit: {where} has {total / 2**30:.1f} GiB in all. "
            "Lower swap_space."
        )
    if cache.is_recurrent:
        num_slots = min(wanted // (2 if cache.bytes_per_block else 1) // cache.bytes_per_slot, cache.max_sequences)
        cache, wanted = replace(cache, num_host_slots=num_slots), wanted - num_slots * cache.bytes_per_slot
        if config.swap_space and not num_slots:
            raise InvalidArgumentError(
                f"A swap space of {config.swap_space} GiB holds no recurrent state of {_size(cache.bytes_per_slot)} "
                "beside blocks. Raise swap_space, or set it to 0 for none."
            )
        if not cache.bytes_per_block:  # blocks take no memory: as many as these sequences have at full length
            return cache, num_slots * cache.num_blocks_for(max_model_len)
    num_blocks = wanted // cache.bytes_per_block
    if config.swap_space and not num_blocks:
        raise InvalidArgumentError(
            f"A swap space of {config.swap_space} GiB holds no block of {cache.bytes_per_block} bytes. "
            "Raise swap_space, or set it to 0 for none."
        )
    return cache, num_blocks


def find_swap_device(opened: OpenDevice, name: str) -> DeviceId:
    """Return the device whose memory is the swap space; InvalidArgumentError unless it is a peer of the opened one.

    Without peer access copies would go through host memory, so swapping to host memory would be faster.
    """
    device, backend = DeviceId.parse(name), opened.backend
    if backend.capabilities.is_host_accessible:
        problem = f"{opened.device} computes in host memory"
    elif device.type != backend.name:
        problem = f"{opened.device} copies to devices of {backend.name} only"
    elif device.index >= (count := backend.devices.count()):
        problem = f"{backend.name} has {count} device(s), counted from 0"
    elif device == opened.device:
        problem = "that is the device that computes"
    elif not backend.can_access_peer(opened.device.index, device.index):
        problem = f"{opened.device} has no peer access to it, so copies would go through host memory"
    else:
        return device
    raise InvalidArgumentError(
        f"Blocks cannot be swapped to {device}: {problem}. Leave swap_device out to swap to host memory.",
        param="swap_device",
    )


@dataclass(frozen=True, slots=True)
class MemoryNeeds:
    """Bytes of device memory that a loaded model and its draft model take, as the allocator rounds them.

    Attributes:
        weights: bytes of weights.
        steps: bytes of arenas, inputs and workspaces of the graphs.
        states: bytes of all recurrent states.
        block_parts: bytes of one KV block in each cache tensor, before `footprint` rounds them.
        footprint: rounds the size of an allocation as the allocator does.
    """

    weights: int
    steps: int
    states: int
    block_parts: tuple[int, ...]
    footprint: Callable[[int], int]

    @classmethod
    def of(cls, compiled: CompiledModel, *, is_draft: bool = False) -> Self:
        """Compute the needs of a model before its weights are read. A draft model runs plain steps only."""
        footprint = compiled.open_device.backend.allocator.footprint
        types, plain = compiled.parameter_types, compiled.step.plan
        plans = [plain]
        if not is_draft:  # the adjusted step is the most common variant; others allocate when they first run
            plans.append(compiled.compile(GraphKey(is_adjusted=True)).plan)
        if compiled.adapters is not None:
            types |= compiled.adapters.types
            plans.append(compiled.compile(GraphKey(has_adapters=True)).plan)
        weights = sum(map(footprint, allocation_sizes(plans, types, compiled.shared_parameters)))
        steps = sum(_step_bytes(compiled, plan) for plan in plans)
        if compiled.config.prefill_stream:  # the plain step once more
            steps += _step_bytes(compiled, plain)
        state_names = compiled.cache_spec.state_shapes.keys()
        block_parts = tuple(
            type.nbytes({}) // compiled.num_kv_blocks for name, type in plain.states.items() if name not in state_names
        )
        states = sum(footprint(plain.states[name].nbytes({})) for name in state_names)
        if compiled.draft is None:
            return cls(weights, steps, states, block_parts, footprint)
        draft = cls.of(compiled.draft, is_draft=True)
        return cls(
            weights + draft.weights,
            steps + draft.steps,
            states + draft.states,
            block_parts + draft.block_parts,
            footprint,
        )

    def of_blocks(self, num_blocks: int) -> int:
        """Return the bytes of `num_blocks` blocks."""
        return sum(self.footprint(num_blocks * part) for part in self.block_parts)


def fitting_num_blocks(compiled: CompiledModel) -> int:
    """Return the number of KV blocks that fit into free memory up to `gpu_memory_utilization`, at most those planned.

    OutOfMemoryError if not even one sequence of the requested length fits, or no block at all.
    """
    needs = MemoryNeeds.of(compiled)
    opened, config, spec = compiled.open_device, compiled.config, compiled.cache_spec
    total = opened.backend.devices.properties(opened.device.index).total_memory_bytes
    free = opened.backend.free_memory()
    assert free is not None, "called for devices that report free memory"
    in_use = total - free
    allowed = int(config.gpu_memory_utilization * total)
    if config.memory_bytes is not None:
        allowed = min(allowed, in_use + config.memory_bytes)
    available = allowed - in_use - needs.weights - needs.steps - needs.states
    block_bytes = max(1, sum(needs.block_parts))
    num_blocks = min(compiled.num_kv_blocks, available // block_bytes)
    while num_blocks > 0 and (excess := needs.of_blocks(num_blocks) - available) > 0:
        num_blocks -= -(-excess // block_bytes)
    num_wanted = spec.num_blocks_for(1 if config.max_model_len is None else compiled.max_model_len)
    if num_blocks < num_wanted:
        num_tokens = min(spec.num_tokens_in(num_wanted), compiled.max_model_len)
        raise OutOfMemoryError(
            f"{opened.device} has too little memory for a KV cache of {num_tokens} tokens, which takes "
            f"{_size(needs.of_blocks(num_wanted))}: weights take {_size(needs.weights)}, steps {_size(needs.steps)}, "
            f"{f'recurrent states {_size(needs.states)}, ' if needs.states else ''}"
            f"{_size(in_use)} of its {_size(total)} are in use, and {allowed / total:.0%} may be. "
            "Lower --max-model-len or --max-num-batched-tokens, raise --gpu-memory-utilization, choose a smaller "
            "model, or end what else uses the device."
        )
    return num_blocks


def warn_of_short_context(opened: OpenDevice, num_tokens: int, wanted_len: int) -> None:
    """Warn that contexts are shorter than the model's, because memory holds no more."""
    logger.warning(
        "The memory of %s holds the KV cache of %s tokens beside this model, so contexts end there instead of at "
        "%s. Pass --kv-cache-dtype int8 for nearly twice as many.",
        opened.device,
        num_tokens,
        wanted_len,
    )


def _step_bytes(compiled: CompiledModel, plan: Plan) -> int:
    backend = compiled.open_device.backend
    inputs = max((sum(place) for place in place_inputs(plan.inputs, plan.symbols).values()), default=0)
    return sum(map(backend.allocator.footprint, (plan.arena_bytes, inputs, backend.workspace_bytes(plan))))


def _size(nbytes: int) -> str:
    return f"{nbytes / (1 << 30):.2f} GiB" if nbytes >> 30 else f"{nbytes / (1 << 20):.1f} MiB"
