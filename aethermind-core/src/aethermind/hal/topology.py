"""The processors of this host that the process may use: cores, packages and NUMA nodes.

Read from Linux's sysfs and procfs under a replaceable root. Where they say nothing, as on other systems, every
processor is a core of its own, in one package and one node.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from aethermind import env
from aethermind.hal.cgroup import allowed_by_cpuset, parse_cpu_list, processor_quota, read_text

__all__ = ["Core", "Node", "Topology", "host_topology"]

_MIN_CAPACITY = 0.5
"""Cores slower than this fraction of the fastest are efficiency cores."""


@dataclass(frozen=True, slots=True)
class Core:
    """A physical core: its package and NUMA node, and those of its hardware threads (`cpus`) that are allowed.

    `is_efficient` marks the slower cores of a hybrid processor (E-cores, LITTLE).
    """

    package: int
    node: int
    cpus: tuple[int, ...]
    is_efficient: bool = False


@dataclass(frozen=True, slots=True)
class Node:
    """A NUMA node whose memory this process may use."""

    number: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Topology:
    """The allowed part of a host.

    `cores` are in the order of their nodes, and a core of a node without usable memory belongs to the nearest node that
    has some. `nodes` are the nodes with usable memory, in the order of their numbers; there is at least one. `quota` is
    the CPU quota of the control group in processors, None without one.
    """

    cores: tuple[Core, ...]
    nodes: tuple[Node, ...]
    quota: float | None = None

    @classmethod
    def read(cls, root: Path = Path("/"), allowed: frozenset[int] | None = None) -> Topology:
        """Read the topology under a root; `allowed` is the affinity mask, by default that of `proc/self/status`."""
        status = _status(root)
        usable = _usable_cpus(root, status, allowed)
        nodes = _memory_nodes(root, status)
        node_of = _node_of_cpus(root, nodes)
        efficient = _efficient_cpus(root, usable)
        siblings: dict[tuple[Any, ...], list[int]] = {}
        for cpu in sorted(usable):
            siblings.setdefault(_core_key(root, cpu), []).append(cpu)
        cores = [
            Core(_package_of(root, cpus[0]), node_of.get(cpus[0], nodes[0].number), tuple(cpus), cpus[0] in efficient)
            for cpus in siblings.values()
        ]
        return cls(tuple(sorted(cores, key=lambda core: (core.node, core.cpus))), nodes, processor_quota(root))

    @property
    def cpus(self) -> frozenset[int]:
        """All allowed hardware threads."""
        return frozenset(cpu for core in self.cores for cpu in core.cpus)

    @property
    def num_packages(self) -> int:
        """Number of packages (sockets) with an allowed core."""
        return len({core.package for core in self.cores})

    @property
    def worker_cores(self) -> tuple[Core, ...]:
        """The cores for worker threads: all, or without the efficiency cores of a hybrid processor.

        A kernel's work is divided evenly, so all workers would wait for those on slow cores.
        """
        return tuple(core for core in self.cores if not core.is_efficient) or self.cores

    @property
    def num_default_threads(self) -> int:
        """One worker thread per core in `worker_cores`, within the quota."""
        return self._within_quota(len(self.worker_cores))

    @property
    def num_usable_cores(self) -> int:
        """The number of physical cores within the quota."""
        return self._within_quota(len(self.cores))

    def _within_quota(self, num_cores: int) -> int:
        """At most the quota, rounded to the nearest number: threads in lock-step that are one more than it allows at
        once still use all of it, and one less would not.
        """
        return num_cores if self.quota is None else max(1, min(num_cores, int(self.quota + 0.5)))

    def cpus_of(self, nodes: frozenset[int]) -> tuple[int, ...]:
        """The allowed hardware threads of some nodes."""
        return tuple(sorted(cpu for core in self.cores if core.node in nodes for cpu in core.cpus))

    def as_record(self) -> dict[str, Any]:
        """The facts of `aethermind doctor --json`."""
        return {
            "num_packages": self.num_packages,
            "num_physical_cores": len(self.cores),
            "num_efficiency_cores": len(self.cores) - len(self.worker_cores),
            "num_hardware_threads": len(self.cpus),
            "cpu_quota": self.quota,
            "num_default_threads": self.num_default_threads,
            "numa_nodes": [
                {
                    "node": node.number,
                    "num_physical_cores": sum(core.node == node.number for core in self.cores),
                    "cpus": list(self.cpus_of(frozenset({node.number}))),
                    "memory_bytes": node.memory_bytes,
                }
                for node in self.nodes
            ],
        }

    def describe(self) -> str:
        """One line: `2 packages, 2 NUMA nodes, 128 cores with 256 hardware threads; 128 threads by default`."""
        num_efficient = len(self.cores) - len(self.worker_cores)
        parts = [_count(self.num_packages, "package"), _count(len(self.nodes), "NUMA node")]
        cores = _count(len(self.cores), "core")
        if num_efficient:
            cores += f" ({num_efficient} efficient)"
        if len(self.cpus) != len(self.cores):
            cores += f" with {len(self.cpus)} hardware threads"
        parts.append(cores)
        quota = "" if self.quota is None else f", quota of {self.quota:g} CPUs"
        return f"{', '.join(parts)}{quota}; {_count(self.num_default_threads, 'thread')} by default"


def host_topology() -> Topology:
    """Return the topology of this host for the affinity mask of the calling thread; read again if the mask changes.

    `AETHERMIND_HOST_ROOT` is a directory to read in place of `/`; the mask is then that of its `proc/self/status`.
    """
    root = env.host_root()
    is_real = root == Path("/") and hasattr(os, "sched_getaffinity")
    return _read_cached(root, frozenset(os.sched_getaffinity(0)) if is_real else None)


@lru_cache(maxsize=8)
def _read_cached(root: Path, allowed: frozenset[int] | None) -> Topology:
    return Topology.read(root, allowed)


def _usable_cpus(root: Path, status: Mapping[str, str], allowed: frozenset[int] | None) -> frozenset[int]:
    """The processors that are online, in the affinity mask and in the cpuset."""
    online = parse_cpu_list(read_text(root / "sys/devices/system/cpu/online"))
    if allowed is None:
        allowed = parse_cpu_list(status.get("Cpus_allowed_list", ""))
    if not allowed:
        allowed = online or frozenset(range(os.cpu_count() or 1))
    for limit in (online, allowed_by_cpuset(root)):
        allowed = (allowed & limit if limit else allowed) or allowed
    return allowed


def _memory_nodes(root: Path, status: Mapping[str, str]) -> tuple[Node, ...]:
    """The nodes with memory that this process may use; node 0 where the system names none."""
    allowed = parse_cpu_list(status.get("Mems_allowed_list", ""))
    nodes = [
        Node(number, size)
        for number in _node_numbers(root)
        if (size := _node_memory(root, number)) and (not allowed or number in allowed)
    ]
    return tuple(nodes) or (Node(0, 0),)


def _node_of_cpus(root: Path, usable: tuple[Node, ...]) -> dict[int, int]:
    """The node of each processor; the nearest one with usable memory where its own has none."""
    numbers, found = _node_numbers(root), {}
    wanted = {node.number for node in usable}
    for number in numbers:
        nearest = number
        if number not in wanted:
            distances = read_text(_node(root, number) / "distance").split()
            by_node = {other: int(text) for other, text in zip(numbers, distances, strict=False) if text.isdecimal()}
            nearest = min(sorted(wanted), key=lambda other: by_node.get(other, 255))
        found.update(dict.fromkeys(parse_cpu_list(read_text(_node(root, number) / "cpulist")), nearest))
    return found


def _node_numbers(root: Path) -> list[int]:
    return sorted(parse_cpu_list(read_text(root / "sys/devices/system/node/online")))


def _node(root: Path, number: int) -> Path:
    return root / f"sys/devices/system/node/node{number}"


def _node_memory(root: Path, number: int) -> int:
    """The bytes of a node's memory: `Node 0 MemTotal:  65536 kB` in its meminfo."""
    for line in read_text(_node(root, number) / "meminfo").splitlines():
        words = line.split()
        if "MemTotal:" in words and words[-2].isdecimal():
            return int(words[-2]) * 1024
    return 0


