"""The memory that a model will take, part by part, from its compiled plan and the headers of its files.

No weight is read. The sizes of weights, KV cache and arena are exact, because the plan decides them. What the Python
process takes is measured: its resident memory now, and what serving adds to that (`_SERVING_BYTES`).
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
from aethermind.graph.constants import constant_sizes
from aethermind.graph.memory_plan import plan_memory
from aethermind.hal.host_memory import resident_bytes
from aethermind.ops.dims import resolve

if TYPE_CHECKING:
    from aethermind.checkpoint.source import TensorInfo
    from aethermind.engine.loading.compiled_model import CompiledModel
    from aethermind.graph.plan import Constant

__all__ = ["MemoryEstimate", "MemoryPlanner", "memory_limit"]

_SERVING_BYTES = 16 << 20
"""What the process takes beyond its memory at planning: modules, threads and requests."""
_BYTES_PER_CACHED_TOKEN = 48
"""Bookkeeping on the host of a token in the KV cache: its id in its request, and its share of a block's entry."""
_BYTES_PER_DECODED_VALUE = 1.25
"""Memory that a quantised tensor takes while it is read: codes of a byte, and scales."""


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes that a model takes at most, by part, on its device and in host memory beside it.

    `host` is empty where the device computes in host memory: all parts are in `device` then. `mapped_bytes` are read in
    place from mapped files, row by row, so the system may drop them; they are no part of the total. With several ranks
    the parts are those of all ranks on the machine.
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
        """The total in host memory beside the device."""
        return sum(self.host.values())


@dataclass(frozen=True, slots=True)
class _Weights:
    """Bytes of weights: allocated ones, those read in place from files, and the most that packing one takes."""

    allocated: int
    mapped: int
    packing: int


