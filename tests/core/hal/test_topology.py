"""Topologies of made-up machines, and the default number of threads on them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from tests.made_up_host import listed, write_files, write_host

from aethermind.hal.cgroup import parse_cpu_list
from aethermind.hal.topology import Topology, host_topology


def cores_by_node(topology: Topology) -> dict[int, int]:
    return {node.number: sum(core.node == node.number for core in topology.cores) for node in topology.nodes}


def test_two_sockets_of_64_cores_with_two_threads_each(tmp_path: Path) -> None:
    topology = Topology.read(write_host(tmp_path, packages=2, cores_per_node=64, threads_per_core=2))
    assert (topology.num_packages, cores_by_node(topology)) == (2, {0: 64, 1: 64})
    assert (len(topology.cpus), topology.num_default_threads) == (256, 128)
    assert topology.cores[0].cpus == (0, 128)
    assert topology.cores[64].cpus == (64, 192)
    assert [core.node for core in topology.cores] == [0] * 64 + [1] * 64
    assert topology.nodes[1].memory_bytes == 64 << 30
    assert topology.describe() == (
        "2 packages, 2 NUMA nodes, 128 cores with 256 hardware threads; 128 threads by default"
    )


def test_sub_numa_clusters_are_nodes_of_one_package(tmp_path: Path) -> None:
    topology = Topology.read(write_host(tmp_path, packages=2, nodes_per_package=4, cores_per_node=16))
    assert (topology.num_packages, cores_by_node(topology)) == (2, dict.fromkeys(range(8), 16))
    assert {core.node: core.package for core in topology.cores} == {node: node // 4 for node in range(8)}


def test_a_container_with_a_cpuset_over_both_sockets(tmp_path: Path) -> None:
    host = {"packages": 2, "cores_per_node": 8, "threads_per_core": 2}
    topology = Topology.read(write_host(tmp_path / "mask", allowed="0-1,8-9,16-17,24", **host))
    assert [core.cpus for core in topology.cores] == [(0, 16), (1, 17), (8, 24), (9,)]
    assert topology.num_default_threads == 4
    for version, files in {
        "v1": {"proc/self/cgroup": "5:cpuset:/job", "sys/fs/cgroup/cpuset/job/cpuset.effective_cpus": "1,8,17"},
        "v2": {"proc/self/cgroup": "0::/job", "sys/fs/cgroup/job/cpuset.cpus.effective": "1,8,17"},
    }.items():
        root = write_host(tmp_path / version, **host)
        write_files(root, files)
        assert [core.cpus for core in Topology.read(root).cores] == [(1, 17), (8,)]


@pytest.mark.parametrize(
    ("max", "quota", "num_threads"),
    [
        ("350000", 3.5, 4),
        ("150000", 1.5, 2),
        ("240000", 2.4, 2),
        ("20000", 0.2, 1),
        ("9900000", 99, 8),
        ("max", None, 8),
    ],
)
def test_threads_are_limited_by_the_quota(tmp_path: Path, max: str, quota: float | None, num_threads: int) -> None:
    root = write_host(tmp_path, cores_per_node=8)
    write_files(root, {"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": f"{max} 100000"})
    topology = Topology.read(root)
    assert (topology.quota, topology.num_default_threads) == (quota, num_threads)
    assert ("quota of 3.5 CPUs; 4 threads" in topology.describe()) == (quota == 3.5)


def test_cores_of_a_node_without_memory_belong_to_the_nearest_with_some(tmp_path: Path) -> None:
    host = {"packages": 2, "nodes_per_package": 2, "cores_per_node": 4}
    topology = Topology.read(write_host(tmp_path / "none", gib_of_node={3: 0}, **host))
    assert cores_by_node(topology) == {0: 4, 1: 4, 2: 8}
    topology = Topology.read(write_host(tmp_path / "not_allowed", allowed_nodes="0,2", **host))
    assert cores_by_node(topology) == {0: 8, 2: 8}


def test_offline_processors_are_not_counted(tmp_path: Path) -> None:
    root = write_host(tmp_path, packages=2, cores_per_node=4, threads_per_core=2, offline=[3, 5, 8])
    topology = Topology.read(root)
    assert [core.cpus for core in topology.cores if len(core.cpus) == 1] == [(0,), (11,), (13,)]
    assert (topology.num_default_threads, len(topology.cpus)) == (8, 13)


def test_slow_cores_of_a_hybrid_processor_get_no_worker(tmp_path: Path) -> None:
    intel = write_host(tmp_path / "intel", cores_per_node=6)
    write_files(intel, {"sys/devices/cpu_core/cpus": "0-1", "sys/devices/cpu_atom/cpus": "2-5"})
    arm = write_host(tmp_path / "arm", cores_per_node=6)
    capacities = [1024, 900, 446, 446, 446, 446]
    write_files(arm, {f"sys/devices/system/cpu/cpu{cpu}/cpu_capacity": str(one) for cpu, one in enumerate(capacities)})
    for root in (intel, arm):
        topology = Topology.read(root)
        assert [core.cpus for core in topology.worker_cores] == [(0,), (1,)]
        assert (topology.num_default_threads, topology.num_usable_cores) == (2, 6)
        assert "6 cores (4 efficient)" in topology.describe()
    only_slow = Topology.read(intel, frozenset({3, 4}))
    assert len(only_slow.worker_cores) == 2, "a mask of slow cores alone uses them"


def test_without_sysfs_every_processor_is_a_core(tmp_path: Path) -> None:
    topology = Topology.read(tmp_path, frozenset({2, 5}))
    assert [core.cpus for core in topology.cores] == [(2,), (5,)]
    assert (topology.num_packages, [node.number for node in topology.nodes]) == (1, [0])
    assert len(Topology.read(tmp_path).cores) == os.cpu_count()


def test_old_kernels_name_cores_by_package_and_number(tmp_path: Path) -> None:
    root = write_host(tmp_path, packages=2, cores_per_node=2, threads_per_core=2)
    for path in root.glob("sys/devices/system/cpu/cpu*/topology/core_cpus_list"):
        path.unlink()
    assert [core.cpus for core in Topology.read(root).cores] == [(0, 4), (1, 5), (2, 6), (3, 7)]


@pytest.mark.parametrize("numbers", [[], [0], [0, 1, 2, 3], [1, 3, 4, 5, 9]])
def test_lists_of_processors(numbers: list[int]) -> None:
    assert sorted(parse_cpu_list(listed(numbers))) == numbers


@pytest.mark.parametrize("text", ["a", "1-", "-3", "1-x", "1;2"])
def test_malformed_lists_are_empty(text: str) -> None:
    assert parse_cpu_list(text) == frozenset()


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system has no affinity masks")
def test_the_hosts_topology_follows_the_affinity_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    everywhere = os.sched_getaffinity(0)
    assert host_topology().cpus <= everywhere
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {min(everywhere)})
    assert host_topology().cpus == {min(everywhere)}


def test_a_root_replaces_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AETHERMIND_HOST_ROOT", str(write_host(tmp_path, packages=2, cores_per_node=48)))
    record: Any = host_topology().as_record()
    assert (record["num_packages"], record["num_physical_cores"], record["num_default_threads"]) == (2, 96, 96)
    assert [(node["node"], node["num_physical_cores"]) for node in record["numa_nodes"]] == [(0, 48), (1, 48)]
    assert record["numa_nodes"][1]["cpus"] == list(range(48, 96))
