"""A view of a checkpoint in which the weights of a layer's experts are one matrix per projection.

Graphs declare the experts of a projection as a stack [E · N, K], expert after expert. Checkpoints store one tensor
[N, K] per expert, or one fused tensor [E, ...] for all, in which gate and up projections may share the rows, or the
matrices may be transposed. Quantised experts are stacked in their own format. A projection with a matrix
for each attention head is a stack, too; `HeadSlice` takes rows of every head.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from aethermind.checkpoint.remapped import RemappedTensors, StoredRows
from aethermind.checkpoint.source import StoredTensors, TensorInfo
from aethermind.errors import CheckpointError
from aethermind.hal.mapped import drop_mapped_pages
from aethermind.ops.weight_format import QuantizedWeight

__all__ = ["FusedSlice", "HeadSlice", "StackedTensors", "TensorStack", "expert_stacks"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class TensorStack:
    """A model's tensor that is the rows of several stored tensors, one after the other; of one, it is only renamed."""

    stored_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FusedSlice:
    """A model's tensor [E · N, K] as a slice of a stored one with a matrix for each expert.

    The stored tensor is [E, rows, K], or [E, K, rows] if `is_transposed`; N of its rows, from `begin` to `end` in steps
    of `step`, are taken for each expert. A fused bias is [E, rows], and the model's is [E · N]. A quantised tensor that
    is described as [E, rows, K] is read as a matrix [E · rows, K] (`checkpoint.float_formats`); it is not transposed.
    """

    stored_name: str
    begin: int = 0
    end: int | None = None
    step: int = 1
    is_transposed: bool = False

    @property
    def rows(self) -> slice:
        """The rows that are taken for each expert."""
        return slice(self.begin, self.end, self.step)


@dataclass(frozen=True, slots=True)
class HeadSlice:
    """A model's tensor as the same rows of every head's matrix in a stored stack [H · M, K].

    Rows `begin` to `end`, N in all, are taken of each head: [H · N, K], or with `is_transposed` their transposes
    [H · K, N]. Transposes of a quantised tensor are float16, since scales belong to rows.
    """

    stored_name: str
    num_heads: int
    begin: int = 0
    end: int | None = None
    is_transposed: bool = False


