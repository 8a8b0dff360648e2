"""The memory that a model will take, part by part, from its compiled plan and the headers of its files.

No weight is read. The sizes of weights, KV cache and arena are exact, because they follow from the plan. The memory of
the Python process is its resident memory now, and a constant that serving adds (`_SERVING_BYTES`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING

from aethermind.engine.config import EngineConfig
from aethermind.engine.loading.kv_plan import KVPlan, plan_one_sequence
from aethermind.engine.loading.model_graph import max_symbols
from aethermind.engine.loading.model_weights import stored_tensors
from aethermind.errors import AetherMindError, CheckpointError
from aethermind.graph.builder import stored_name
from aethermind.graph.constants import constant_sizes
from aethermind.graph.memory_plan import plan_memory
from aethermind.hal.host_memory import resident_bytes
from aethermind.ops.dims import resolve

if TYPE_CHECKING:
    from aethermind.checkpoint.source import TensorInfo
    from aethermind.engine.loading.compiled_model import CompiledModel
    from aethermind.graph.plan import Constant
    from aethermind.ops.schema import TensorType

__all__ = ["MemoryEstimate", "MemoryPlanner", "memory_limit"]

_SERVING_BYTES = 16 << 20
"""Bytes that the process takes beyond its resident memory at planning, for modules, threads and requests."""
_BYTES_PER_CACHED_TOKEN = 48
"""Host memory for the bookkeeping of a token in the KV cache: its id in the request, its share of a block's entry."""
_BYTES_PER_DECODED_VALUE = 1.25
"""Bytes per value of a quantised tensor while it is read: one for the integer code, and a share of the scales."""


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """An upper bound of the bytes that a model takes, by part: on its device, and in host memory.

    If the device computes in host memory all parts are in `device`, and `host` is empty. `mapped_bytes` are weights
    that are read in place from mapped files, row by row. The system may drop their pages, so they are not in the
    totals. With several ranks the parts are those of all ranks on the machine.
    """

    device: Mapping[str, int]
    host: Mapping[str, int]
    mapped_bytes: int = 0

    @property
    def device_bytes(self) -> int:
        """The total on the device."""
        return sum(self.device.values())

    @property
    def host_bytes(self) -> int:
        """The total in host memory, if the device has memory of its own."""
        return sum(self.host.values())


@dataclass(frozen=True, slots=True)
class _WeightBytes:
    """Bytes of weights: allocated ones, mapped ones, and the maximum that is needed to pack one of them."""

    allocated: int
    mapped: int
    packing: int


