"""Collectives between processes on one machine, through memory that they share.

Each rank has two slots, used in turn, and a counter of the pieces that it has put there. A collective is: copy a piece
into the slot, count, wait until everybody has counted as far, read all slots. A slot is written again two pieces later,
when everybody has counted the piece in between, and so has read this one: one wait a piece is enough. All ranks add up
in the order of ranks, so sums have the same bits everywhere.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aethermind.hal.stream import Stream
from aethermind.hal.tensor import Tensor

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["SharedMemoryCommunicator", "shared_file"]

Array = Any

_SLOT_BYTES = 1 << 20
_COUNTER_BYTES = 64
"""A counter a cache line: ranks that wait do not slow down the one that counts."""
_SPINS = 100
_ALARM_S = 0.005
"""After so long a wait, and then as often, it is asked whether the others live."""
_SLEEP_S = 0.0005

_FENCE = threading.Lock()


def shared_file(size: int) -> int:
    """A descriptor of new memory for `size` ranks, which other processes are given; it has no name and ends with the
    last of them.
    """
    memory = Path("/dev/shm")
    with tempfile.TemporaryFile(dir=memory if memory.is_dir() else None) as file:
        file.truncate(size * (_COUNTER_BYTES + 2 * _SLOT_BYTES))
        return os.dup(file.fileno())


class SharedMemoryCommunicator:
    """One rank of `size` over the memory behind a descriptor (see `shared_file`), which it takes a copy of.

    Implements `hal.Communicator`, and the same on arrays. `on_wait` is called now and then while a rank waits; what it
    raises ends the wait. Not safe to call from several threads at once.
    """

    def __init__(self, rank: int, size: int, descriptor: int, on_wait: Callable[[], None] = lambda: None) -> None:
        import numpy as np

        self.rank = rank
        self.size = size
        self._on_wait = on_wait
        whole = np.frombuffer(mmap.mmap(descriptor, 0), np.uint8)
        counters, slots = np.split(whole, [size * _COUNTER_BYTES])
        self._counters = counters.data.cast("Q")  # an element of it is read in one piece
        self._slots = slots.reshape(size, 2, _SLOT_BYTES)
        self._num_pieces = 0

    def all_reduce(self, tensor: Tensor, stream: Stream) -> None:
        """Sum `tensor` over all ranks, in place."""
        stream.synchronize()
        self.sum(tensor.numpy())

    def all_gather(self, output: Tensor, part: Tensor, stream: Stream) -> None:
        """Join every rank's `part` along the first axis into `output`."""
        stream.synchronize()
        self.gather(output.numpy().reshape(self.size, *part.shape), part.numpy())

    def broadcast(self, tensor: Tensor, root: int, stream: Stream) -> None:
        """Copy `tensor` of rank `root` to every rank."""
        stream.synchronize()
        for own, parts in self._pieces(_bytes_of(tensor.numpy())):
            own[:] = parts[root]

    def barrier(self) -> None:
        """Return when every rank is here."""
        self._meet()

    def sum(self, array: Array) -> None:
        """Add up all ranks' arrays, in place: narrow floats in float32, and rounded once."""
        import numpy as np

        wide = array.dtype if array.itemsize >= 4 else np.dtype(np.float32)
        for own, parts in self._pieces(_bytes_of(array)):
            terms = [part.view(array.dtype) for part in parts]
            total = terms[0].astype(wide)
            for term in terms[1:]:
                total += term
            own.view(array.dtype)[:] = total

    def gather(self, output: Array, part: Array) -> None:
        """`output[rank]` becomes every rank's `part`; all have the same shape."""
        into = [_bytes_of(row) for row in output]
        done = 0
        for own, parts in self._pieces(_bytes_of(part)):
            for row, piece in zip(into, parts, strict=True):
                row[done : done + len(own)] = piece
            done += len(own)

    def _pieces(self, own: npt.NDArray[np.uint8]) -> Iterator[tuple[npt.NDArray[np.uint8], list[Any]]]:
        """This rank's bytes piece by piece, each with what all ranks have there."""
        for begin in range(0, len(own), _SLOT_BYTES):
            piece = own[begin : begin + _SLOT_BYTES]
            turn = self._num_pieces % 2
            self._slots[self.rank, turn, : len(piece)] = piece
            self._meet()
            yield piece, [self._slots[rank, turn, : len(piece)] for rank in range(self.size)]

    def _meet(self) -> None:
        self._num_pieces += 1
        _order_memory()
        self._counters[self.rank * (_COUNTER_BYTES // 8)] = self._num_pieces
        for rank in range(self.size):
            if rank != self.rank:
                self._wait_for(rank)
        _order_memory()

    def _wait_for(self, rank: int) -> None:
        """Look a few times, then let others have the processor, then sleep between looks."""
        counters, place, wanted = self._counters, rank * (_COUNTER_BYTES // 8), self._num_pieces
        for _ in range(_SPINS):
            if counters[place] >= wanted:
                return
        asked = time.monotonic()
        pause_s = 0.0
        while counters[place] < wanted:
            time.sleep(pause_s)
            if time.monotonic() - asked > _ALARM_S:
                self._on_wait()
                asked = time.monotonic()
                pause_s = _SLEEP_S


def _order_memory() -> None:
    """What was written before is seen by others before what is written after: a lock let go and taken again."""
    with _FENCE:
        pass
    with _FENCE:
        pass


def _bytes_of(array: Array) -> Any:
    """The bytes of a contiguous array as a view."""
    import numpy as np

    assert array.flags.c_contiguous, "collectives take whole arrays"
    return array.reshape(-1).view(np.uint8)
