"""Copies of whole KV blocks between tensors of one layout, merged into as few copies as possible."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from aethermind.hal.stream import Stream
from aethermind.hal.tensor import Tensor
from aethermind.hal.transfer import DataTransfer

__all__ = ["contiguous_runs", "copy_blocks"]


def contiguous_runs(sources: Sequence[int], destinations: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield (source, destination, count) of maximal runs in which both numbers ascend by one, for one copy each."""
    start = 0
    for end in range(1, len(sources) + 1):
        is_going_on = (
            end < len(sources)
            and sources[end] == sources[end - 1] + 1
            and destinations[end] == destinations[end - 1] + 1
        )
        if not is_going_on:
            yield sources[start], destinations[start], end - start
            start = end


def copy_blocks(
    transfer: DataTransfer,
    sources: Mapping[str, Tensor],
    destinations: Mapping[str, Tensor],
    runs: Iterable[tuple[int, int, int]],
    stream: Stream,
) -> None:
    """Enqueue copies of runs of blocks, (source, destination, count) each, on `stream`.

    Tensors are [num_blocks, …] and paired by name; those in host memory may have another number of blocks.
    """
    for first, first_destination, count in runs:
        for name, source in sources.items():
            destination = _rows(destinations[name], first_destination, count)
            transfer.copy_async(destination, _rows(source, first, count), stream)


def _rows(tensor: Tensor, first: int, count: int) -> Tensor:
    nbytes = tensor.nbytes // tensor.shape[0]
    return Tensor.of(tensor.buffer, tensor.dtype, (count, *tensor.shape[1:]), tensor.offset_bytes + first * nbytes)
