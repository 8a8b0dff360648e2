"""Placement of workers and memory by NUMA node, on made-up machines with recorded system calls."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.cpu.native_kernel import native_kernel, plan, step
from tests.made_up_host import write_files, write_host

from aethermind import LLM, Runtime, SamplingParams
from aethermind.engine.executors.multiproc import MultiprocExecutor
from aethermind.engine.weight_cache import WeightCache, WeightFolder
from aethermind.hal.tensor import Tensor
from aethermind.hal.topology import Topology
from aethermind_cpu import backend as backend_module
from aethermind_cpu import numa
from aethermind_cpu.backend import CpuBackend
from aethermind_cpu.numa import MemoryPlacement, WorkerPlacement, place_workers

MIB = 1 << 20


class RecordedSystem:
    """Records the system calls of placement; it refuses to bind memory for the reason `refusal`."""

    def __init__(self, refusal: str | None = None, *, has_policy: bool = False) -> None:
        self.bound: list[tuple[int, int, tuple[int, ...]]] = []
        self.affinities: list[tuple[int, ...]] = []
        self._refusal = refusal
        self._has_policy = has_policy

    def bind(self, address: int, nbytes: int, nodes: Sequence[int]) -> str | None:
        self.bound.append((address, nbytes, tuple(nodes)))
        return self._refusal

    def has_memory_policy(self) -> bool:
        return self._has_policy

    def set_affinity(self, cpus: Sequence[int]) -> None:
        self.affinities.append(tuple(cpus))


@pytest.fixture
def two_sockets(tmp_path: Path) -> Topology:
    return Topology.read(write_host(tmp_path / "two", packages=2, cores_per_node=64, threads_per_core=2))


@pytest.fixture
def two_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Processors 0 and 1 of this machine, each on a node of its own."""
    root = write_host(tmp_path / "small", packages=2, cores_per_node=1)
    monkeypatch.setenv("AETHERMIND_HOST_ROOT", str(root))
    monkeypatch.delenv("AETHERMIND_CPU_AFFINITY", raising=False)
    monkeypatch.delenv("AETHERMIND_NUM_THREADS", raising=False)
    return root


has_two_cpus = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or not {0, 1} <= os.sched_getaffinity(0),
    reason="this machine's processors 0 and 1 are not both allowed",
)


def test_one_worker_per_core_is_bound_to_its_core_node_by_node(two_sockets: Topology) -> None:
    workers = place_workers(two_sockets, 128)
    assert workers is not None
    assert workers.nodes == (0,) * 64 + (1,) * 64
    assert workers.cpu_sets == tuple((core, core + 128) for core in range(128))
    assert workers.describe() == "threads by NUMA node: 64 on 0, 64 on 1"


