"""Tensor parallelism when a model is loaded: the graphs and the weights of one rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from aethermind import env
from aethermind.errors import InvalidArgumentError
from aethermind.graph.builder import stored_name
from aethermind.graph.ir import Graph
from aethermind.graph.tensor_parallel import (
    CollectiveKernels,
    Share,
    StateShards,
    WeightShard,
    split_graph,
    without_outputs,
)
from aethermind.graph.tensor_parallel.share import slice_along
from aethermind.hal.topology import host_topology
from aethermind.ops.operator import OperatorRegistry
from aethermind.ops.schema import TensorType
from aethermind.ops.weight_format import (
    FP8,
    QuantizedWeight,
    WeightFormat,
    is_fp8_in_blocks,
    one_level_format,
    without_super_blocks,
)
from aethermind.runtime import OpenDevice

if TYPE_CHECKING:
    from aethermind.checkpoint.source import TensorInfo, TensorSource

__all__ = ["PartialTensors", "TensorParallel", "num_threads_of"]


@dataclass(frozen=True, slots=True)
class TensorParallel:
    """One tensor-parallel rank: its share of every graph, and the kernels of its collectives. `divide` changes it.

    Attributes:
        parts: the parameters of the graphs divided so far, by their names in those graphs.
        state_shards: how the states of the graphs are divided among ranks, by name; other states are not divided.
        of_rank_0: the types of parameters that only rank 0 reads, such as biases of summed outputs.
    """

    share: Share
    operators: OperatorRegistry
    kernels: CollectiveKernels
    parts: dict[str, WeightShard] = field(default_factory=dict)
    state_shards: dict[str, StateShards] = field(default_factory=dict)
    of_rank_0: dict[str, TensorType] = field(default_factory=dict)

    @classmethod
    def of(cls, share: Share, operators: OperatorRegistry) -> Self:
        """Create the state of a rank; `operators` include the collectives."""
        return cls(share, operators, CollectiveKernels(share))

    def with_collective_kernels(self, opened: OpenDevice) -> OpenDevice:
        """Add the collectives' kernels to a device whose memory the host can access."""
        if not opened.backend.capabilities.is_host_accessible:
            return opened
        return replace(opened, dispatcher=opened.dispatcher.with_kernels(self.kernels.of(opened.backend.name)))

    def divide(self, graph: Graph) -> Graph:
        """Return this rank's part of a graph. Ranks 1 and up compute only the inputs of collectives, and have no
        outputs.
        """
        split = split_graph(graph, self.operators, self.share)
        self.parts.update(split.weight_shards)
        self.state_shards.update(split.state_shards)
        shards = split.weight_shards.values()
        read = {value.name for value in split.graph.parameters} | {shard.parameter for shard in shards}
        self.of_rank_0.update({value.name: value.type for value in graph.parameters if value.name not in read})
        return without_outputs(split.graph) if self.share.rank else split.graph

    def formats(self, stored: Mapping[str, WeightFormat]) -> dict[str, WeightFormat]:
        """Return the formats of a checkpoint's tensors, and of this rank's parts of them."""
        of_parts = {
            name: _format_of(stored[part.parameter], part)
            for name, part in self.parts.items()
            if part.parameter in stored
        }
        return {**stored, **of_parts}


class PartialTensors:
    """A checkpoint that also has a rank's parts of tensors under their own names; implements `TensorSource`.

    A part of a mapped tensor is a view, so that the rest is not read. A part of rows that are not contiguous is a copy.
    """

    def __init__(self, source: TensorSource, parts: Mapping[str, WeightShard]) -> None:
        self._source = source
        self._parts = parts

    @property
    def names(self) -> tuple[str, ...]:
        """The names in the checkpoint."""
        return self._source.names

    @property
    def total_bytes(self) -> int:
        """Size of all values in the checkpoint."""
        return self._source.total_bytes

    def info(self, name: str) -> TensorInfo:
        """Describe a tensor of the checkpoint. Raises CheckpointError for an unknown name."""
        return self._source.info(name)

    def array(self, name: str) -> Any:
        """Return the values of a tensor or a part. InvalidArgumentError if a part ends within a quantisation block."""
        part = self._parts.get(name)
        if part is None:
            return self._source.array(name)
        return _slice_weight(self._source.array(stored_name(part.parameter)), part)


def num_threads_of(num_threads: int | None, num_ranks: int) -> int | None:
    """Return the number of worker threads of a rank; the ranks on this machine share its cores."""
    if num_ranks == 1 or num_threads is not None or env.num_threads():
        return num_threads
    return max(1, host_topology().num_default_threads // num_ranks)


def _format_of(format: WeightFormat, part: WeightShard) -> WeightFormat:
    """Return the format of a part of a weight.

    A part that begins within a super-block gets a format with one level of scales and offsets. A part that begins or
    may end within a block of FP8 gets a scale for each row.
    """
    if part.axis % 2 == 0:
        return format
    if is_fp8_in_blocks(format) and (part.begin % format.block or part.end % format.block):
        return FP8
    if not format.super_block_size or part.begin % format.super_block_size == 0:
        return format
    return one_level_format(format)


def _slice_weight(weight: Any, part: WeightShard) -> Any:
    if not isinstance(weight, QuantizedWeight):
        return part.of(weight)
    part_format = _format_of(weight.format, part)
    if part_format == FP8 != weight.format:
        weight = FP8.quantize(weight.format.dequantize(weight))
    elif part_format != weight.format:
        weight = without_super_blocks(weight)
    if part.is_scattered:
        return weight.take_rows(part.indices(len(weight.codes)))
    format, axis = weight.format, part.axis % 2
    begin, end = part.begin, part.end
    codes = slice_along(weight.codes, axis, begin, end)
    if axis and format.block:
        if begin % format.block or (end % format.block and end != weight.codes.shape[1]):
            raise InvalidArgumentError(
                f"{format.block} of its values share a scale, and a part of {end - begin} columns ends within such a "
                "block. Choose another tensor_parallel_size."
            )
        begin, end = begin // format.block, -(-end // format.block)
    elif axis:
        begin, end = 0, weight.scales.shape[1]

    def slice_per_block(values: Any) -> Any:
        return None if values is None else slice_along(values, axis, begin, end)

    scales, zeros, offsets = (slice_per_block(values) for values in (weight.scales, weight.zeros, weight.offsets))
    super_block_scales = weight.super_block_scales
    if super_block_scales is not None:
        blocks_per_super_block = format.super_block_size // format.block
        if axis:
            begin, end = begin // blocks_per_super_block, -(-end // blocks_per_super_block)
        super_block_scales = slice_along(super_block_scales, axis, begin, end)
    return QuantizedWeight(format, codes, scales, zeros, offsets, super_block_scales)
