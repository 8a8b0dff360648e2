"""The CUDA driver API, called through NVIDIA's Python bindings (`cuda-bindings`); every status is checked."""

from __future__ import annotations

import ctypes
from functools import cached_property
from typing import Any

from aethermind.errors import DeviceError
from aethermind_cuda.driver import CudaError

__all__ = ["CudaDriver", "load_driver"]

_CUDA_ERROR_NOT_READY = 600
_CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704
_STREAM_NON_BLOCKING = 1
_EVENT_DEFAULT, _EVENT_DISABLE_TIMING = 0, 2
_HOST_ALLOC_PORTABLE = 1

_TENSOR_MAP_VERSION = 12000
"""The CUDA version that brought cuTensorMapEncodeTiled."""
_TENSOR_MAP_BYTES, _TENSOR_MAP_ALIGNMENT = 128, 64
_UINT16, _NO_INTERLEAVE, _SWIZZLE_128B, _L2_PROMOTION_256B, _ZEROS_OUTSIDE = 1, 0, 3, 3, 0
_BOX_COLUMNS = 64


def load_driver() -> CudaDriver:
    """Import the bindings and initialise the driver; DeviceError when either fails."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise DeviceError(
            f"The CUDA driver cannot be called: {error}. Install its bindings with `pip install cuda-bindings`."
        ) from error
    return CudaDriver(driver)


class CudaDriver:
    """Implements the protocol `Driver` with `cuda.bindings.driver`."""

    def __init__(self, bindings: Any) -> None:
        self._cuda = bindings
        self._capturing: set[int] = set()
        self._call("cuInit", 0)

    def _call(self, name: str, *arguments: Any, accept: tuple[int, ...] = ()) -> Any:
        """The results of a call: none, one or a tuple; the status code if it is one of `accept`."""
        status, *results = getattr(self._cuda, name)(*arguments)
        code = int(status)
        if accept and code in (0, *accept):
            return code
        self._check(name, status)
        return results[0] if len(results) == 1 else tuple(results)

    def _check(self, name: str, status: Any) -> None:
        if int(status):
            error, message = (self._status_text(query, status) for query in ("cuGetErrorName", "cuGetErrorString"))
            raise CudaError(name, int(status), error, message)

    def _status_text(self, name: str, status: Any) -> str:
        code, text = getattr(self._cuda, name)(status)
        return text.decode() if int(code) == 0 and text else "unknown error"

    # Devices

    def version(self) -> tuple[int, int]:
        number = self._call("cuDriverGetVersion")
        return number // 1000, number % 1000 // 10

    def device_count(self) -> int:
        return int(self._call("cuDeviceGetCount"))

    def device_name(self, index: int) -> str:
        name: bytes = self._call("cuDeviceGetName", 256, self._device(index))
        return name.split(b"\0", 1)[0].decode()

    def device_memory(self, index: int) -> int:
        return int(self._call("cuDeviceTotalMem", self._device(index)))

    def device_attribute(self, index: int, attribute: int) -> int:
        return int(self._call("cuDeviceGetAttribute", self._cuda.CUdevice_attribute(attribute), self._device(index)))

    def _device(self, index: int) -> Any:
        return self._call("cuDeviceGet", index)

    def retain_context(self, index: int) -> int:
        return int(self._call("cuDevicePrimaryCtxRetain", self._device(index)))

    def release_context(self, index: int) -> None:
        self._call("cuDevicePrimaryCtxRelease", self._device(index))

    def set_context(self, context: int) -> None:
        self._call("cuCtxSetCurrent", context)

    def synchronize_context(self) -> None:
        self._call("cuCtxSynchronize")

    def can_access_peer(self, index: int, other: int) -> bool:
        return bool(self._call("cuDeviceCanAccessPeer", self._device(index), self._device(other)))

    def enable_peer_access(self, other_context: int) -> None:
        self._call("cuCtxEnablePeerAccess", other_context, 0, accept=(_CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED,))

    # Memory

    def memory_info(self) -> tuple[int, int]:
        free, total = self._call("cuMemGetInfo")
        return int(free), int(total)

    def mem_alloc(self, nbytes: int) -> int:
        return int(self._call("cuMemAlloc", nbytes))

    def mem_free(self, address: int) -> None:
        self._call("cuMemFree", address)

    def host_alloc(self, nbytes: int) -> int:
        return int(self._call("cuMemHostAlloc", nbytes, _HOST_ALLOC_PORTABLE))

    def host_free(self, address: int) -> None:
        self._call("cuMemFreeHost", address)

    def copy(self, destination: int, source: int, nbytes: int, stream: int) -> None:
        self._call("cuMemcpyAsync", destination, source, nbytes, stream)

    def fill(self, destination: int, byte: int, nbytes: int, stream: int) -> None:
        self._call("cuMemsetD8Async", destination, byte, nbytes, stream)

    # Streams and events

    def stream_priority_range(self) -> tuple[int, int]:
        lowest, highest = self._call("cuCtxGetStreamPriorityRange")
        return int(lowest), int(highest)

    def stream_create(self, priority: int) -> int:
        return int(self._call("cuStreamCreateWithPriority", _STREAM_NON_BLOCKING, priority))

    def stream_destroy(self, stream: int) -> None:
        self._call("cuStreamDestroy", stream)

    def stream_query(self, stream: int) -> bool:
        return bool(self._call("cuStreamQuery", stream, accept=(_CUDA_ERROR_NOT_READY,)) == 0)

    def stream_synchronize(self, stream: int) -> None:
        self._call("cuStreamSynchronize", stream)

    def stream_wait_event(self, stream: int, event: int) -> None:
        self._call("cuStreamWaitEvent", stream, event, 0)

    def event_create(self, timing: bool) -> int:
        return int(self._call("cuEventCreate", _EVENT_DEFAULT if timing else _EVENT_DISABLE_TIMING))

    def event_destroy(self, event: int) -> None:
        self._call("cuEventDestroy", event)

    def event_record(self, event: int, stream: int) -> None:
        self._call("cuEventRecord", event, stream)

    def event_query(self, event: int) -> bool:
        return bool(self._call("cuEventQuery", event, accept=(_CUDA_ERROR_NOT_READY,)) == 0)

    def event_synchronize(self, event: int) -> None:
        self._call("cuEventSynchronize", event)

    def event_elapsed(self, begin: int, end: int) -> float:
        return float(self._call("cuEventElapsedTime", begin, end))

    # Kernels

    def module_load(self, image: bytes) -> int:
        return int(self._call("cuModuleLoadData", image))

    def module_unload(self, module: int) -> None:
        self._call("cuModuleUnload", module)

    def get_function(self, module: int, name: str) -> int:
        return int(self._call("cuModuleGetFunction", module, name.encode()))

    def set_dynamic_shared_limit(self, function: int, nbytes: int) -> None:
        attribute = self._cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self._call("cuFuncSetAttribute", function, attribute, nbytes)

    def max_active_clusters(
        self, function: int, grid: tuple[int, int, int], block: tuple[int, int, int], shared_bytes: int
    ) -> int:
        return int(self._call("cuOccupancyMaxActiveClusters", function, self._config(grid, block, shared_bytes)))

    def encode_tensor_map(self, address: int, rows: int, columns: int, box_rows: int) -> bytes:
        memory = ctypes.create_string_buffer(_TENSOR_MAP_BYTES + _TENSOR_MAP_ALIGNMENT)
        begin = ctypes.addressof(memory)
        begin += -begin % _TENSOR_MAP_ALIGNMENT
        sizes = (ctypes.c_uint64 * 2)(columns, rows), (ctypes.c_uint64 * 1)(2 * columns)
        box, strides = (ctypes.c_uint32 * 2)(_BOX_COLUMNS, box_rows), (ctypes.c_uint32 * 2)(1, 1)
        how = _NO_INTERLEAVE, _SWIZZLE_128B, _L2_PROMOTION_256B, _ZEROS_OUTSIDE
        code = self._encode_tensor_map(begin, _UINT16, 2, address, *sizes, box, strides, *how)
        self._check("cuTensorMapEncodeTiled", self._cuda.CUresult(code))
        return ctypes.string_at(begin, _TENSOR_MAP_BYTES)

    @cached_property
    def _encode_tensor_map(self) -> Any:
        """cuTensorMapEncodeTiled. The bindings' own form writes to memory that need not be a multiple of 64 bytes."""
        pointer, _ = self._call("cuGetProcAddress", b"cuTensorMapEncodeTiled", _TENSOR_MAP_VERSION, 0)
        arguments = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, *[ctypes.c_void_p] * 5, *[ctypes.c_int] * 4]
        return ctypes.CFUNCTYPE(ctypes.c_int, *arguments)(int(pointer))

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
        # Only in graph capture: elsewhere a programmatic dependent launch costs the host more time than it saves the
        # device.
        if is_dependent_launch and stream in self._capturing:
            config = self._pdl_config(grid, block, shared_bytes, stream)
            self._call("cuLaunchKernelEx", config, function, parameters, 0)
        else:
            self._call("cuLaunchKernel", function, *grid, *block, shared_bytes, stream, parameters, 0)

    def _pdl_config(
        self, grid: tuple[int, int, int], block: tuple[int, int, int], shared_bytes: int, stream: int
    ) -> Any:
        """The configuration of a programmatic dependent launch: the kernel may begin while the preceding one runs."""
        attribute = self._cuda.CUlaunchAttribute()
        attribute.id = self._cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        config = self._config(grid, block, shared_bytes)
        config.hStream = stream
        config.attrs = [attribute]
        config.numAttrs = 1
        return config

    def _config(self, grid: tuple[int, int, int], block: tuple[int, int, int], shared_bytes: int) -> Any:
        config = self._cuda.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = block
        config.sharedMemBytes = shared_bytes
        return config

    # Graphs

    def begin_capture(self, stream: int) -> None:
        self._call("cuStreamBeginCapture", stream, self._cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
        self._capturing.add(stream)

    def end_capture(self, stream: int) -> int:
        self._capturing.discard(stream)
        return int(self._call("cuStreamEndCapture", stream))

    def graph_instantiate(self, graph: int) -> int:
        try:
            return int(self._call("cuGraphInstantiate", graph, 0))
        finally:
            self._call("cuGraphDestroy", graph)

    def graph_launch(self, graph_exec: int, stream: int) -> None:
        self._call("cuGraphLaunch", graph_exec, stream)

    def graph_exec_destroy(self, graph_exec: int) -> None:
        self._call("cuGraphExecDestroy", graph_exec)
