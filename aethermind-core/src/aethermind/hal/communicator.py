"""Collectives between the ranks of a model: the interface, and an implementation over shared host memory.

In the latter, each rank has two slots, used alternately, and a counter of the chunks that it has written. A collective
is: copy a chunk into the slot, increment the counter, wait until all counters are as high, read all slots. A slot is
written again two chunks later, when all ranks have counted the chunk in between and so have read this one: one wait per
chunk is enough. All ranks add up in the order of ranks, so sums have the same bits everywhere.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from aethermind.hal.stream import Stream
from aethermind.hal.tensor import Tensor

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["Communicator", "SharedMemoryCommunicator", "shared_file"]

Array = Any

_SLOT_BYTES = 1 << 20
_COUNTER_BYTES = 64
"""One counter per cache line: ranks that poll do not slow down the one that increments (no false sharing)."""
_SPINS = 100
_ON_WAIT_S = 0.005
"""The interval at which `on_wait` is called while a rank waits."""
_SLEEP_S = 0.0005

_FENCE = threading.Lock()


class Communicator(Protocol):
    """Collectives in stream order; every rank calls them in the same order with the same shapes. Optional in a backend.

    Without one, a backend serves models on one rank only.
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def all_reduce(self, tensor: Tensor, stream: Stream) -> None:
        """Sum `tensor` over all ranks, in place."""

    def all_gather(self, output: Tensor, part: Tensor, stream: Stream) -> None:
        """Concatenate every rank's `part` along the first axis into `output`."""

    def broadcast(self, tensor: Tensor, root: int, stream: Stream) -> None:
        """Copy `tensor` of rank `root` to every rank."""

    def barrier(self) -> None:
        """Return when every rank has called it."""


def shared_file(size: int) -> int:
    """Return a descriptor of new shared memory for `size` ranks. It has no name, and is freed with its last user."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryFile(dir=memory if memory.is_dir() else None) as file:
        file.truncate(size * (_COUNTER_BYTES + 2 * _SLOT_BYTES))
        return os.dup(file.fileno())


class SharedMemoryCommunicator:
    """One rank of `size` over the shared memory of a descriptor (see `shared_file`).

    Implements `Communicator`, and the same on arrays. `on_wait` is called periodically while a rank waits, for instance
    to check that the others are alive; what it raises ends the wait. Not safe to call from several threads at once.
    """

    def __init__(self, rank: int, size: int, descriptor: int, on_wait: Callable[[], None] = lambda: None) -> None:
        import numpy as np

        self.rank = rank
        self.size = size
        self._on_wait = on_wait
        whole = np.frombuffer(mmap.mmap(descriptor, 0), np.uint8)
        counters, slots = np.split(whole, [size * _COUNTER_BYTES])
        self._counters = counters.data.cast("Q")  # elements of it are read atomically
        self._slots = slots.reshape(size, 2, _SLOT_BYTES)
        self._num_chunks = 0

    def all_reduce(self, tensor: Tensor, stream: Stream) -> None:
        """Sum `tensor` over all ranks, in place."""
        stream.synchronize()
        self.sum(tensor.numpy())

    def all_gather(self, output: Tensor, part: Tensor, stream: Stream) -> None:
        """Concatenate every rank's `part` along the first axis into `output`."""
        stream.synchronize()
        self.gather(output.numpy().reshape(self.size, *part.shape), part.numpy())

    def broadcast(self, tensor: Tensor, root: int, stream: Stream) -> None:
        """Copy `tensor` of rank `root` to every rank."""
        stream.synchronize()
        for local, parts in self._chunks(_bytes_of(tensor.numpy())):
            local[:] = parts[root]

    def barrier(self) -> None:
        """Return when every rank has called it."""
        self._synchronize()

    def sum(self, array: Array) -> None:
        """Add up all ranks' arrays, in place: narrow floats are summed in float32 and rounded once."""
        import numpy as np

        wide = array.dtype if array.itemsize >= 4 else np.dtype(np.float32)
        for local, parts in self._chunks(_bytes_of(array)):
            terms = [part.view(array.dtype) for part in parts]
            total = terms[0].astype(wide)
            for term in terms[1:]:
                total += term
            local.view(array.dtype)[:] = total

    def gather(self, output: Array, part: Array) -> None:
        """Copy every rank's `part` to `output[rank]`; all have the same shape."""
        outputs = [_bytes_of(row) for row in output]
        done = 0
        for local, parts in self._chunks(_bytes_of(part)):
            for row, chunk in zip(outputs, parts, strict=True):
                row[done : done + len(local)] = chunk
            done += len(local)

    def _chunks(self, local: npt.NDArray[np.uint8]) -> Iterator[tuple[npt.NDArray[np.uint8], list[Any]]]:
        """Yield this rank's bytes chunk by chunk, each with the same chunk of all ranks."""
        for begin in range(0, len(local), _SLOT_BYTES):
            chunk = local[begin : begin + _SLOT_BYTES]
            slot = self._num_chunks % 2
            self._slots[self.rank, slot, : len(chunk)] = chunk
            self._synchronize()
            yield chunk, [self._slots[rank, slot, : len(chunk)] for rank in range(self.size)]

    def _synchronize(self) -> None:
        self._num_chunks += 1
        _fence()
        self._counters[self.rank * (_COUNTER_BYTES // 8)] = self._num_chunks
        for rank in range(self.size):
            if rank != self.rank:
                self._wait_for(rank)
        _fence()

    def _wait_for(self, rank: int) -> None:
        """Poll a few times, then yield the processor between polls, then sleep between them."""
        counters, place, wanted = self._counters, rank * (_COUNTER_BYTES // 8), self._num_chunks
        for _ in range(_SPINS):
            if counters[place] >= wanted:
                return
        asked = time.monotonic()
        pause_s = 0.0
        while counters[place] < wanted:
            time.sleep(pause_s)
            if time.monotonic() - asked > _ON_WAIT_S:
                self._on_wait()
                asked = time.monotonic()
                pause_s = _SLEEP_S


def _fence() -> None:
    """Issue a memory fence, by releasing and acquiring locks: earlier writes are visible before later ones."""
    with _FENCE:
        pass
    with _FENCE:
        pass


def _bytes_of(array: Array) -> Any:
    """Return the bytes of a contiguous array as a view."""
    import numpy as np

    assert array.flags.c_contiguous, "collectives take whole arrays"
    return array.reshape(-1).view(np.uint8)
