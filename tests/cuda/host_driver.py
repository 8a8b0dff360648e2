"""A CUDA driver over host memory: everything happens at once, and what kernels would do is written down."""

from __future__ import annotations

import ctypes
import json
import struct
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from tests.cuda.fake_gpus import FakeGpus

from aethermind_cuda.driver import OUT_OF_MEMORY, CudaError
from aethermind_cuda.library import Cubins

__all__ = ["HostDriver", "Launched", "fake_cubins", "tensor_map"]


class Launched(NamedTuple):
    """A launch as the driver saw it; `parameters` is the address of the pointers to its arguments."""

    function: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    stream: int
    parameters: int
    is_dependent_launch: bool = False

    def argument(self, position: int, kind: Any) -> Any:
        """The value that the kernel would read."""
        pointers = ctypes.cast(self.parameters, ctypes.POINTER(ctypes.c_void_p))
        return kind.from_address(pointers[position]).value


class HostDriver(FakeGpus):
    """Two GPUs of `memory` bytes each. `calls` counts by name; what is allocated and not freed is in `memory`."""

    def __init__(self, num_devices: int = 2, memory: int = 1 << 30) -> None:
        super().__init__(num_devices, memory)
        self.calls: Counter[str] = Counter()
        self.launches: list[Launched] = []
        self.shared_limits: dict[int, int] = {}
        self.memory: dict[int, Any] = {}
        self.used = 0
        self.captured: list[Any] | None = None

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if not name.startswith("_") and callable(found) and name != "run":
            self.calls[name] += 1
        return found

    # Devices

    def set_context(self, context: int) -> None:
        assert self.handles[context][0] == "context"

    def synchronize_context(self) -> None: ...

    # Memory

    def memory_info(self) -> tuple[int, int]:
        return self.total - self.used, self.total

    def mem_alloc(self, nbytes: int) -> int:
        if self.used + nbytes > self.total:
            raise CudaError("cuMemAlloc", OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory")
        self.used += nbytes
        return self._allocate(nbytes)

    def mem_free(self, address: int) -> None:
        assert self.retained.total() > 0, "memory is given back behind its context"
        self.used -= len(self.memory[address]) - 512
        del self.memory[address]

    def host_alloc(self, nbytes: int) -> int:
        return self._allocate(nbytes)

    def host_free(self, address: int) -> None:
        del self.memory[address]

    def _allocate(self, nbytes: int) -> int:
        memory = (ctypes.c_byte * (nbytes + 512))()
        address = -(-ctypes.addressof(memory) // 512) * 512
        self.memory[address] = memory
        return address

    def copy(self, destination: int, source: int, nbytes: int, stream: int) -> None:
        assert self.handles[stream] == "stream"
        self._do(lambda: ctypes.memmove(destination, source, nbytes))

    def fill(self, destination: int, byte: int, nbytes: int, stream: int) -> None:
        assert self.handles[stream] == "stream"
        self._do(lambda: ctypes.memset(destination, byte, nbytes))

    def _do(self, work: Any) -> None:
        if self.captured is None:
            work()
        else:
            self.captured.append(work)

    # Streams and events

    def stream_create(self, priority: int) -> int:
        assert -5 <= priority <= 0
        return self._new("stream")

    def stream_destroy(self, stream: int) -> None:
        self._forget(stream)

    def stream_query(self, stream: int) -> bool:
        return self.handles[stream] == "stream"

    def stream_synchronize(self, stream: int) -> None:
        assert self.handles[stream] == "stream"

    def stream_wait_event(self, stream: int, event: int) -> None:
        assert (self.handles[stream], self.handles[event][0]) == ("stream", "event")

    def event_create(self, timing: bool) -> int:
        return self._new(["event", timing, 0.0])

    def event_record(self, event: int, stream: int) -> None:
        assert self.handles[stream] == "stream"
        self.handles[event][2] = time.perf_counter()

    def event_query(self, event: int) -> bool:
        return self.handles[event][0] == "event"

    def event_synchronize(self, event: int) -> None:
        assert self.handles[event][0] == "event"

    def event_elapsed(self, begin: int, end: int) -> float:
        return (self.handles[end][2] - self.handles[begin][2]) * 1e3

    # Kernels

    def module_load(self, image: bytes) -> int:
        return self._new(image)

    def get_function(self, module: int, name: str) -> int:
        return self._new(f"{self.handles[module].decode()}:{name}")

    def set_dynamic_shared_limit(self, function: int, nbytes: int) -> None:
        self.shared_limits[function] = nbytes

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
        assert self.handles[stream] == "stream"
        launched = Launched(self.handles[function], grid, block, shared_bytes, stream, parameters, is_dependent_launch)
        self._do(lambda: self.launches.append(launched))

    # Graphs

    def begin_capture(self, stream: int) -> None:
        assert self.captured is None, "a capture is under way"
        self.captured = []

    def end_capture(self, stream: int) -> int:
        captured, self.captured = self.captured, None
        return self._new(captured)

    def graph_instantiate(self, graph: int) -> int:
        return self._new(self.handles.pop(graph))

    def graph_launch(self, executable: int, stream: int) -> None:
        for work in self.handles[executable]:
            self._do(work)


def tensor_map(address: int, rows: int, columns: int, box_rows: int) -> bytes:
    """What stands for a CUtensorMap."""
    return struct.pack("4Q", address, rows, columns, box_rows).ljust(128)


def fake_cubins(folder: Path, sources: list[str], targets: tuple[str, ...] = ("80",)) -> Cubins:
    """A folder in which the cubin of each source holds its name."""
    operators = {}
    for source in sources:
        built = {target: {"file": f"{source}.sm_{target}.cubin", "kernels": {}} for target in targets}
        operators[source] = {"digest": "", "targets": built}
        for one in built.values():
            (folder / one["file"]).write_bytes(source.encode())
    (folder / "manifest.json").write_text(json.dumps({"compiler": "none", "operators": operators}))
    return Cubins(folder)
