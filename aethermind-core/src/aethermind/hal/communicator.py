"""Collectives between the ranks of a model: the interface, and an implementation over shared host memory.

In shared memory, each rank has two slots, used alternately, and a counter of the chunks that it has written. For each
chunk of a collective, a rank copies its bytes into its slot, increments its counter, waits until the counters of all
ranks are as high, and reads all slots. It writes to the same slot again two chunks later. By then all ranks have
counted the chunk in between, so they have read this one: one wait per chunk is enough. All ranks add in the order of
ranks, so sums have the same bits on all of them.
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
_NUM_SPINS = 100
"""Polls without a pause, before the first one that yields the processor."""
_ON_WAIT_INTERVAL_S = 0.005
"""The interval at which `on_wait` is called while a rank waits."""
_POLL_INTERVAL_S = 0.0005
"""The pause between two polls after `on_wait` was called once."""

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
    """Return a file descriptor of new shared memory for `size` ranks. It has no name; its last user frees it."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryFile(dir=memory if memory.is_dir() else None) as file:
        file.truncate(size * (_COUNTER_BYTES + 2 * _SLOT_BYTES))
        return os.dup(file.fileno())


class SharedMemoryCommunicator:
    """One rank of `size` over the shared memory of a descriptor (see `shared_file`).

    Implements `Communicator` on tensors in host memory; `sum` and `gather` do the same on NumPy arrays. `on_wait` is
    called periodically while a rank waits, for instance to check that the others are alive; an exception that it raises
    ends the wait. Not safe to call from several threads at once.
    """

    def __init__(self, rank: int, size: int, descriptor: int, on_wait: Callable[[], None] = lambda: None) -> None:
        import numpy as np

        self.rank = rank
        self.size = size
        self._on_wait = on_wait
        memory = np.frombuffer(mmap.mmap(descriptor, 0), np.uint8)
        counters, slots = np.split(memory, [size * _COUNTER_BYTES])
        self._counters = counters.data.cast("Q")  # aligned elements of 8 bytes are read and written atomically
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
        """Sum the arrays of all ranks, in place: narrower floats are summed in float32 and rounded once."""
        import numpy as np

        accumulator_dtype = array.dtype if array.itemsize >= 4 else np.dtype(np.float32)
        for local, parts in self._chunks(_bytes_of(array)):
            terms = [part.view(array.dtype) for part in parts]
            total = terms[0].astype(accumulator_dtype)
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
        """Yield this rank's bytes in chunks, each with the corresponding chunks of all ranks in the shared memory."""
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
        """Poll a rank's counter: first without a pause, then yielding the processor, then sleeping between polls."""
        counters, index, target = self._counters, rank * (_COUNTER_BYTES // 8), self._num_chunks
        for _ in range(_NUM_SPINS):
            if counters[index] >= target:
                return
        last_call = time.monotonic()
        poll_interval_s = 0.0
        while counters[index] < target:
            time.sleep(poll_interval_s)
            if time.monotonic() - last_call > _ON_WAIT_INTERVAL_S:
                self._on_wait()
                last_call = time.monotonic()
                poll_interval_s = _POLL_INTERVAL_S


def _fence() -> None:
    """Issue a memory fence, by releasing and acquiring locks: earlier writes are visible before later ones."""
    with _FENCE:
        pass
    with _FENCE:
        pass


def _bytes_of(array: Array) -> Any:
    """Return the bytes of a contiguous array as a view."""
    import numpy as np

    assert array.flags.c_contiguous, "collectives take contiguous arrays"
    return array.reshape(-1).view(np.uint8)
