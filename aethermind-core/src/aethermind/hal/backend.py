"""A backend: the implementation of the hardware abstraction layer for one kind of device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aethermind.hal.communicator import Communicator
from aethermind.hal.device import DeviceManager, DeviceUsage
from aethermind.hal.dtype import DType
from aethermind.hal.memory import Allocator
from aethermind.hal.profiler_ranges import ProfilerRanges, itt_ranges
from aethermind.hal.stream import EventManager, StreamManager
from aethermind.hal.transfer import DataTransfer

__all__ = ["Backend", "Capabilities", "DEFAULT_BLOCK_SIZE", "MeasuredLimits"]

DEFAULT_BLOCK_SIZE = 16
"""The number of tokens per block of the KV cache, unless a backend prefers another one."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do.

    `dtypes` are those of activations, the preferred one first. `is_host_accessible` means that the host may read and
    write device memory in place, so that a NumPy reference can replace a missing kernel where the fallback policy
    allows that; a backend without it has to implement `compile`. `batch_sizes`, ascending, are the numbers of sequences
    for which it captures the graph of a decode step once and replays it (CUDA graphs); steps of other sizes are padded
    to the next larger one. `packs_inputs` means that its executables find the inputs of a run by
    `graph.executor.addresses_in_run`; all inputs are then uploaded in one copy. `is_asynchronous` means that enqueued
    work runs concurrently with the host; the engine then enqueues a step before it reads the tokens of the one before
    (asynchronous scheduling, see `engine.steps.step_pipeline`). `dlpack_device_type` is the `DLDeviceType` of DLPack
    for its memory, such as 2 for CUDA: eager calls accept arrays of other libraries in such memory, and return their
    results as such arrays. `block_sizes` are the numbers of tokens per block of the KV cache that its kernels support,
    empty for any; the engine refuses others, and uses `default_block_size` by default. `supports_peer_access` means
    that devices may access each other's memory, see `Backend.can_access_peer`.
    """

    dtypes: tuple[DType, ...]
    is_host_accessible: bool
    block_sizes: tuple[int, ...] = ()
    supports_graph_capture: bool = False
    supports_peer_access: bool = False
    batch_sizes: tuple[int, ...] = ()
    packs_inputs: bool = False
    is_asynchronous: bool = False
    dlpack_device_type: int | None = None
    preferred_block_size: int = DEFAULT_BLOCK_SIZE

    @property
    def default_block_size(self) -> int:
        """`preferred_block_size` if the kernels support it, else the largest of `block_sizes`."""
        is_supported = not self.block_sizes or self.preferred_block_size in self.block_sizes
        return self.preferred_block_size if is_supported else max(self.block_sizes)


@dataclass(frozen=True, slots=True)
class MeasuredLimits:
    """Measured peak rates of a device: bytes read per second, and operations per second by dtype name."""

    memory_bytes_per_s: float
    flops_per_s: Mapping[str, float]


class Backend(ABC):
    """The opened devices of one kind. A backend is composed of its attributes; each implements one interface of the
    HAL.
    """

    name: str
    devices: DeviceManager
    allocator: Allocator
    streams: StreamManager
    events: EventManager
    transfer: DataTransfer
    capabilities: Capabilities

    @abstractmethod
    def close(self) -> None:
        """Finish all work and release all resources."""

    def compile(self, plan: Any, memory: Any) -> Any | None:
        """Return an executable for a plan whose kernels are all for this device (see `aethermind.graph.Executable`).

        Optional where the host can access the device's memory: None selects `aethermind.graph.StepLoop`, which calls
        Python kernels with NumPy views. Otherwise the executable makes the arguments of its kernels: `memory` has the
        addresses, `Operand.shape_for` the shapes.
        """
        return None

    def free_memory(self) -> int | None:
        """Optional: return the bytes of the current device's memory that no process uses; None where unknown."""
        return None

    def can_access_peer(self, index: int, other: int) -> bool:
        """Whether device `index` reads and writes the memory of device `other` without a copy in host memory.

        The engine asks before it swaps to another device. By default all devices of a backend with
        `supports_peer_access` do.
        """
        return self.capabilities.supports_peer_access and index != other

    def usage(self, index: int) -> DeviceUsage | None:
        """Optional: return the memory and utilisation of device `index` by all processes; None where unknown.

        It is called from any thread, about once a second, and raises nothing if the driver does not answer.
        """
        return None

    def profiler_ranges(self) -> ProfilerRanges:
        """Optional: return the function that opens a named range in the profiler of this kind of device.

        ITT tasks by default, because the host runs the kernels or submits them. DeviceError says what to install.
        """
        return itt_ranges()

    def workspace_bytes(self, plan: Any) -> int:
        """Optional: return the bytes of device memory that the executable of a plan needs besides the plan's own."""
        return 0

    def communicator(self, rank: int, size: int, address: str | None = None) -> Communicator | None:
        """Optional: connect `size` processes, each with a device of its own, for collectives; None where unsupported.

        Rank 0 listens at `address`, `HOST:PORT`; None lets the backend choose. Returns when all ranks are connected.
        The backend's kernels of `all_reduce` and `all_gather_last` use the communicator from then on.
        """
        return None

    def measure_limits(self, dtypes: Sequence[DType], num_threads: int | None = None) -> MeasuredLimits | None:
        """Optional: measure memory bandwidth and peak rates, in about a second; None where unsupported."""
        return None

    def place_by_node(self, rank: int, num_ranks: int) -> str | None:
        """Optional: bind the threads of `set_num_threads` and all later allocations to NUMA nodes.

        Of `num_ranks` processes on this machine, this is number `rank`; they divide the nodes. Returns one line on the
        placement, None where there is nothing to place. Results keep their bits.
        """
        return None

    def set_num_threads(self, num_threads: int | None) -> int:
        """Use this many worker threads (None: the backend's choice) and return their number; 1 where there are none.

        Results have the same bits for any number.
        """
        return 1
