"""NUMA placement: the cores of each worker, and the node on which each page of weights and caches lies.

Workers are numbered node by node. Worker w of W computes the rows from N·w/W on of a product with N rows, and a packed
weight is a sequence of rows. So the pages of a weight are bound to the node of the worker that reads them, and each
node's workers read their own memory. Other memory, such as the KV cache, is interleaved over the nodes. Results keep
their bits: only addresses change.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from aethermind.hal.topology import Core, Topology
from aethermind.log import get_logger

__all__ = ["HostSystem", "MemoryPlacement", "System", "WorkerPlacement", "place_workers"]

logger = get_logger(__name__)

_MIN_BYTES = 2 << 20
"""Smaller blocks come from the heap, whose pages they share with others."""

_MPOL_DEFAULT, _MPOL_PREFERRED, _MPOL_INTERLEAVE = 0, 1, 3
_MPOL_MF_MOVE = 2
_SYSCALLS = {"x86_64": (237, 239), "aarch64": (235, 236)}
"""The numbers of mbind and get_mempolicy by machine."""


@dataclass(frozen=True, slots=True)
class WorkerPlacement:
    """The CPU set and the NUMA node of each worker of a process, in the order of nodes."""

    cpu_sets: tuple[tuple[int, ...], ...]
    nodes: tuple[int, ...]

    @property
    def used_nodes(self) -> tuple[int, ...]:
        """The nodes with a worker, in order."""
        return tuple(dict.fromkeys(self.nodes))

    def slices(self, nbytes: int, page_bytes: int) -> Iterator[tuple[int, int, int]]:
        """Yield (node, begin, end): the bytes, in whole pages, of a weight that the workers of each node read."""
        begin = 0
        for node in self.used_nodes:
            last = len(self.nodes) - self.nodes[::-1].index(node)
            end = nbytes * last // len(self.nodes)
            end = nbytes if last == len(self.nodes) else end // page_bytes * page_bytes
            if begin < end:
                yield node, begin, end
            begin = end

    def describe(self) -> str:
        """One line: `threads by NUMA node: 64 on 0, 64 on 1`."""
        counts = ", ".join(f"{self.nodes.count(node)} on {node}" for node in self.used_nodes)
        return f"threads by NUMA node: {counts}"


def place_workers(topology: Topology, num_threads: int, rank: int = 0, num_ranks: int = 1) -> WorkerPlacement | None:
    """Place the workers of one of several ranks, which divide the cores in the order of their nodes.

    A worker is bound to its core if there is one for every core of the rank, and to all cores of its node otherwise, so
    that processes with few workers do not meet on the same cores. None where all cores belong to one node, or a rank
    alone has fewer workers than nodes.
    """
    every = topology.worker_cores
    cores = every[len(every) * rank // num_ranks : len(every) * (rank + 1) // num_ranks]
    num_nodes = len({core.node for core in every})
    if num_nodes < 2 or not cores or num_threads < len({core.node for core in cores}):
        return None
    chosen = [cores[len(cores) * worker // num_threads] for worker in range(num_threads)]
    has_own_core = num_threads == len(cores) and topology.num_default_threads == len(every)

    def cpus_of(core: Core) -> tuple[int, ...]:
        return core.cpus if has_own_core else topology.cpus_of(frozenset({core.node}))

    return WorkerPlacement(tuple(map(cpus_of, chosen)), tuple(core.node for core in chosen))


class System(Protocol):
    """The system calls of placement; tests record them."""

    def bind(self, address: int, nbytes: int, nodes: Sequence[int]) -> str | None:
        """Bind pages to a node, or interleave them over several (mbind); returns why the system refuses."""

    def has_memory_policy(self) -> bool:
        """Whether the process was started with a memory policy, as by `numactl --interleave`."""

    def set_affinity(self, cpus: Sequence[int]) -> None:
        """Bind the calling thread, and those that it will start, to processors."""


class HostSystem:
    """This host. Other systems than Linux on x86-64 and ARM refuse to bind memory."""

    def bind(self, address: int, nbytes: int, nodes: Sequence[int]) -> str | None:
        """Bind pages to a node as the preferred one, so that a full node is no error, or interleave them."""
        numbers = _SYSCALLS.get(platform.machine()) if sys.platform == "linux" else None
        if numbers is None:
            return "it has no mbind"
        mode = _MPOL_PREFERRED if len(nodes) == 1 else _MPOL_INTERLEAVE
        mask = _node_mask(nodes)
        arguments = (address, nbytes, mode, ctypes.addressof(mask), len(mask) * 64 + 1, _MPOL_MF_MOVE)
        return None if _syscall(numbers[0], *arguments) == 0 else os.strerror(ctypes.get_errno())

    def has_memory_policy(self) -> bool:
        """Whether the calling thread has a memory policy."""
        numbers = _SYSCALLS.get(platform.machine()) if sys.platform == "linux" else None
        mode = ctypes.c_int(_MPOL_DEFAULT)
        if numbers is not None:
            _syscall(numbers[1], ctypes.addressof(mode), 0, 0, 0, 0)
        return mode.value != _MPOL_DEFAULT

    def set_affinity(self, cpus: Sequence[int]) -> None:
        """Bind the calling thread; where the system refuses, it keeps its affinity."""
        if hasattr(os, "sched_setaffinity"):
            with suppress(OSError):
                os.sched_setaffinity(0, cpus)


class MemoryPlacement:
    """Places the memory of a process whose workers are placed. Safe from any thread."""

    def __init__(
        self,
        workers: WorkerPlacement,
        topology: Topology,
        touch_pages: Callable[[list[tuple[int, int]]], None],
        system: System,
    ) -> None:
        """`touch_pages` touches every page of (address, bytes) without changing it."""
        self._workers = workers
        self._topology = topology
        self._touch_pages = touch_pages
        self._system = system
        self._is_kept = system.has_memory_policy()
        self._refusal: str | None = None

    def describe(self) -> str:
        """One line on threads and memory."""
        memory = "memory by the policy of the process" if self._is_kept else "weights beside their threads"
        return f"{self._workers.describe()}; {memory}"

    def interleave(self, address: int, nbytes: int) -> None:
        """Spread the pages of a block, not touched yet, over the nodes of the workers."""
        if nbytes >= _MIN_BYTES:
            self._bind(address, nbytes, self._workers.used_nodes)

    def place_weight(self, address: int, nbytes: int) -> None:
        """Bind the pages of a packed weight to the nodes of the workers that read them, before it is written.

        Where the system refuses, threads on those nodes touch the pages first.
        """
        if nbytes < _MIN_BYTES:
            return
        slices = [*self._workers.slices(nbytes, mmap.PAGESIZE)]
        if all(self._bind(address + begin, end - begin, (node,)) for node, begin, end in slices) or self._is_kept:
            return
        threads = [
            threading.Thread(target=self._touch, args=(node, address + begin, end - begin))
            for node, begin, end in slices
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _bind(self, address: int, nbytes: int, nodes: Sequence[int]) -> bool:
        if self._is_kept or self._refusal is not None:
            return False
        begin = address // mmap.PAGESIZE * mmap.PAGESIZE
        refusal = self._system.bind(begin, address + nbytes - begin, nodes)
        if refusal is not None:
            self._refusal = refusal
            advice = " In a container, add the capability SYS_NICE." if refusal == os.strerror(errno.EPERM) else ""
            logger.warning(
                "The system does not bind memory to NUMA nodes (%s): weights lie where threads touch them first.%s",
                refusal,
                advice,
            )
        return refusal is None

    def _touch(self, node: int, address: int, nbytes: int) -> None:
        self._system.set_affinity(self._topology.cpus_of(frozenset({node})))
        self._touch_pages([(address, nbytes)])


def _node_mask(nodes: Sequence[int]) -> ctypes.Array[ctypes.c_uint64]:
    """The bits of some nodes."""
    mask = (ctypes.c_uint64 * (max(nodes) // 64 + 1))()
    for node in nodes:
        mask[node // 64] |= 1 << node % 64
    return mask


def _syscall(number: int, *arguments: int) -> int:
    function = ctypes.CDLL(None, use_errno=True).syscall
    function.restype = ctypes.c_long
    return int(function(ctypes.c_long(number), *(ctypes.c_ulong(argument) for argument in arguments)))
