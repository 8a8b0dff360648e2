"""Asynchronous swapping: blocks move out of device memory and back on a stream of their own, ordered by events.

A move begins when the steps before it have run, because these may write the blocks that it reads, or read the blocks
that it writes. A step waits, on the device, only for moves of its own blocks; other steps run concurrently with the
move. The host does not wait.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from typing import NamedTuple

from aethermind.errors import DeviceError
from aethermind.hal.stream import Event, Stream
from aethermind.hal.tensor import Tensor
from aethermind.hal.transfer import DataTransfer
from aethermind.runtime import OpenDevice

__all__ = ["SwapStream", "contiguous_runs", "copy_blocks"]


def contiguous_runs(sources: Sequence[int], destinations: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield (source, destination, count) of maximal runs in which both numbers ascend by one, for one copy each."""
    start = 0
    for end in range(1, len(sources) + 1):
        is_contiguous = (
            end < len(sources)
            and sources[end] == sources[end - 1] + 1
            and destinations[end] == destinations[end - 1] + 1
        )
        if not is_contiguous:
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


_BLOCKS_PER_EVENT = 8
"""Number of blocks with one event: the first blocks of a preempted sequence can be reused while others still move."""


class _Move(NamedTuple):
    """Device blocks in flight, with the events before and after the copy."""

    blocks: frozenset[int]
    started: Event
    done: Event


class SwapStream:
    """A `BlockMover` whose calls return at once; `on_moved(num_bytes, seconds)` reports the device time of each move.

    One thread moves and calls `collect_finished`; any thread may call `make_wait`.
    """

    def __init__(
        self,
        opened: OpenDevice,
        on_device: Mapping[str, Tensor],
        on_host: Mapping[str, Tensor],
        on_moved: Callable[[int, float], None],
    ) -> None:
        self._backend = opened.backend
        self._on_device = on_device
        self._on_host = on_host
        self._on_moved = on_moved
        self._block_bytes = sum(tensor.nbytes // tensor.shape[0] for tensor in on_device.values())
        self._stream = opened.backend.streams.create(opened.device.index)
        self._step_stream = opened.backend.streams.default(opened.device.index)
        self._moves: deque[_Move] = deque()
        # An engine may be dropped without `close` while blocks are in flight, so the source and destination memory is
        # held until the copies have finished. At exit the memory is not freed anyway.
        weakref.finalize(self, _await_moves, self._stream, on_device, on_host).atexit = False

    def move_out(self, blocks: Sequence[int], host_blocks: Sequence[int]) -> None:
        """Enqueue a copy of each of the device's `blocks` to the host block at the same index."""
        self._move(self._on_device, self._on_host, blocks, host_blocks, blocks)

    def move_in(self, host_blocks: Sequence[int], blocks: Sequence[int]) -> None:
        """Enqueue a copy of each of `host_blocks` to the device block at the same index."""
        self._move(self._on_host, self._on_device, host_blocks, blocks, blocks)

    @property
    def is_busy(self) -> bool:
        """Whether moves may be in flight."""
        return bool(self._moves)

    def collect_finished(self) -> None:
        """Remove the moves that have finished, and report their times."""
        while self._moves and self._moves[0].done.query():
            blocks, started, done = self._moves.popleft()
            self._on_moved(len(blocks) * self._block_bytes, started.elapsed_ms(done) / 1e3)

    def make_wait(self, stream: Stream, blocks: Set[int] | None = None) -> None:
        """Make `stream` wait for the moves of `blocks`, or for all moves."""
        for move in tuple(self._moves):
            if blocks is None or not move.blocks.isdisjoint(blocks):
                stream.wait_event(move.done)

    def _move(
        self,
        sources: Mapping[str, Tensor],
        destinations: Mapping[str, Tensor],
        source_blocks: Sequence[int],
        destination_blocks: Sequence[int],
        blocks: Sequence[int],
    ) -> None:
        events, stream = self._backend.events, self._stream
        steps_done = events.create()
        steps_done.record(self._step_stream)
        stream.wait_event(steps_done)
        for begin in range(0, len(blocks), _BLOCKS_PER_EVENT):
            end = begin + _BLOCKS_PER_EVENT
            runs = contiguous_runs(source_blocks[begin:end], destination_blocks[begin:end])
            started, done = events.create(timing=True), events.create(timing=True)
            started.record(stream)
            copy_blocks(self._backend.transfer, sources, destinations, runs, stream)
            done.record(stream)
            self._moves.append(_Move(frozenset(blocks[begin:end]), started, done))


def _await_moves(stream: Stream, *memory: Mapping[str, Tensor]) -> None:
    """Wait for the moves in flight before their `memory` is freed."""
    with suppress(DeviceError):
        stream.synchronize()
    del memory
