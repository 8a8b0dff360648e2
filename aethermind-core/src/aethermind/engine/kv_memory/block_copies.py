"""Copies of whole blocks between tensors of one layout."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aethermind.hal.stream import Stream
from aethermind.hal.tensor import Tensor
from aethermind.hal.transfer import DataTransfer

__all__ = ["copy_blocks"]


def copy_blocks(
    transfer: DataTransfer,
    sources: Mapping[str, Tensor],
    destinations: Mapping[str, Tensor],
    runs: Iterable[tuple[int, int, int]],
    stream: Stream,
) -> None:
    """Copy runs of blocks, (source, destination, count) each and one after another, in the order of `stream`.

    Tensors are [num_blocks, …] each, and paired by name; those of the host may have another number of blocks.
    """
    for first, first_destination, count in runs:
        for name, source in sources.items():
            destination = _rows(destinations[name], first_destination, count)
            transfer.copy_async(destination, _rows(source, first, count), stream)


def _rows(tensor: Tensor, first: int, count: int) -> Tensor:
    nbytes = tensor.nbytes // tensor.shape[0]
    return Tensor.of(tensor.buffer, tensor.dtype, (count, *tensor.shape[1:]), tensor.offset_bytes + first * nbytes)
