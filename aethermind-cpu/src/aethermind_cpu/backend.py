"""The cpu backend, composed around one team of worker threads."""

from __future__ import annotations

import os
from collections.abc import Sequence

from aethermind import env
from aethermind.errors import InvalidArgumentError
from aethermind.graph.executor import MemoryMap
from aethermind.graph.plan import Plan
from aethermind.hal.backend import Backend, Capabilities, MeasuredLimits
from aethermind.hal.device import DeviceId, DeviceUsage
from aethermind.hal.dtype import DType
from aethermind.hal.topology import host_topology
from aethermind_cpu import _native
from aethermind_cpu.allocator import CpuAllocator
from aethermind_cpu.devices import (
    CpuDevices,
    available_memory_bytes,
    is_pinning,
    num_physical_cores,
    total_memory_bytes,
    worker_cpu_sets,
)
from aethermind_cpu.executable import CpuExecutable
from aethermind_cpu.isa import isa_limit
from aethermind_cpu.numa import HostSystem, MemoryPlacement, System, place_workers
from aethermind_cpu.streams import CpuEvents, CpuStreams
from aethermind_cpu.transfer import CpuTransfer

__all__ = ["CpuBackend"]

_MAX_THREADS_PER_CPU = 16
"""Limit of threads per logical CPU: a larger number is a mistake, and the system may refuse to start the threads."""


class CpuBackend(Backend):
    """The CPU of one host. Streams share the team, whose threads start here and end in `close`."""

    def __init__(self, system: System | None = None) -> None:
        """`system` makes the system calls of NUMA placement, by default those of this host."""
        self.name = "cpu"
        self._system = system or HostSystem()
        self._team = _new_team(_default_num_threads())
        self.streams: CpuStreams = CpuStreams(self._team)
        self.events = CpuEvents()
        self.devices = CpuDevices(tuple(_native.cpu_features()), self.streams.synchronize_all)
        self.allocator: CpuAllocator = CpuAllocator(DeviceId("cpu"))
        self.transfer = CpuTransfer()
        self.capabilities = Capabilities(_dtypes(), is_host_accessible=True)

    @property
    def num_threads(self) -> int:
        """The number of worker threads."""
        return self._team.num_workers

    def close(self) -> None:
        """Finish all streams and end the worker threads; buffers remain valid until they are freed."""
        self.streams.destroy_all()
        self._team.set_num_workers(1)

    def free_memory(self) -> int | None:
        """Bytes available without swapping, within the limits of the container; None where unknown."""
        return available_memory_bytes() or None

    def usage(self, index: int) -> DeviceUsage | None:
        """The memory of the host, or of the container, that all its processes use; None where unknown."""
        total, available = total_memory_bytes(), available_memory_bytes()
        if not total or not available:
            return None
        return DeviceUsage(f"{self.name}:{index}", max(0, total - available), total)

    def compile(self, plan: Plan, memory: MemoryMap) -> CpuExecutable:
        """Bind a plan to its memory; PluginError where a kernel's ABI version or schema does not match."""
        return CpuExecutable(plan, memory, self._team)

    def measure_limits(self, dtypes: Sequence[DType], num_threads: int | None = None) -> MeasuredLimits:
        """Measure memory bandwidth (bytes/s) and peak rates (operations/s) of float32, float16, bfloat16, int8."""
        _check_num_threads(num_threads)
        team = self._team if num_threads in (None, self.num_threads) else _new_team(num_threads)
        limits = _native.measure_limits(team, isa_limit().label)
        rates = {
            DType.FLOAT32: limits.float32_flops_per_s,
            DType.FLOAT16: limits.float32_flops_per_s,
            DType.BFLOAT16: limits.bfloat16_flops_per_s,
            DType.INT8: limits.int8_ops_per_s,
        }
        return MeasuredLimits(
            limits.memory_bytes_per_s, {str(dtype): rates[dtype] for dtype in dtypes if dtype in rates}
        )

    def place_by_node(self, rank: int, num_ranks: int) -> str | None:
        """Place workers and memory by NUMA node (see `numa`); `AETHERMIND_CPU_AFFINITY=none` disables it.

        Ranks 1 and up have a process of their own, whose calling thread is bound to the cores of its workers, too.
        """
        topology = host_topology()
        workers = place_workers(topology, self.num_threads, rank, num_ranks) if is_pinning() else None
        if workers is None:
            return None
        self._team.set_num_workers(self.num_threads, workers.cpu_sets, workers.nodes)
        if rank > 0:
            self._system.set_affinity(topology.cpus_of(frozenset(workers.nodes)))
        self.allocator.placement = MemoryPlacement(workers, topology, _native.touch_pages, self._system)
        return self.allocator.placement.describe()

    def set_num_threads(self, num_threads: int | None) -> int:
        """Use this many workers from the next run on; None means `AETHERMIND_NUM_THREADS`, or one per physical core.

        If there is one worker per physical core, each is pinned to its core (`worker_cpu_sets`).
        """
        _check_num_threads(num_threads)
        num_threads = num_threads or _default_num_threads()
        self._team.set_num_workers(num_threads, worker_cpu_sets(num_threads))
        self.allocator.placement = None
        return self.num_threads


def _new_team(num_threads: int) -> _native.Team:
    return _native.Team(num_threads, worker_cpu_sets(num_threads))


def _check_num_threads(num_threads: int | None) -> None:
    max_threads = _MAX_THREADS_PER_CPU * (os.cpu_count() or 1)
    if num_threads is not None and not 1 <= num_threads <= max_threads:
        raise InvalidArgumentError(
            f"The number of threads is {num_threads}; it must be from 1 to {max_threads} on this machine, "
            f"where {num_physical_cores()} use all cores."
        )


def _default_num_threads() -> int:
    return env.num_threads() or num_physical_cores()


def _dtypes() -> tuple[DType, ...]:
    """Supported dtypes, the default first: bfloat16 where the CPU multiplies it."""
    if isa_limit().multiplies_bfloat16:
        return (DType.BFLOAT16, DType.FLOAT32, DType.FLOAT16)
    return (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)