class MemoryPlanner:
    """Estimates the memory of a compiled model, with its own sizes and with others."""

    def __init__(self, compiled: CompiledModel, resident: int | None = None) -> None:
        """`resident` is the memory of the process before the model is loaded; None measures it."""
        self._compiled = compiled
        self._resident = (resident_bytes() or 0) if resident is None else resident
        self._draft = None if compiled.draft is None else MemoryPlanner(compiled.draft, 0)
        self._arenas: dict[tuple[int, ...], int] = {}

    def estimate(self, config: EngineConfig | None = None) -> MemoryEstimate:
        """Estimate the memory with the model's own sizes, or at least with those of another configuration.

        `config` may differ in `max_model_len`, `max_num_seqs` and `max_num_batched_tokens`; its KV cache holds one
        sequence of full length.
        """
        compiled = self._compiled
        if config is None:
            return self._of(self._own_kv, compiled.step.plan.symbols)
        kv = plan_one_sequence(config, compiled.dtype, compiled.model, compiled.open_device)
        num_eos = len(compiled.eos_token_ids)
        symbols = max_symbols(config, kv.max_model_len, kv.spec, compiled.model.config.vocab_size, num_eos)
        if compiled.is_encoder:
            symbols["R"] = symbols["T"]
        return self._of(kv, symbols)

    def num_fitting_blocks(self, limit: int) -> int:
        """The most KV blocks, up to those of the model, with which it takes at most `limit`; 0 if one is too many."""
        kv, symbols = self._own_kv, self._compiled.step.plan.symbols

        def fits(num_blocks: int) -> bool:
            return self._of(replace(kv, num_blocks=num_blocks), symbols).device_bytes <= limit

        return kv.num_blocks if fits(kv.num_blocks) else _last(fits, kv.num_blocks)

    def largest_context(self, limit: int) -> int:
        """The longest context, in whole blocks, with which the model takes at most `limit`; 0 if none is."""
        config, longest = self._compiled.config, self._compiled.model.config.max_position_embeddings
        block_size = self._compiled.cache_spec.block_size
        if self._fits(replace(config, max_model_len=longest), limit):
            return longest
        num_blocks = -(-longest // block_size)
        return block_size * _last(
            lambda count: self._fits(replace(config, max_model_len=count * block_size), limit), num_blocks
        )

    def largest_batch(self, limit: int) -> int:
        """The greatest `max_num_seqs`, at most that of the configuration, with which the model takes at most `limit`
        with its context; 0 if none does.
        """
        config = replace(self._compiled.config, max_model_len=self._compiled.max_model_len)
        return _last(lambda count: self._fits(replace(config, max_num_seqs=count), limit), config.max_num_seqs + 1)

    @property
    def _own_kv(self) -> KVPlan:
        compiled = self._compiled
        return KVPlan(compiled.cache_spec, compiled.num_kv_blocks, compiled.num_swap_blocks, compiled.max_model_len)

    def _fits(self, config: EngineConfig, limit: int) -> bool:
        return self.estimate(config).device_bytes <= limit

    @property
    def _is_host(self) -> bool:
        return self._compiled.open_device.backend.capabilities.is_host_accessible

    @property
    def _num_ranks(self) -> int:
        """Ranks in host memory, which share it; each GPU has its own."""
        return self._compiled.config.tensor_parallel_size if self._is_host else 1

    def _of(self, kv: KVPlan, symbols: Mapping[str, int]) -> MemoryEstimate:
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
        if self._is_host:  # what packing takes is free again when the cache and the arena are touched
            parts["packing"] = max(0, packing - cache - states - workspace)
            parts = {name: nbytes * num_ranks for name, nbytes in parts.items()} | host
            parts["process"] = self._resident + _SERVING_BYTES * num_ranks + self._resident * (num_ranks - 1)
            host = {}
        else:
            host |= {"packing": packing, "process": self._resident + _SERVING_BYTES}
        return MemoryEstimate(_present(parts), _present(host), weights.mapped)

    def _states_of_rank(self, cache: int, states: int) -> tuple[int, int]:
        """The shares of one rank of the bytes of blocks and states: heads are divided where their number allows it."""
        plan, spec = self._compiled.step.plan, self._compiled.cache_spec
        of_slots = spec.state_shapes.keys()
        own = {name: type.nbytes({}) for name, type in plan.states.items()}
        of_blocks = sum(nbytes for name, nbytes in own.items() if name not in of_slots)
        whole = self._compiled.num_kv_blocks * spec.bytes_per_block
        whole_states = spec.num_slots * spec.bytes_per_slot
        return (
            cache * of_blocks // max(1, whole),
            states * (sum(own.values()) - of_blocks) // max(1, whole_states),
        )

    @cached_property
    def _weights(self) -> _Weights:
        compiled = self._compiled
        plan, types = compiled.step.plan, compiled.parameter_types
        is_dummy = compiled.config.load_format == "dummy"
        infos = {} if is_dummy else self._infos()
        allocated = mapped = packing = 0
        for key, nbytes in constant_sizes(plan, types).items():
            constant = plan.constants[key]
            if constant.parameter in compiled.shared_parameters:
                continue
            type, info = types[constant.parameter], infos.get(constant.parameter)
            is_same = info is None or (info.weight_format is None and info.dtype == type.dtype.numpy)
            if constant.pack is None and constant.weight_format is None and is_same and self._is_host:
                mapped += nbytes
            else:
                allocated += nbytes
                packing = max(packing, self._packing(constant, prod(resolve(type.shape, {})), info, is_same=is_same))
        if not is_dummy:
            return _Weights(allocated, mapped, packing)
        buffer = self._dummy_bytes()  # which lives as long as the model
        return _Weights(allocated + buffer, 0, 0) if self._is_host else _Weights(allocated, 0, buffer)

    def _infos(self) -> dict[str, TensorInfo]:
        """The descriptions of stored tensors by the names of parameters; none if they cannot be read."""
        try:
            stored = stored_tensors(self._compiled.source, self._compiled.model, self._compiled.parameter_types)
        except CheckpointError:  # no weights yet, or broken ones, which loading reports
            return {}
        return {name: stored.info(name) for name in stored.names}

    def _packing(self, constant: Constant, count: int, info: TensorInfo | None, *, is_same: bool) -> int:
        """Bytes beside the weight on the device while it is packed or copied.

        Pages of the mapped file do not count: the system drops them where memory is short.
        """
        stored = None if info is None else info.weight_format
        itemsize = self._compiled.dtype.itemsize
        if stored is not None:
            return int((_BYTES_PER_DECODED_VALUE + (0 if constant.weight_format == stored else 4)) * count)
        if not self._is_host:
            return count * itemsize
        if constant.pack is None:  # a copy in another dtype is the weight itself
            return 0
        is_as_stored = is_same or constant.weight_format is not None
        is_rearranged = info is not None and constant.parameter not in self._stored_names
        return 0 if is_as_stored and not is_rearranged else count * itemsize

    @cached_property
    def _stored_names(self) -> frozenset[str]:
        return frozenset(self._compiled.source.names())

    def _dummy_bytes(self) -> int:
        """The buffer of dummy weights."""
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
        except AetherMindError:  # a broken one, which loading reports
            return 0

    def _workspace(self, symbols: Mapping[str, int], num_tokens: int) -> int:
        """Arena, inputs and the backend's workspace of the plain step, and of the adjusted one.

        The inputs of the adjusted step are lists of tokens that requests have seen, so of tokens in the cache.
        """
        compiled, backend = self._compiled, self._compiled.open_device.backend
        plan = compiled.step.plan
        if self._is_host and compiled.generates:  # a step has no more tokens than the cache: the rest is not touched
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
    """Bytes that the model may take on its device, its process included where that is host memory; None if unknown.

    They are what is free now with the process's own, at most the configuration's `memory`.
    """
    backend = compiled.open_device.backend
    free = backend.free_memory()
    if free is not None and backend.capabilities.is_host_accessible:
        free += resident_bytes() or 0
    known = [limit for limit in (free, compiled.config.memory_bytes) if limit is not None]
    return min(known, default=None)


def _last(fits: Callable[[int], bool], end: int) -> int:
    """The greatest number in [1, end) that fits, where smaller ones do as well; 0 if none does."""
    return bisect_left(range(1, end), True, key=lambda count: not fits(count))


def _present(parts: Mapping[str, int]) -> dict[str, int]:
    return {name: nbytes for name, nbytes in parts.items() if nbytes}