class MemoryPlanner:
    """Estimates the memory of a compiled model, with its own limits or with others."""

    def __init__(self, compiled: CompiledModel, resident: int | None = None) -> None:
        """`resident` is the memory of the process before the model is loaded; None measures it."""
        self._compiled = compiled
        self._given_resident = resident
        self._draft = None if compiled.draft is None else MemoryPlanner(compiled.draft, 0)
        self._arenas: dict[tuple[int, ...], int] = {}

    def estimate(self, config: EngineConfig | None = None) -> MemoryEstimate:
        """Estimate the memory with the model's own limits, or the least memory with those of another configuration.

        `config` may differ in `max_model_len`, `max_num_seqs` and `max_num_batched_tokens`; its KV cache holds one
        sequence of full length.
        """
        compiled = self._compiled
        if config is None:
            return self._estimate_for(self._own_kv, compiled.step.plan.symbols)
        kv = plan_one_sequence(config, compiled.dtype, compiled.model, compiled.open_device)
        num_eos = len(compiled.eos_token_ids)
        symbols = max_symbols(config, kv.max_model_len, kv.spec, compiled.model.config.vocab_size, num_eos)
        if compiled.is_encoder:
            symbols["R"] = symbols["T"]
        return self._estimate_for(kv, symbols)

    def num_fitting_blocks(self, limit: int) -> int:
        """Return the maximum number of KV blocks, up to the model's, that fit into `limit` bytes; 0 if none fits."""
        kv, symbols = self._own_kv, self._compiled.step.plan.symbols

        def fits(num_blocks: int) -> bool:
            return self._estimate_for(replace(kv, num_blocks=num_blocks), symbols).device_bytes <= limit

        return kv.num_blocks if fits(kv.num_blocks) else _largest_fitting(fits, kv.num_blocks)

    def largest_context(self, limit: int) -> int:
        """Return the longest context, in whole blocks, with which the model fits into `limit` bytes; 0 if none fits."""
        config, longest = self._compiled.config, self._compiled.model.config.max_position_embeddings
        block_size = self._compiled.cache_spec.block_size
        if self._fits(replace(config, max_model_len=longest), limit):
            return longest
        num_blocks = -(-longest // block_size)
        return block_size * _largest_fitting(
            lambda count: self._fits(replace(config, max_model_len=count * block_size), limit), num_blocks
        )

    def largest_batch(self, limit: int) -> int:
        """Return the greatest `max_num_seqs`, up to the configuration's, with which the model fits into `limit` bytes.

        The context length is the model's. 0 if none fits.
        """
        config = replace(self._compiled.config, max_model_len=self._compiled.max_model_len)
        return _largest_fitting(
            lambda count: self._fits(replace(config, max_num_seqs=count), limit), config.max_num_seqs + 1
        )

    @property
    def _own_kv(self) -> KVPlan:
        compiled = self._compiled
        return KVPlan(compiled.cache_spec, compiled.num_kv_blocks, compiled.num_swap_blocks, compiled.max_model_len)

    def _fits(self, config: EngineConfig, limit: int) -> bool:
        return self.estimate(config).device_bytes <= limit

    @property
    def _is_host(self) -> bool:
        """Whether the device computes in host memory."""
        return self._compiled.open_device.backend.capabilities.is_host_accessible

    @property
    def _num_ranks(self) -> int:
        """The number of ranks that share this memory: all ranks in host memory, one on a GPU."""
        return self._compiled.config.tensor_parallel_size if self._is_host else 1

    def _estimate_for(self, kv: KVPlan, symbols: Mapping[str, int]) -> MemoryEstimate:
        """Estimate the memory with this KV cache; `symbols` are the sizes of the largest step (`max_symbols`)."""
        spec, num_ranks = kv.spec, self._num_ranks
        num_tokens = kv.num_blocks * spec.block_size
        cache, states = kv.num_blocks * spec.bytes_per_block, spec.num_slots * spec.bytes_per_slot
        if self._compiled.parallel is not None:
            cache, states = self._states_of_rank(cache, states)
        workspace = self._workspace(symbols, num_tokens)
        draft = 0
        if self._draft is not None:
            draft_spec = self._draft._compiled.cache_spec
            draft = self._draft._weights.allocated + kv.num_blocks * draft_spec.bytes_per_block
            draft += draft_spec.num_slots * draft_spec.bytes_per_slot
            draft += self._draft._workspace(self._draft._compiled.step.plan.symbols, num_tokens)
        weights = self._weights
        parts = {"weights": weights.allocated, "kv_cache": cache, "states": states, "workspace": workspace}
        parts |= {"adapters": self._adapters, "draft": draft}
        swap = kv.num_swap_blocks * spec.bytes_per_block + spec.num_host_slots * spec.bytes_per_slot
        swap = 0 if self._compiled.config.swap_device is not None else swap
        host = {"swap": swap, "tokenizer": self._tokenizer, "bookkeeping": num_tokens * _BYTES_PER_CACHED_TOKEN}
        packing = max(weights.packing, 0 if self._draft is None else self._draft._weights.packing)
        if self._is_host:  # memory for packing is free again when pages of the cache and the arena are first written
            parts["packing"] = max(0, packing - cache - states - workspace)
            parts = {name: nbytes * num_ranks for name, nbytes in parts.items()} | host
            parts["process"] = self._resident + _SERVING_BYTES * num_ranks + self._resident * (num_ranks - 1)
            host = {}
        else:
            host |= {"packing": packing, "process": self._resident + _SERVING_BYTES}
        return MemoryEstimate(_without_zeros(parts), _without_zeros(host), weights.mapped)

    def _states_of_rank(self, cache: int, states: int) -> tuple[int, int]:
        """Return one rank's share of the bytes of blocks and of states: heads are divided if their number allows it."""
        plan, spec = self._compiled.step.plan, self._compiled.cache_spec
        state_names = spec.state_shapes.keys()
        bytes_of = {name: type.nbytes({}) for name, type in plan.states.items()}
        of_blocks = sum(nbytes for name, nbytes in bytes_of.items() if name not in state_names)
        whole = self._compiled.num_kv_blocks * spec.bytes_per_block
        whole_states = spec.num_slots * spec.bytes_per_slot
        return (
            cache * of_blocks // max(1, whole),
            states * (sum(bytes_of.values()) - of_blocks) // max(1, whole_states),
        )

    @cached_property
    def _resident(self) -> int:
        """The memory of the process, measured once what planning itself imports and reads is part of it."""
        if self._given_resident is not None:
            return self._given_resident
        _ = (self._weights, self._tokenizer, self._draft and self._draft._weights)
        return resident_bytes() or 0

    @cached_property
    def _weights(self) -> _WeightBytes:
        compiled = self._compiled
        plan, types = compiled.step.plan, compiled.parameter_types
        is_dummy = compiled.config.load_format == "dummy"
        infos = {} if is_dummy else self._infos()
        allocated = mapped = packing = 0
        for key, nbytes in constant_sizes(plan, types).items():
            constant = plan.constants[key]
            if constant.parameter in compiled.shared_parameters:
                continue
            type, info = types[constant.parameter], infos.get(stored_name(constant.parameter))
            is_same = info is None or (info.weight_format is None and info.dtype == type.dtype.numpy)
            if constant.pack is None and constant.weight_format is None and is_same and self._is_host:
                mapped += nbytes
            else:
                allocated += nbytes
                packing = max(packing, self._packing(constant, type, info, is_same=is_same))
        if not is_dummy:
            return _WeightBytes(allocated, mapped, packing)
        buffer = self._dummy_bytes()  # it is not freed before the model
        return _WeightBytes(allocated + buffer, 0, 0) if self._is_host else _WeightBytes(allocated, 0, buffer)

    def _infos(self) -> dict[str, TensorInfo]:
        """Return the descriptions of stored tensors by the names of parameters; none if they cannot be read."""
        try:
            stored = stored_tensors(self._compiled.source, self._compiled.model, self._compiled.parameter_types)
        except CheckpointError:  # without weights, or with damaged ones, loading raises the error
            return {}
        return {name: stored.info(name) for name in stored.names}

    def _packing(self, constant: Constant, type: TensorType, info: TensorInfo | None, *, is_same: bool) -> int:
        """Return the bytes besides the weight itself while it is packed or copied.

        `is_same` says whether it is stored in the dtype of the parameter. Pages of the mapped file do not count: the
        system drops them if memory is short.
        """
        stored = None if info is None else info.weight_format
        count, itemsize = prod(resolve(type.shape, {})), type.dtype.itemsize
        if stored is not None:
            return int((_BYTES_PER_DECODED_VALUE + (0 if constant.weight_format == stored else 4)) * count)
        if not self._is_host:
            return count * itemsize
        if constant.pack is None:  # a copy in another dtype is the weight itself
            return 0
        is_as_stored = is_same or constant.weight_format is not None
        is_rearranged = info is not None and stored_name(constant.parameter) not in self._stored_names
        return 0 if is_as_stored and not is_rearranged else count * itemsize

    @cached_property
    def _stored_names(self) -> frozenset[str]:
        return frozenset(self._compiled.source.names())

    def _dummy_bytes(self) -> int:
        """Return the size of the buffer of dummy weights."""
        from aethermind.checkpoint.dummy import buffer_bytes

        compiled = self._compiled
        names = compiled.parameter_types.keys() - compiled.computed.keys()
        shapes = {name: resolve(compiled.parameter_types[name].shape, {}) for name in names}
        return buffer_bytes(shapes, compiled.dtype.numpy)

    @cached_property
    def _adapters(self) -> int:
        adapters = self._compiled.adapters
        return 0 if adapters is None else 2 * sum(type.nbytes({}) for type in adapters.types.values())

    @cached_property
    def _tokenizer(self) -> int:
        try:
            return self._compiled.source.tokenizer_bytes()
        except AetherMindError:  # loading raises the error of a damaged tokenizer
            return 0

    def _workspace(self, symbols: Mapping[str, int], num_tokens: int) -> int:
        """Arena, inputs and the backend's workspace of the plain step, and of the adjusted one.

        Some inputs of the adjusted step are lists of the tokens of requests, which are no more than the cache holds.
        """
        compiled, backend = self._compiled, self._compiled.open_device.backend
        plan = compiled.step.plan
        if (
            self._is_host and compiled.generates
        ):  # a step has no more tokens than the cache: other pages are never written
            symbols = {**symbols, **{name: min(symbols[name], num_tokens) for name in ("T", "S", "R")}}
        key = tuple(symbols[name] for name in ("T", "S", "R"))
        if key not in self._arenas:
            is_own = all(symbols[name] == plan.symbols[name] for name in ("T", "S", "R"))
            graph, operators = compiled.step.graph, compiled.operators
            self._arenas[key] = plan.arena_bytes if is_own else plan_memory(graph, operators, symbols).arena_bytes
        arena = self._arenas[key]
        inputs = sum(type.nbytes(symbols) for type in plan.inputs.values())
        steps = (arena + inputs + backend.workspace_bytes(plan)) * (2 if compiled.config.prefill_stream else 1)
        if not compiled.generates:
            return steps
        lists = 4 * (min(symbols["X"], num_tokens) + symbols["Y"] + 2 * min(symbols["Z"], num_tokens))
        logits = 4 * symbols["R"] * compiled.model.config.vocab_size
        return steps + max(arena, 2 * logits) + inputs + lists  # the logits of the model, and the adjusted ones


def memory_limit(compiled: CompiledModel) -> int | None:
    """Return the bytes that a model may take on its device; None if they are unknown.

    That is the free memory, or the configuration's `memory` if it is less. In host memory the process is included.
    """
    backend = compiled.open_device.backend
    free = backend.free_memory()
    if free is not None and backend.capabilities.is_host_accessible:
        free += resident_bytes() or 0
    known = [limit for limit in (free, compiled.config.memory_bytes) if limit is not None]
    return min(known, default=None)


def _largest_fitting(fits: Callable[[int], bool], end: int) -> int:
    """Return the greatest number in [1, end) that fits, provided that all smaller ones fit; 0 if none does."""
    return bisect_left(range(1, end), True, key=lambda count: not fits(count))


def _without_zeros(parts: Mapping[str, int]) -> dict[str, int]:
    return {name: nbytes for name, nbytes in parts.items() if nbytes}