def _core_key(root: Path, cpu: int) -> tuple[Any, ...]:
    """Identify a physical core: by its hardware threads, or on old kernels by its number in the package."""
    topology = _cpu(root, cpu) / "topology"
    for name in ("core_cpus_list", "thread_siblings_list"):
        if siblings := parse_cpu_list(read_text(topology / name)):
            return ("siblings", min(siblings))
    core = read_text(topology / "core_id")
    return ("core", _package_of(root, cpu), core) if core else ("cpu", cpu)


def _package_of(root: Path, cpu: int) -> int:
    text = read_text(_cpu(root, cpu) / "topology/physical_package_id")
    return int(text) if text.isdecimal() else 0


def _efficient_cpus(root: Path, usable: frozenset[int]) -> frozenset[int]:
    """The processors of efficiency cores: Intel's `cpu_atom`, or those of low `cpu_capacity` (ARM)."""
    if atoms := parse_cpu_list(read_text(root / "sys/devices/cpu_atom/cpus")):
        return atoms
    capacities = {cpu: read_text(_cpu(root, cpu) / "cpu_capacity") for cpu in usable}
    numbers = {cpu: int(text) for cpu, text in capacities.items() if text.isdecimal()}
    fastest = max(numbers.values(), default=0)
    return frozenset(cpu for cpu, capacity in numbers.items() if capacity < _MIN_CAPACITY * fastest)


def _cpu(root: Path, cpu: int) -> Path:
    return root / f"sys/devices/system/cpu/cpu{cpu}"


def _status(root: Path) -> dict[str, str]:
    lines = (line.partition(":") for line in read_text(root / "proc/self/status").splitlines())
    return {name: value.strip() for name, _, value in lines}


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
