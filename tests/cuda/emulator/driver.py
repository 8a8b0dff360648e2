"""A CUDA driver whose GPUs are emulated: what `aethermind_cuda.driver.Driver` asks for, with kernels that compute.

Streams work late, in an order that a seed chooses (`aethermind_sim.timeline`); device memory is closed to the host,
which dies of touching it; a launch takes its arguments by the kernel's own parameters; what CUDA forbids is an error.
"""

from __future__ import annotations

import ctypes
import threading
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.cuda.emulator import memory
from tests.cuda.emulator.arguments import check_arguments
from tests.cuda.emulator.graphs import Capture
from tests.cuda.emulator.kernels import Kernel, compile_kernels, tensor_map
from tests.cuda.fake_gpus import ATTRIBUTES, FakeGpus

from aethermind_cuda.driver import OUT_OF_MEMORY, CudaError
from aethermind_sim.faults import Faults
from aethermind_sim.timeline import Marker, Queue, Timeline

__all__ = ["EmulatedDriver"]

_FREE_SHARED_BYTES = 48 << 10

Work = Callable[[], None]


class EmulatedDriver(FakeGpus):
    """`num_devices` GPUs of `total_memory` bytes each. `calls` counts by name, `launched` by kernel."""

    def __init__(self, seed: int = 0, num_devices: int = 1, total_memory: int = 256 << 20) -> None:
        super().__init__(num_devices, total_memory)
        self.calls: Counter[str] = Counter()
        self.launched: Counter[str] = Counter()
        self._seed = seed
        self._timeline = Timeline(seed, Faults())
        self._local = threading.local()
        self._device_memory: dict[int, tuple[int, int]] = {}
        self._pinned: dict[int, Any] = {}
        self._shared_limits: dict[int, int] = {}

    # Devices

    def device_name(self, index: int) -> str:
        return f"emulated GPU {index}"

    def set_context(self, context: int) -> None:
        kind, self._local.device = self.handles[context]
        assert kind == "context", f"{context} is a {kind}"

    def synchronize_context(self) -> None:
        self._refuse_in_capture("cuCtxSynchronize")
        self._timeline.finish_device(self._device())

    # Memory

    def memory_info(self) -> tuple[int, int]:
        device = self._device()
        used = sum(nbytes for nbytes, owner in self._device_memory.values() if owner == device)
        return self.total - used, self.total

    def mem_alloc(self, nbytes: int) -> int:
        self._refuse_in_capture("cuMemAlloc")
        if nbytes > self.memory_info()[0]:
            raise CudaError("cuMemAlloc", OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory")
        address = memory.allocate(nbytes, f"memory of {nbytes} bytes")
        self._device_memory[address] = nbytes, self._device()
        self.calls["mem_alloc"] += 1
        return address

    def mem_free(self, address: int) -> None:
        """Waits for the device first, as cuMemFree does."""
        assert self.retained.total() > 0, "memory is given back behind its context"
        _, device = self._device_memory[address]
        self._timeline.finish_device(device)
        del self._device_memory[address]
        memory.free(address)

    def host_alloc(self, nbytes: int) -> int:
        pages = (ctypes.c_byte * (nbytes + memory.ALIGNMENT))()
        address = -(-ctypes.addressof(pages) // memory.ALIGNMENT) * memory.ALIGNMENT
        self._pinned[address] = pages
        return address

    def host_free(self, address: int) -> None:
        for device in range(self.num_devices):
            self._timeline.finish_device(device)
        del self._pinned[address]

    def copy(self, destination: int, source: int, nbytes: int, stream: int) -> None:
        """Pageable memory is read before the call returns, and written before it returns, as cuMemcpyAsync does."""
        self.calls["copy"] += 1
        kind = memory.FROM_DEVICE * self._is_device(source) + memory.TO_DEVICE * self._is_device(destination)
        if not kind & memory.FROM_DEVICE and not self._is_pinned(source) and self._capture_of(stream) is None:
            staged = ctypes.create_string_buffer(ctypes.string_at(source, nbytes), nbytes)
            self._submit(stream, lambda: memory.copy(destination, ctypes.addressof(staged), nbytes, kind))
            return
        self._submit(stream, partial(memory.copy, destination, source, nbytes, kind))
        if not kind & memory.TO_DEVICE and not self._is_pinned(destination):
            self.stream_synchronize(stream)

    def fill(self, destination: int, byte: int, nbytes: int, stream: int) -> None:
        if self._is_device(destination):
            self._submit(stream, partial(memory.fill, destination, nbytes, 1, byte))
        else:
            self._submit(stream, lambda: ctypes.memset(destination, byte, nbytes) and None)

    # Streams and events

    def stream_create(self, priority: int) -> int:
        assert -5 <= priority <= 0, f"priority {priority}"
        return self._new(Queue(self._device()))

    def stream_destroy(self, stream: int) -> None:
        self._timeline.finish(self._queue(stream))
        self._forget(stream)

    def stream_query(self, stream: int) -> bool:
        self._refuse_in_capture("cuStreamQuery", stream)
        self._timeline.poll()
        return not self._queue(stream).items

    def stream_synchronize(self, stream: int) -> None:
        self.calls["stream_synchronize"] += 1
        self._refuse_in_capture("cuStreamSynchronize", stream)
        self._timeline.finish(self._queue(stream))

    def stream_wait_event(self, stream: int, event: int) -> None:
        mark = self._event(event).mark
        if isinstance(mark, Capture):
            mark.join(self._queue(stream))
        elif mark is not None:
            assert self._capture_of(stream) is None, "a captured stream waits for an event outside of the capture"
            self._timeline.submit(self._queue(stream), mark)

    def event_create(self, timing: bool) -> int:
        assert self._device() >= 0
        return self._new(_Event(timing))

    def event_record(self, event: int, stream: int) -> None:
        capture, queue = self._capture_of(stream), self._queue(stream)
        self._event(event).mark = mark = Marker(queue) if capture is None else capture
        if isinstance(mark, Marker):
            self._timeline.submit(queue, mark)

    def event_query(self, event: int) -> bool:
        assert self._device() >= 0
        self._timeline.poll()
        mark = self._event(event).known_mark()
        return mark is None or mark.is_reached

    def event_synchronize(self, event: int) -> None:
        assert self._device() >= 0
        mark = self._event(event).known_mark()
        if mark is not None:
            self._timeline.run_until(mark)

    def event_elapsed(self, begin: int, end: int) -> float:
        assert self._device() >= 0
        times = [self._event(event).reached_at() for event in (begin, end)]
        return (times[1] - times[0]) * 1e3

    # Kernels

    def module_load(self, image: bytes) -> int:
        """The image of a source is its name."""
        self.calls["module_load"] += 1
        return self._new(compile_kernels(f"{image.decode()}.cu"))

    def get_function(self, module: int, name: str) -> int:
        try:
            return self._new(self.handles[module][name])
        except KeyError:
            raise CudaError("cuModuleGetFunction", 500, "CUDA_ERROR_NOT_FOUND", f"no kernel {name}") from None

    def set_dynamic_shared_limit(self, function: int, nbytes: int) -> None:
        assert nbytes <= ATTRIBUTES[97], f"{nbytes} bytes of shared memory"
        self._shared_limits[function] = nbytes

    def encode_tensor_map(self, address: int, rows: int, columns: int, box_rows: int) -> bytes:
        return tensor_map(address, rows, columns, box_rows)

    def launch_kernel(
        self,
        function: int,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        stream: int,
        parameters: int,
        is_dependent_launch: bool = False,
    ) -> None:
        kernel: Kernel = self.handles[function]
        if shared_bytes > self._shared_limits.get(function, _FREE_SHARED_BYTES):
            raise CudaError("cuLaunchKernel", 1, "CUDA_ERROR_INVALID_VALUE", f"{shared_bytes} bytes of shared memory")
        check_arguments(kernel, parameters)
        values = kernel.taken_from(parameters)
        self.launched[kernel.name] += 1
        seed = self._seed + self.launched[kernel.name]
        self._submit(stream, lambda: kernel.launch(values, grid, block, shared_bytes, seed))

    # Graphs

    def begin_capture(self, stream: int) -> None:
        assert self._capture() is None, "a capture is under way in this thread"
        self._local.capture = Capture(self._queue(stream))

    def end_capture(self, stream: int) -> int:
        capture = self._capture()
        assert capture is not None, "no capture is under way in this thread"
        assert capture.origin is self._queue(stream), "the capture began on another stream"
        self._local.capture = None
        return self._new(capture.end())

    def graph_instantiate(self, graph: int) -> int:
        self.calls["graph_instantiate"] += 1
        return self._new(self.handles.pop(graph))

    def graph_launch(self, executable: int, stream: int) -> None:
        self.calls["graph_launch"] += 1
        for work in self.handles[executable]:
            self._submit(stream, work)

    # What is behind the numbers

    def _device(self) -> int:
        index: int | None = getattr(self._local, "device", None)
        assert index is not None, "no context is current in this thread"
        return index

    def _queue(self, stream: int) -> Queue:
        queue = self.handles[stream]
        assert isinstance(queue, Queue), f"{stream:#x} is no stream"
        return queue

    def _event(self, event: int) -> _Event:
        found = self.handles[event]
        assert isinstance(found, _Event), f"{event:#x} is no event"
        return found

    def _submit(self, stream: int, work: Work) -> None:
        capture = self._capture_of(stream)
        if capture is None:
            self._timeline.submit(self._queue(stream), work)
        else:
            capture.note(work)

    def _capture(self) -> Capture | None:
        capture: Capture | None = getattr(self._local, "capture", None)
        return capture

    def _capture_of(self, stream: int) -> Capture | None:
        capture = self._capture()
        return capture if capture is not None and capture.has(self._queue(stream)) else None

    def _refuse_in_capture(self, call: str, stream: int | None = None) -> None:
        capture = self._capture()
        if capture is not None and (stream is None or capture.has(self._queue(stream))):
            raise CudaError(
                call, 900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"
            )

    def _is_device(self, address: int) -> bool:
        return _holds(sorted(self._device_memory), address, lambda start: self._device_memory[start][0])

    def _is_pinned(self, address: int) -> bool:
        return _holds(sorted(self._pinned), address, lambda start: len(self._pinned[start]) - memory.ALIGNMENT)


class _Event:
    """An event and what it was recorded as last."""

    def __init__(self, has_timing: bool) -> None:
        self.mark: Marker | Capture | None = None
        self._has_timing = has_timing

    def known_mark(self) -> Marker | None:
        if isinstance(self.mark, Capture):
            raise CudaError("cuEventQuery", 907, "CUDA_ERROR_CAPTURED_EVENT", "the event was recorded in a capture")
        return self.mark

    def reached_at(self) -> float:
        mark = self.known_mark()
        if not self._has_timing or mark is None:
            raise CudaError("cuEventElapsedTime", 400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle")
        if mark.reached_at is None:
            raise CudaError("cuEventElapsedTime", 600, "CUDA_ERROR_NOT_READY", "device not ready")
        return mark.reached_at


def _holds(starts: list[int], address: int, nbytes: Callable[[int], int]) -> bool:
    position = bisect_right(starts, address) - 1
    return position >= 0 and address < starts[position] + max(nbytes(starts[position]), 1)