def test_fewer_workers_are_spread_over_the_nodes_and_bound_to_all_their_cores(two_sockets: Topology) -> None:
    workers = place_workers(two_sockets, 7)
    assert workers is not None
    assert workers.nodes == (0, 0, 0, 0, 1, 1, 1)
    assert set(workers.cpu_sets) == {two_sockets.cpus_of(frozenset({node})) for node in (0, 1)}


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_ranks_divide_the_nodes(two_sockets: Topology, num_ranks: int) -> None:
    of_ranks = [place_workers(two_sockets, 128 // num_ranks, rank, num_ranks) for rank in range(num_ranks)]
    used = [workers.used_nodes for workers in of_ranks if workers is not None]
    assert used == [(rank * 2 // num_ranks,) for rank in range(num_ranks)]
    cpus = [cpu for workers in of_ranks if workers is not None for cpus in workers.cpu_sets for cpu in cpus]
    assert sorted(cpus) == list(range(256)), "no processor belongs to two ranks"


def test_two_ranks_have_four_sub_numa_nodes_each(tmp_path: Path) -> None:
    topology = Topology.read(write_host(tmp_path, packages=2, nodes_per_package=4, cores_per_node=16))
    (first, second) = (place_workers(topology, 64, rank, 2) for rank in range(2))
    assert first is not None
    assert second is not None
    assert (first.used_nodes, second.used_nodes) == ((0, 1, 2, 3), (4, 5, 6, 7))


def test_workers_never_leave_the_affinity_mask(tmp_path: Path) -> None:
    host = {"packages": 2, "cores_per_node": 8, "threads_per_core": 2}
    topology = Topology.read(write_host(tmp_path, allowed="1-3,8-9,17,24", **host))
    for num_threads in range(2, 8):
        workers = place_workers(topology, num_threads)
        assert workers is not None
        assert {cpu for cpus in workers.cpu_sets for cpu in cpus} <= {1, 2, 3, 8, 9, 17, 24}


@pytest.mark.parametrize(
    ("host", "num_threads"),
    [
        ({"packages": 1, "cores_per_node": 8}, 8),
        ({"packages": 2, "cores_per_node": 4, "allowed": "4-7"}, 4),
        ({"packages": 2, "cores_per_node": 4, "gib_of_node": {1: 0}}, 8),
        ({"packages": 2, "cores_per_node": 4}, 1),
    ],
    ids=["one node", "a mask on one node", "memory on one node", "one thread"],
)
def test_nothing_is_placed_on_one_node(tmp_path: Path, host: dict[str, Any], num_threads: int) -> None:
    assert place_workers(Topology.read(write_host(tmp_path, **host)), num_threads) is None


def test_a_quota_below_the_cores_binds_to_nodes_only(tmp_path: Path) -> None:
    root = write_host(tmp_path, packages=2, cores_per_node=4)
    write_files(root, {"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "350000 100000"})
    topology = Topology.read(root)
    workers = place_workers(topology, topology.num_default_threads)
    assert workers == WorkerPlacement(((0, 1, 2, 3),) * 2 + ((4, 5, 6, 7),) * 2, (0, 0, 1, 1))


@pytest.mark.parametrize("nbytes", [4096, 5 * MIB, 7 * MIB + 12])
@pytest.mark.parametrize("counts", [(64, 64), (3, 1), (2, 0, 5)])
def test_a_weights_pages_lie_on_the_node_of_the_workers_that_read_them(nbytes: int, counts: tuple[int, ...]) -> None:
    nodes = [node for node, count in enumerate(counts) for _ in range(count)]
    slices = [*WorkerPlacement(((0,),) * len(nodes), tuple(nodes)).slices(nbytes, mmap.PAGESIZE)]
    assert [begin for _, begin, _ in slices] == [0, *(end for _, _, end in slices[:-1])]
    assert slices[-1][2] == nbytes
    for worker, node in enumerate(nodes):
        middle = nbytes * (2 * worker + 1) // (2 * len(nodes)) // mmap.PAGESIZE * mmap.PAGESIZE
        (found,) = [other for other, begin, end in slices if begin <= middle < end]
        assert found == node or nbytes <= mmap.PAGESIZE


def test_weights_are_bound_by_rows_and_other_blocks_interleaved(two_sockets: Topology) -> None:
    system = RecordedSystem()
    workers = place_workers(two_sockets, 128)
    assert workers is not None
    memory = MemoryPlacement(workers, two_sockets, lambda _: None, system)
    memory.place_weight(64 * MIB, 10 * MIB)
    memory.interleave(128 * MIB, 4 * MIB)
    memory.place_weight(256 * MIB, MIB)
    assert system.bound == [
        (64 * MIB, 5 * MIB, (0,)),
        (69 * MIB, 5 * MIB, (1,)),
        (128 * MIB, 4 * MIB, (0, 1)),
    ], "small blocks share pages of the heap"


def test_threads_on_each_node_touch_weights_that_cannot_be_bound(
    two_sockets: Topology, caplog: pytest.LogCaptureFixture
) -> None:
    system = RecordedSystem("Operation not permitted")
    touched: list[tuple[int, int]] = []
    workers = place_workers(two_sockets, 128)
    assert workers is not None
    memory = MemoryPlacement(workers, two_sockets, touched.extend, system)
    for _ in range(2):
        memory.place_weight(64 * MIB, 10 * MIB)
        memory.interleave(128 * MIB, 4 * MIB)
    assert sorted(touched) == [(64 * MIB, 5 * MIB)] * 2 + [(69 * MIB, 5 * MIB)] * 2
    assert sorted({*system.affinities}) == [two_sockets.cpus_of(frozenset({node})) for node in (0, 1)]
    assert len(system.bound) == 1, "the system is asked once"
    (warning,) = [record.message for record in caplog.records]
    assert "Operation not permitted" in warning
    assert "SYS_NICE" in warning


def test_a_memory_policy_of_the_user_is_kept(two_sockets: Topology) -> None:
    system = RecordedSystem(has_policy=True)
    workers = place_workers(two_sockets, 128)
    assert workers is not None
    memory = MemoryPlacement(workers, two_sockets, lambda _: None, system)
    memory.place_weight(64 * MIB, 10 * MIB)
    memory.interleave(128 * MIB, 4 * MIB)
    assert (system.bound, system.affinities) == ([], [])
    assert memory.describe().endswith("memory by the policy of the process")


def test_the_host_binds_memory_to_its_nodes_or_says_why_not() -> None:
    system, block = numa.HostSystem(), mmap.mmap(-1, 4 * MIB)
    address = numa.ctypes.addressof(numa.ctypes.c_char.from_buffer(block))
    (node,) = {core.node for core in Topology.read().cores[:1]}
    refusal = system.bind(address, 4 * MIB, [node])
    assert refusal is None or refusal
    assert system.bind(address, 4 * MIB, [1000]) is not None, "a node that does not exist"
    assert system.has_memory_policy() in (True, False)
    block[:4] = b"abcd"
    assert block[:4] == b"abcd"


@pytest.fixture
def backend(two_nodes: Path) -> Iterator[CpuBackend]:
    assert two_nodes.is_dir()
    backend = CpuBackend(RecordedSystem())
    yield backend
    backend.close()


@has_two_cpus
def test_workers_run_on_their_nodes(backend: CpuBackend) -> None:
    assert backend.place_by_node(0, 1) == "threads by NUMA node: 1 on 0, 1 on 1; weights beside their threads"
    cpus: dict[int, set[int]] = {}

    def note(*arguments: Any) -> None:
        cpus[arguments[-1].worker] = os.sched_getaffinity(0)

    executable = backend.compile(plan(step(native_kernel(note, 0, 0), [], [])), {})
    stream = backend.streams.create()
    executable.run((), stream)
    stream.synchronize()
    assert cpus == {0: {0}, 1: {1}}
    everywhere = os.sched_getaffinity(0)
    assert {0, 1} <= everywhere, "the calling thread is not bound"


@pytest.mark.parametrize("nodes", [[], [0, 0, 0, 1, 1], [2, 5, 5, 7, 7]])
def test_each_ticket_is_claimed_once_and_by_the_node_of_its_rows(backend: CpuBackend, nodes: list[int]) -> None:
    """Ticket t stands for rows of worker t modulo the number of workers."""
    num_tickets, lock = 43, threading.Lock()
    claimed: dict[int, list[int]] = {}

    def claim(*arguments: Any) -> None:
        team = arguments[-1]
        while (ticket := team.claim(team)) < num_tickets:
            with lock:
                claimed.setdefault(ticket, []).append(team.worker)

    backend._team.set_num_workers(5, [], nodes)
    executable = backend.compile(plan(*[step(native_kernel(claim, 0, 0), [], [])] * 2), {})
    stream = backend.streams.create()
    executable.run((), stream)
    stream.synchronize()
    assert {ticket: len(workers) for ticket, workers in claimed.items()} == dict.fromkeys(range(num_tickets), 2)
    of_worker = nodes or [0] * 5
    for ticket, workers in claimed.items():
        assert {of_worker[worker] for worker in workers} == {of_worker[ticket % 5]}


def test_teams_refuse_lists_of_another_length(backend: CpuBackend) -> None:
    with pytest.raises(ValueError, match="a team of 3 workers needs as many nodes, not 2"):
        backend._team.set_num_workers(3, [], [0, 1])


def test_allocations_of_a_placed_backend_are_bound(backend: CpuBackend) -> None:
    system = backend._system
    assert isinstance(system, RecordedSystem)
    backend.allocator.alloc(4 * MIB)
    assert system.bound == []
    backend.place_by_node(0, 1)
    block, weight = backend.allocator.alloc(4 * MIB), backend.allocator.alloc_weight(4 * MIB)
    (ahead,) = backend.allocator.alloc_ahead([6 * MIB])
    assert system.bound == [
        (block.address, 4 * MIB, (0, 1)),
        (weight.address, 2 * MIB, (0,)),
        (weight.address + 2 * MIB, 2 * MIB, (1,)),
        (ahead.address, 3 * MIB, (0,)),
        (ahead.address + 3 * MIB, 3 * MIB, (1,)),
    ]
    backend.set_num_threads(2)
    backend.allocator.alloc(4 * MIB)
    assert len(system.bound) == 5, "a new number of threads ends the placement"


def test_a_later_rank_is_bound_as_a_whole(backend: CpuBackend) -> None:
    backend.set_num_threads(1)
    assert backend.place_by_node(1, 2) == "threads by NUMA node: 1 on 1; weights beside their threads"
    system = backend._system
    assert isinstance(system, RecordedSystem)
    backend.allocator.alloc(4 * MIB)
    assert (system.affinities, [nodes for _, _, nodes in system.bound]) == ([(1,)], [(1,)])


def test_affinity_none_disables_placement(backend: CpuBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AETHERMIND_CPU_AFFINITY", "none")
    assert backend.place_by_node(0, 1) is None


PROMPTS: list[Any] = [{"prompt_token_ids": [*range(20, 60)]}, {"prompt_token_ids": [5, 6, 7]}]
PARAMS = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, logprobs=2)


def open_demo(runtime: Runtime, **options: Any) -> LLM:
    return LLM("demo", device="cpu", runtime=runtime, num_kv_blocks=32, **options)


def answers(llm: LLM) -> Any:
    outputs = [output.outputs[0] for output in llm.generate(PROMPTS, PARAMS)]
    return [
        (output.token_ids, [one.logprob for step in output.logprobs or () for one in step.values()])
        for output in outputs
    ]


@pytest.mark.usefixtures("two_nodes")
@pytest.mark.parametrize("quantization", [None, "int4"])
def test_a_placed_model_gives_the_same_bits(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, quantization: str | None
) -> None:
    system = RecordedSystem()
    monkeypatch.setattr(backend_module, "HostSystem", lambda: system)
    monkeypatch.setattr(numa, "_MIN_BYTES", mmap.PAGESIZE)
    with closing(open_demo(runtime, quantization=quantization, numa="off", weight_cache=0.0)) as llm:
        expected = answers(llm)
        assert "NUMA" not in llm.info.placement
    assert system.bound == []
    with closing(open_demo(runtime, quantization=quantization, weight_cache=0.0)) as llm:
        assert answers(llm) == expected
        assert llm.info.placement.endswith("threads by NUMA node: 1 on 0, 1 on 1; weights beside their threads")
        constants = llm.engine.runner.constants
        weights = [constants.tensor(key) for key in constants._packed]
        caches = [*llm.engine.executor.kv_memory.tensors.values()]
        nodes_at = {address: nodes for address, _, nodes in system.bound}
        assert [nodes_at[page_of(one)] for one in weights if one.nbytes >= 4 * mmap.PAGESIZE] != []
        for one in weights:
            assert nodes_at.get(page_of(one)) == (0,) or one.nbytes < 4 * mmap.PAGESIZE, "its first rows"
        assert {nodes_at[page_of(one)] for one in caches} == {(0, 1)}


def page_of(tensor: Tensor) -> int:
    return tensor.address // mmap.PAGESIZE * mmap.PAGESIZE


@pytest.mark.usefixtures("two_nodes")
def test_cached_weights_are_copied_to_their_nodes(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(WeightCache, "min_bytes", 1)
    monkeypatch.setattr(WeightFolder, "needs_huge_pages", False)
    monkeypatch.setattr(backend_module, "HostSystem", RecordedSystem)
    found = []
    for options in ({"numa": "off"}, {"numa": "off"}, {"numa": "auto"}):
        with closing(open_demo(runtime, **options)) as llm:
            found.append((answers(llm), llm.engine.runner.constants.found_bytes > 0))
        for thread in threading.enumerate():
            if thread.name == "aethermind-keep-weights":
                thread.join()
    assert [is_mapped for _, is_mapped in found] == [False, True, False]
    assert found[0][0] == found[1][0] == found[2][0]


@has_two_cpus
@pytest.mark.usefixtures("two_nodes")
def test_ranks_are_bound_to_their_nodes_and_answer_alike(runtime: Runtime) -> None:
    found = []
    for mode in ("off", "auto"):
        with closing(open_demo(runtime, tensor_parallel_size=2, numa=mode, weight_cache=0.0)) as llm:
            executor = llm.engine.executor
            assert isinstance(executor, MultiprocExecutor)
            (pid,) = executor.pids
            found.append((answers(llm), os.sched_getaffinity(pid)))
            assert ("threads by NUMA node: 1 on 0" in llm.info.placement) == (mode == "auto")
    assert found[0][0] == found[1][0]
    assert found[1][1] == {1}
    assert {0, 1} <= found[0][1]
