"""The CUDA backend: devices, memory, streams, kernels and executables of NVIDIA GPUs."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Any

from aethermind.graph.plan import BATCH_SIZES
from aethermind.hal.backend import Backend, Capabilities, MeasuredLimits
from aethermind.hal.communicator import Communicator
from aethermind.hal.device import DeviceUsage
from aethermind.hal.dtype import DType
from aethermind.hal.profiler_ranges import ProfilerRanges
from aethermind.hal.stream import Stream
from aethermind.hal.tensor import Tensor
from aethermind_cuda.devices import CudaDevices
from aethermind_cuda.driver import Driver
from aethermind_cuda.executable import CudaExecutable
from aethermind_cuda.graph_capture import CudaGraphCache
from aethermind_cuda.launch import Work
from aethermind_cuda.library import Cubins, KernelLibrary
from aethermind_cuda.limits import measure_limits
from aethermind_cuda.memory import CudaAllocator
from aethermind_cuda.nccl import NcclCommunicator, find_nccl
from aethermind_cuda.nvml import find_nvml
from aethermind_cuda.nvtx_ranges import nvtx_ranges
from aethermind_cuda.step_binding import workspace_bytes
from aethermind_cuda.streams import CudaEvents, CudaStream, CudaStreams
from aethermind_cuda.transfer import CudaTransfer

__all__ = ["CudaBackend"]


class CudaBackend(Backend):
    """All GPUs that the driver sees, over `driver` and the kernels in `cubins`."""

    def __init__(self, driver: Driver, cubins: Cubins | None = None) -> None:
        self.name = "cuda"
        self._driver = driver
        self._cubins = cubins or Cubins()
        self._libraries: dict[int, KernelLibrary] = {}
        self.devices: CudaDevices = CudaDevices(driver)
        self.allocator: CudaAllocator = CudaAllocator(driver, self.devices)
        self.streams: CudaStreams = CudaStreams(driver, self.devices)
        self.events = CudaEvents(driver)
        self.transfer = CudaTransfer(driver, self.devices, self.streams)
        self.capabilities = Capabilities(
            (DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32),
            is_host_accessible=False,
            supports_graph_capture=True,
            supports_peer_access=True,
            batch_sizes=BATCH_SIZES,
            packs_inputs=True,
            is_asynchronous=True,
            dlpack_device_type=2,
        )
        self._finalizer = weakref.finalize(
            self, _release_all, self._libraries, self.streams, self.allocator, self.devices
        )
        self._finalizer.atexit = False

    def close(self) -> None:
        self._finalizer()

    def free_memory(self) -> int:
        """Free bytes: the driver's, and those that the allocator caches."""
        pressure = self.allocator.pressure(self.devices.current())
        return pressure.free_bytes + pressure.cached_bytes

    def can_access_peer(self, index: int, other: int) -> bool:
        """Whether the driver supports peer access between two GPUs, which depends on how they are connected."""
        return index != other and self._driver.can_access_peer(index, other)

    def usage(self, index: int) -> DeviceUsage | None:
        """Utilisation and memory of a GPU from NVML; None without NVML."""
        nvml = find_nvml()
        return None if nvml is None else nvml.usage(f"{self.name}:{index}", self.devices.bus_id(index))

    def profiler_ranges(self) -> ProfilerRanges:
        """NVTX ranges."""
        return nvtx_ranges()

    def workspace_bytes(self, plan: Any) -> int:
        """The largest workspace of any step of the plan."""
        return workspace_bytes(plan, self._library(self.devices.current()).facts)

    def compile(self, plan: Any, memory: Any) -> CudaExecutable:
        """Compile a plan to an executable for the current device."""
        index = self.devices.current()
        library = self._library(index)
        captured = CudaGraphCache(self._driver, self.devices.context(index))
        return CudaExecutable(plan, memory, index, library.facts, library, captured, self.allocator.alloc)

    def communicator(self, rank: int, size: int, address: str | None = None) -> Communicator | None:
        """Open an NCCL communicator of `size` processes, each on its current device; None without NCCL."""
        nccl = find_nccl()
        if nccl is None:
            return None
        index = self.devices.current()
        library = self._library(index)
        library.abort_communicator()
        scratch = Tensor.of(self.allocator.alloc(4), DType.FLOAT32, (1,))
        self.transfer.fill(scratch, 0)
        stream = self.streams.default(index)
        library.communicator = NcclCommunicator(nccl, rank, size, address, scratch, stream)
        return library.communicator

    def measure_limits(self, dtypes: Sequence[DType], num_threads: int | None = None) -> MeasuredLimits:
        """Measure the current device; `num_threads` has no effect."""
        index = self.devices.current()
        stream = self.streams.create(index)
        try:
            return measure_limits(self._driver, self._library(index), self.allocator.alloc, stream.handle, dtypes)
        finally:
            stream.destroy()

    def enqueue(self, work: Iterable[Work], stream: Stream) -> None:
        """Enqueue work outside of a plan on a stream."""
        assert isinstance(stream, CudaStream), "the stream is of another backend"
        library = self._library(stream.device)
        for launch in work:
            launch.bind(library)(stream.handle)

    def _library(self, index: int) -> KernelLibrary:
        self.devices.enter(index)
        if index not in self._libraries:
            self._libraries[index] = KernelLibrary(self._driver, self.devices.facts(index), self._cubins)
        return self._libraries[index]


def _release_all(
    libraries: dict[int, KernelLibrary], streams: CudaStreams, allocator: CudaAllocator, devices: CudaDevices
) -> None:
    """Release everything when a backend is closed or collected. After a device loss every call fails, which is
    ignored.
    """
    with ExitStack() as stack:
        for close in (devices.close, allocator.close, streams.close, libraries.clear):
            stack.callback(close)
        for index, library in libraries.items():
            stack.callback(library.close)
            stack.callback(devices.synchronize, index)
            stack.callback(library.abort_communicator)  # first: a collective whose peers are gone would never complete
