"""The CPU device of a host: its properties, cores, CPU affinity of workers, and memory."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from pathlib import Path

from aethermind.errors import DeviceError, InvalidArgumentError
from aethermind.hal.cgroup import available_memory, memory_limit
from aethermind.hal.device import DeviceManager, DeviceProperties
from aethermind.hal.host_memory import host_memory_bytes
from aethermind.hal.topology import host_topology

__all__ = [
    "CpuDevices",
    "available_memory_bytes",
    "is_pinning",
    "num_physical_cores",
    "total_memory_bytes",
    "worker_cpu_sets",
]


def num_physical_cores() -> int:
    """Count this process's physical cores: its CPU affinity without hyperthreads, limited by a container's quota.

    Efficiency cores of a hybrid processor are left out.
    """
    return host_topology().num_default_threads


def is_pinning() -> bool:
    """Whether workers may be pinned: `AETHERMIND_CPU_AFFINITY` is `cores` (default), not `none`.

    InvalidArgumentError for anything else.
    """
    affinity = os.environ.get("AETHERMIND_CPU_AFFINITY") or "cores"
    if affinity not in ("cores", "none"):
        raise InvalidArgumentError(f"AETHERMIND_CPU_AFFINITY is {affinity!r}; set it to cores or none, or unset it.")
    return affinity == "cores"


def worker_cpu_sets(num_threads: int) -> list[list[int]]:
    """Return the CPU set of each worker.

    With one worker per physical core, each worker is pinned to its core with all hyperthreads: without pinning, the
    scheduler at times puts two workers on one core, and the others wait for them at every barrier. Other numbers of
    workers are not pinned, so that several processes with few workers do not share the first cores. No worker leaves
    the affinity mask of the process. `is_pinning` says whether pinning is disabled.
    """
    may_pin = is_pinning()
    topology = host_topology()
    cores = topology.worker_cores
    if may_pin and num_threads == len(cores) == topology.num_default_threads:
        return [list(core.cpus) for core in cores]
    return [sorted(topology.cpus)] * num_threads


def available_memory_bytes() -> int:
    """Return the bytes available without swapping, or all physical memory where unknown."""
    available = host_memory_bytes()
    for line in _read(Path("/proc/meminfo")).splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) * 1024
    in_group = available_memory()
    return available if in_group is None else min(available, in_group)


def total_memory_bytes() -> int:
    """Return the memory of this process in bytes: the host's, limited by the container."""
    total, limit = host_memory_bytes(), memory_limit()
    return total if limit is None else min(total, limit) if total else limit


class CpuDevices(DeviceManager):
    """Manages the only device, cpu:0. `synchronize_all` waits for every stream of the backend."""

    def __init__(self, isa: tuple[str, ...], synchronize_all: Callable[[], None]) -> None:
        self._isa = isa
        self._synchronize_all = synchronize_all

    def count(self) -> int:
        return 1

    def properties(self, index: int) -> DeviceProperties:
        self._check(index)
        details = {"logical_cpus": str(len(host_topology().cpus)), "architecture": platform.machine()}
        return DeviceProperties(
            _model_name(), total_memory_bytes(), num_physical_cores(), isa=self._isa, details=details
        )

    def current(self) -> int:
        return 0

    def set_current(self, index: int) -> None:
        self._check(index)

    def synchronize(self, index: int) -> None:
        self._check(index)
        self._synchronize_all()

    def _check(self, index: int) -> None:
        if index != 0:
            raise DeviceError(f"Device cpu:{index} does not exist: a host has one CPU device, cpu:0.")


def _model_name() -> str:
    for line in _read(Path("/proc/cpuinfo")).splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
