"""The CUDA driver calls that this backend makes: its only interface to a GPU.

`CudaDriver` (in `cuda_bindings_driver`) implements it; tests substitute their own driver. Contexts, streams, events,
modules, functions and graphs are opaque handles, addresses are device addresses unless stated otherwise, and stream 0
is never used. Every call raises `CudaError` when it fails.
"""

from __future__ import annotations

from typing import Protocol

from aethermind.errors import DeviceError

__all__ = ["CudaError", "Driver", "INVALID_DEVICE", "NO_BINARY", "OUT_OF_MEMORY"]

OUT_OF_MEMORY = 2
INVALID_DEVICE = 101
NO_BINARY = 209

_ADVICE = {
    2: "Lower --num-kv-blocks or --max-model-len, choose a smaller model, or end other processes on the GPU.",
    46: "The GPU is busy or reserved by another process; see `nvidia-smi`.",
    100: "No GPU is visible to the driver; look at CUDA_VISIBLE_DEVICES and `nvidia-smi`.",
    209: "The kernels were not compiled for this GPU; reinstall aethermind-cuda, or build it on this machine.",
    214: "The GPU's memory is damaged (an uncorrectable ECC error); reset the GPU or use another one.",
    700: "A kernel used memory that is not its own; the device is lost to this process. Start again, and report it.",
    701: "A kernel wants more registers or shared memory than the GPU has. Report it with the name of the GPU.",
    702: "A kernel ran longer than the display's watchdog allows. Use a GPU without a display.",
    719: "A kernel failed; the device is lost to this process. Start again, and report it.",
    802: "The GPUs of this machine are still being connected; try again in a minute.",
    803: "The driver is older than CUDA 13 needs; update the NVIDIA driver.",
    804: "The driver is older than CUDA 13 needs; update the NVIDIA driver.",
}


class CudaError(DeviceError):
    """A driver call failed with `code`, whose `name` is, for example, CUDA_ERROR_OUT_OF_MEMORY."""

    def __init__(self, call: str, code: int, name: str, text: str) -> None:
        advice = _ADVICE.get(code, "See `nvidia-smi`.")
        super().__init__(f"{call} failed: {text} ({name}, {code}). {advice}")
        self.code = code
        self.name = name


class Driver(Protocol):
    """The calls of libcuda; where one needs a context, the calling thread has made it current (`set_context`)."""

    # Devices

    def version(self) -> tuple[int, int]:
        """The CUDA version that the driver supports, such as (13, 0)."""

    def device_count(self) -> int: ...

    def device_name(self, index: int) -> str: ...

    def device_memory(self, index: int) -> int:
        """Total memory in bytes."""

    def device_attribute(self, index: int, attribute: int) -> int:
        """A `CUdevice_attribute` by number."""

    def retain_context(self, index: int) -> int:
        """The primary context of a device."""

    def release_context(self, index: int) -> None: ...

    def set_context(self, context: int) -> None: ...

    def synchronize_context(self) -> None: ...

    def can_access_peer(self, index: int, other: int) -> bool: ...

    def enable_peer_access(self, other_context: int) -> None:
        """Enable peer access from the current context to another; no error if it is enabled already."""

    # Memory

    def memory_info(self) -> tuple[int, int]:
        """Free and total bytes of the current context's device."""

    def mem_alloc(self, nbytes: int) -> int: ...

    def mem_free(self, address: int) -> None: ...

    def host_alloc(self, nbytes: int) -> int:
        """Page-locked host memory, mapped for every device."""

    def host_free(self, address: int) -> None: ...

    def copy(self, destination: int, source: int, nbytes: int, stream: int) -> None:
        """Copy between any two host or device addresses, in stream order."""

    def fill(self, destination: int, byte: int, nbytes: int, stream: int) -> None: ...

    # Streams and events

    def stream_priority_range(self) -> tuple[int, int]:
        """The lowest and the highest priority, such as (0, -5)."""

    def stream_create(self, priority: int) -> int:
        """A non-blocking stream: it does not synchronise with the default stream."""

    def stream_destroy(self, stream: int) -> None: ...

    def stream_query(self, stream: int) -> bool: ...

    def stream_synchronize(self, stream: int) -> None: ...

    def stream_wait_event(self, stream: int, event: int) -> None: ...

    def event_create(self, timing: bool) -> int: ...

    def event_destroy(self, event: int) -> None: ...

    def event_record(self, event: int, stream: int) -> None: ...

    def event_query(self, event: int) -> bool: ...

    def event_synchronize(self, event: int) -> None: ...

    def event_elapsed(self, begin: int, end: int) -> float:
        """Milliseconds between two recorded events."""

    # Kernels

    def module_load(self, image: bytes) -> int:
        """Load a cubin in the current context; fails with NO_BINARY if it is for another architecture."""

    def module_unload(self, module: int) -> None: ...

    def get_function(self, module: int, name: str) -> int: ...

    def set_dynamic_shared_limit(self, function: int, nbytes: int) -> None:
        """Allow a function more than 48 KiB of dynamic shared memory."""

    def max_active_clusters(
        self, function: int, grid: tuple[int, int, int], block: tuple[int, int, int], shared_bytes: int
    ) -> int:
        """How many clusters of a kernel with `__cluster_dims__` run at once; `grid` is a multiple of a cluster."""

    def encode_tensor_map(self, address: int, rows: int, columns: int, box_rows: int) -> bytes:
        """The CUtensorMap of a row-major matrix of 16-bit elements: boxes of `box_rows` rows and 64 columns in the
        128-byte swizzle, with zeros outside of the matrix. The L2 cache fetches 256 bytes at a time.
        """

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
        """`parameters` is the host address of an array of pointers, one to each argument (`void**`).

        `is_dependent_launch`: programmatic dependent launch. In a graph the kernel may begin while its predecessor
        runs, and waits for it itself.
        """

    # Graphs

    def begin_capture(self, stream: int) -> None:
        """Capture what this thread enqueues on the stream from now on."""

    def end_capture(self, stream: int) -> int:
        """End the capture; returns its graph."""

    def graph_instantiate(self, graph: int) -> int:
        """Instantiate an executable graph and destroy the graph."""

    def graph_launch(self, graph_exec: int, stream: int) -> None: ...

    def graph_exec_destroy(self, graph_exec: int) -> None: ...
