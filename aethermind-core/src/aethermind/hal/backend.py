"""A backend: the parts of the hardware abstraction for one kind of device, and nothing about models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aethermind.hal.allocator import Allocator
from aethermind.hal.communicator import Communicator
from aethermind.hal.device import DeviceManager
from aethermind.hal.dtype import DType
from aethermind.hal.event import EventManager
from aethermind.hal.stream import StreamManager
from aethermind.hal.transfer import DataTransfer

__all__ = ["Backend", "Capabilities", "MeasuredLimits"]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do.

    `dtypes` are those of activations, the preferred one first. `is_host_accessible` means that the host may read and
    write device memory in place, so that a reference in NumPy can stand in for a missing kernel where the fallback
    policy allows it; without it, a backend has to implement `compile`. `batch_sizes`, ascending, are the numbers of
    sequences for which it prepares a decode step once and then repeats it (a captured graph): steps of others are
    padded to the next of them. `packs_inputs` means that its executables find the inputs of a run by
    `graph.executor.addresses_in_run`: then they go up in one copy. `is_asynchronous` means that enqueued work runs
    while the host does something else: then the engine enqueues a step before it reads the tokens of the one before
    (see `engine.steps.step_pipeline`).
    """

    dtypes: tuple[DType, ...]
    is_host_accessible: bool
    block_sizes: tuple[int, ...] = (1, 16, 32, 64)
    supports_graph_capture: bool = False
    supports_peer_access: bool = False
    batch_sizes: tuple[int, ...] = ()
    packs_inputs: bool = False
    is_asynchronous: bool = False


@dataclass(frozen=True, slots=True)
class MeasuredLimits:
    """What the hardware reached just now: bytes read per second, and operations per second by the name of a dtype."""

    memory_bytes_per_s: float
    flops_per_s: Mapping[str, float]


class Backend(ABC):
    """One kind of device, opened. Its parts are plain attributes: a backend composes, it inherits no behaviour."""

    name: str
    devices: DeviceManager
    allocator: Allocator
    streams: StreamManager
    events: EventManager
    transfer: DataTransfer
    capabilities: Capabilities

    @abstractmethod
    def close(self) -> None:
        """Finish all work and give everything back."""

    def compile(self, plan: Any, memory: Any) -> Any | None:
        """An executable for a plan, of which every kernel is one for this device (see `aethermind.graph.Executable`).

        Optional where the host may reach the device's memory: None stands for `aethermind.graph.StepLoop`, which calls
        Python kernels with NumPy views of it. Elsewhere an executable makes of an operand's address whatever its
        kernels take: `memory` has the addresses, `Operand.shape_for` the shapes.
        """
        return None

    def free_memory(self) -> int | None:
        """Optional: bytes of the current device's memory that neither this process nor another one uses.

        None where it does not tell.
        """
        return None

    def workspace_bytes(self, plan: Any) -> int:
        """Optional: bytes of device memory that the executable of a plan takes beside the plan's own memory."""
        return 0

    def communicator(self, rank: int, size: int, address: str | None = None) -> Communicator | None:
        """Optional: collectives between `size` processes, each on a device of its own, or None where it has none.

        They meet at `address`, `HOST:PORT`, which rank 0 listens at; None leaves it to the backend where. Returns when
        all are there. The backend's kernels of `all_reduce` and `all_gather_last` work with it from then on.
        """
        return None

    def measure_limits(self, dtypes: Sequence[DType], num_threads: int | None = None) -> MeasuredLimits | None:
        """Optional: measure memory bandwidth and peak rates, in about a second; None where it cannot."""
        return None

    def set_num_threads(self, num_threads: int | None) -> int:
        """Use this many worker threads (None: the backend's choice) and return how many; 1 where there are none.

        Results are the same for any number, to the bit.
        """
        return 1