class StackedTensors:
    """A checkpoint whose tensors are `stacks` of stored tensors, and the stored tensors that no stack uses.

    Implements `StoredTensors`. Immutable.
    """

    def __init__(
        self,
        stored: StoredTensors,
        stacks: Mapping[str, TensorStack | FusedSlice | HeadSlice],
        num_layers: int | None = None,
    ) -> None:
        """Stacks whose stored tensors are missing are left out: `match_names` reports them.

        Tensors `model.layers.{n}.…` of layers from number `num_layers` on are left out, such as those of MTP layers.
        """
        stored_names = set(stored.names)
        self.stored = stored
        self._stacks = {name: stack for name, stack in stacks.items() if stored_names.issuperset(_names_of(stack))}
        used = {name for stack in stacks.values() for name in _names_of(stack)}
        self._unstacked_names = {
            name for name in stored_names - used if num_layers is None or _layer_of(name) < num_layers
        }

    @property
    def names(self) -> tuple[str, ...]:
        return (*(name for name in self.stored.names if name in self._unstacked_names), *self._stacks)

    @property
    def total_bytes(self) -> int:
        return sum(self.info(name).num_bytes for name in self.names)

    @property
    def paths(self) -> tuple[Path, ...]:
        return self.stored.paths

    @property
    def zero_bias_names(self) -> tuple[str, ...]:
        return self.stored.zero_bias_names

    def info(self, name: str) -> TensorInfo:
        """Describe a tensor; CheckpointError for an unknown name, and for experts of different shapes or dtypes."""
        stack = self._stacks.get(name)
        if isinstance(stack, FusedSlice):
            return self._info_of_fused(stack)
        if isinstance(stack, HeadSlice):
            return self._info_of_heads(stack)
        return self._unstacked_info(name) if stack is None else self._info_of_stack(stack)

    def array(self, name: str) -> Array | QuantizedWeight:
        """Return a tensor's values. A stack is copied expert by expert; mapped pages of the files are dropped."""
        stack = self._stacks.get(name)
        if stack is None:
            self._unstacked_info(name)
            return self.stored.array(name)
        if isinstance(stack, FusedSlice):
            return self._read_fused(stack)
        if isinstance(stack, HeadSlice):
            return self._read_heads(stack)
        if len(stack.stored_names) == 1:
            return self.stored.array(stack.stored_names[0])
        info = self._info_of_stack(stack)
        return self._read_dense(stack, info) if info.weight_format is None else self._read_same_format(stack, info)

    def stored_rows(self, name: str) -> StoredRows | None:
        """Return the stored matrix that a tensor is; None for stacks of several experts, and for an unknown name."""
        if name in self._unstacked_names:
            return StoredRows(name)
        stack = self._stacks.get(name)
        names = stack.stored_names if isinstance(stack, TensorStack) else ()
        return StoredRows(names[0]) if len(names) == 1 else None

    def stored_matrices(self, name: str) -> tuple[str, ...]:
        """Return the stored matrices of which a tensor consists, one for each expert; none for fused experts and
        heads.
        """
        if name in self._unstacked_names:
            return (name,)
        stack = self._stacks.get(name)
        return stack.stored_names if isinstance(stack, TensorStack) else ()

    def _unstacked_info(self, name: str) -> TensorInfo:
        if name not in self._unstacked_names:
            raise CheckpointError(f"The checkpoint has no tensor {name!r}.")
        return self.stored.info(name)

    def _info_of_stack(self, stack: TensorStack) -> TensorInfo:
        infos = [self.stored.info(name) for name in stack.stored_names]
        first = infos[0]
        if len(infos) == 1:
            return first
        for name, info in zip(stack.stored_names, infos, strict=True):
            has_same_dtype = info.weight_format or first.weight_format or info.dtype_name == first.dtype_name
            if info.shape != first.shape or not info.shape or not has_same_dtype:
                this_name, first_name = (
                    _name_in_files(self.stored, expert) for expert in (name, stack.stored_names[0])
                )
                raise CheckpointError(
                    f"{this_name} is {info.dtype_name} {list(info.shape)}, where {first_name} is "
                    f"{first.dtype_name} {list(first.shape)}: experts of a layer are alike. Fetch the weights again."
                )
        shape = (len(infos) * first.shape[0], *first.shape[1:])
        if len({info.weight_format for info in infos}) > 1:
            return TensorInfo("F16", shape, 0, 2 * prod(shape))
        return replace(first, shape=shape, begin=0, end=sum(info.num_bytes for info in infos))

    def _info_of_fused(self, stack: FusedSlice) -> TensorInfo:
        stored = self.stored.info(stack.stored_name)
        is_quantised = stored.weight_format is not None
        ranks = (3,) if stack.is_transposed or is_quantised else (2, 3)
        if len(stored.shape) not in ranks or (is_quantised and stack.is_transposed):
            raise CheckpointError(
                f"{stack.stored_name} {list(stored.shape)} is not a tensor of plain numbers with a matrix for each "
                "expert, which this architecture reads. Take the model unquantised."
            )
        num_experts, *matrix = stored.shape
        rows, *columns = reversed(matrix) if stack.is_transposed else matrix
        shape = (num_experts * len(range(rows)[stack.rows]), *columns)
        num_bytes = stored.num_bytes * prod(shape) // max(prod(stored.shape), 1)
        return replace(stored, shape=shape, begin=0, end=num_bytes)

    def _read_fused(self, stack: FusedSlice) -> Array | QuantizedWeight:
        info = self._info_of_fused(stack)
        values = self.stored.array(stack.stored_name)
        if isinstance(values, QuantizedWeight):
            num_experts, num_rows, _ = self.stored.info(stack.stored_name).shape
            rows = np.arange(num_experts * num_rows).reshape(num_experts, num_rows)[:, stack.rows]
            return values if rows.size == len(values.codes) else values.take_rows(rows.reshape(-1))
        matrices = (values.swapaxes(1, 2) if stack.is_transposed else values)[:, stack.rows]
        stacked = matrices.reshape(info.shape)
        if not np.shares_memory(stacked, values):
            drop_mapped_pages(values)
        return stacked

    def _info_of_heads(self, stack: HeadSlice) -> TensorInfo:
        stored = self.stored.info(stack.stored_name)
        if len(stored.shape) != 2 or stored.shape[0] % stack.num_heads:
            raise CheckpointError(
                f"{stack.stored_name} {list(stored.shape)} is not a matrix for each of {stack.num_heads} heads. Check "
                "that config.json and the weights belong to the same model."
            )
        num_rows, num_columns = len(range(stored.shape[0] // stack.num_heads)[stack.begin : stack.end]), stored.shape[1]
        num_bytes = stored.num_bytes * num_rows * stack.num_heads // max(stored.shape[0], 1)
        if not stack.is_transposed:
            return replace(stored, shape=(stack.num_heads * num_rows, num_columns), begin=0, end=num_bytes)
        shape = (stack.num_heads * num_columns, num_rows)
        if stored.weight_format is not None:
            return TensorInfo("F16", shape, 0, 2 * prod(shape))
        return replace(stored, shape=shape, begin=0, end=num_bytes)

    def _read_heads(self, stack: HeadSlice) -> Array | QuantizedWeight:
        info, values = self._info_of_heads(stack), self.stored.array(stack.stored_name)
        rows = np.arange(len(values) if isinstance(values, np.ndarray) else values.shape[0])
        rows = rows.reshape(stack.num_heads, -1)[:, stack.begin : stack.end]
        if isinstance(values, QuantizedWeight):
            taken = values.take_rows(rows.ravel())
            if not stack.is_transposed:
                return taken
            values, rows = taken.format.dequantize(taken, "float16"), np.arange(rows.size).reshape(rows.shape)
        matrices = values[rows]
        stacked: Array = (matrices.swapaxes(1, 2) if stack.is_transposed else matrices).reshape(info.shape)
        return stacked

    def _read_dense(self, stack: TensorStack, info: TensorInfo) -> Array:
        stacked: Array | None = None
        for rows, stored in self._by_rows(stack, info.shape[0]):
            is_quantised = isinstance(stored, QuantizedWeight)
            values = stored.format.dequantize(stored, "float16") if is_quantised else stored
            if stacked is None:
                stacked = np.empty(info.shape, values.dtype)
            stacked[rows] = values
        assert stacked is not None, "a stack has experts"
        return stacked

    def _read_same_format(self, stack: TensorStack, info: TensorInfo) -> Array | QuantizedWeight:
        """Stack tensors of one weight format; their dense values if the stored tensors are read dequantised."""
        assert info.weight_format is not None
        arrays: dict[str, Array] = {}
        names = [field.name for field in fields(QuantizedWeight) if field.name != "format"]
        for rows, values in self._by_rows(stack, info.shape[0]):
            if not isinstance(values, QuantizedWeight):
                return self._read_dense(stack, info)
            for name in names:
                part = getattr(values, name)
                if part is None:
                    continue
                if name not in arrays:
                    arrays[name] = np.empty((info.shape[0], *part.shape[1:]), part.dtype)
                arrays[name][rows] = part
        return QuantizedWeight(info.weight_format, **arrays)

    def _by_rows(self, stack: TensorStack, num_rows: int) -> Iterator[tuple[slice, Any]]:
        """Yield the rows of each stored tensor in the stack, and its values; mapped pages are dropped after each."""
        rows_per_expert = num_rows // len(stack.stored_names)
        for number, name in enumerate(stack.stored_names):
            values = self.stored.array(name)
            yield slice(number * rows_per_expert, (number + 1) * rows_per_expert), values
            if not isinstance(values, QuantizedWeight):
                drop_mapped_pages(values)


def _names_of(stack: TensorStack | FusedSlice | HeadSlice) -> tuple[str, ...]:
    return stack.stored_names if isinstance(stack, TensorStack) else (stack.stored_name,)


def _layer_of(name: str) -> int:
    """The number of the layer that a tensor belongs to; -1 for a tensor outside of layers."""
    match = re.match(r"model\.layers\.(\d+)\.", name)
    return int(match[1]) if match else -1


_GATE, _UP, _DOWN = "gate_proj", "up_proj", "down_proj"
_GATE_UP = "gate_up_proj"


def expert_stacks(
    stored: StoredTensors,
    modules: Mapping[str, str],
    num_experts: int,
    projections: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, TensorStack | FusedSlice | HeadSlice]:
    """Return the stacks of experts: `{module}.gate_proj.weight`, `up_proj` and `down_proj` for each of the `modules`.

    `modules` maps the graph's names of experts (`model.layers.0.mlp.experts`) to those of the checkpoint, which stores
    tensors `{stored module}.{expert}.gate_proj.weight`, or the fused tensors `{stored module}.gate_up_proj` [E, 2 · I,
    D] and `down_proj` [E, D, I]. `projections` maps names of projections to those of the checkpoint, if these differ.
    Experts that are stored in neither way are left out: they are stacks already, or `match_names` reports them.

    CheckpointError names the first tensor that is missing where a layer has some of its experts.
    """
    names = set(stored.names)
    stacks: dict[str, TensorStack | FusedSlice | HeadSlice] = {}
    for module, stored_module in modules.items():
        for name in (_GATE, _UP, _DOWN):
            stored_name = projections.get(name, name)
            experts = tuple(f"{stored_module}.{expert}.{stored_name}.weight" for expert in range(num_experts))
            missing = [expert for expert, expert_name in enumerate(experts) if expert_name not in names]
            if not missing:
                stacks[f"{module}.{name}.weight"] = TensorStack(experts)
            elif len(missing) < num_experts:
                present = next(expert for expert in range(num_experts) if expert not in missing)
                before, _, after = _name_in_files(stored, experts[present]).rpartition(f".{present}.")
                raise CheckpointError(
                    f"The checkpoint has no tensor '{before}.{missing[0]}.{after}', but others of the {num_experts} "
                    "experts of that layer. Fetch the weights again, and check the number of experts in config.json."
                )
        fused, down = f"{stored_module}.{_GATE_UP}", f"{stored_module}.{_DOWN}"
        if {fused, down} <= names:
            half = stored.info(fused).shape[1] // 2
            stacks[f"{module}.{_GATE}.weight"] = FusedSlice(fused, end=half)
            stacks[f"{module}.{_UP}.weight"] = FusedSlice(fused, begin=half)
            stacks[f"{module}.{_DOWN}.weight"] = FusedSlice(down)
    return stacks


def _name_in_files(stored: StoredTensors, name: str) -> str:
    """The name that a tensor of `stored`, which may be a view with other names, has in the checkpoint's files."""
    while isinstance(stored, RemappedTensors) and (rows := stored.stored_rows(name)) is not None:
        name, stored = rows.stored_name, stored.stored
    return name
