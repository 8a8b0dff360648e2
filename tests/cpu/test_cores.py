"""The default number of worker threads, their CPU sets, and the memory of a container."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.made_up_host import write_files, write_host

from aethermind import Runtime
from aethermind.hal.host_memory import host_memory_bytes
from aethermind_cpu import devices
from aethermind_cpu.devices import CpuDevices


def test_total_memory_is_a_containers_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "memory_limit", lambda: 1000)
    assert CpuDevices((), lambda: None).properties(0).total_memory_bytes == 1000
    monkeypatch.setattr(devices, "memory_limit", lambda: 1 << 60)
    assert CpuDevices((), lambda: None).properties(0).total_memory_bytes == host_memory_bytes()


def limit_cpus(root: Path, num_cpus: float) -> None:
    write_files(root, {"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": f"{int(num_cpus * 1e5)} 100000"})


def test_default_threads_are_physical_cores_within_the_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight processors, two per core."""
    for quota, expected in ((8.0, 4), (2.4, 2), (1.5, 2), (0.2, 1)):
        root = write_host(tmp_path / str(quota), cores_per_node=4, threads_per_core=2)
        limit_cpus(root, quota)
        monkeypatch.setenv("AETHERMIND_HOST_ROOT", str(root))
        assert devices.num_physical_cores() == expected


def test_workers_are_pinned_only_with_one_worker_per_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AETHERMIND_CPU_AFFINITY", raising=False)
    free = write_host(tmp_path / "free", cores_per_node=4, threads_per_core=2, allowed="0,1,4,5")
    monkeypatch.setenv("AETHERMIND_HOST_ROOT", str(free))
    assert devices.worker_cpu_sets(2) == [[0, 4], [1, 5]]
    assert devices.worker_cpu_sets(1) == [[0, 1, 4, 5]]
    assert devices.worker_cpu_sets(3) == [[0, 1, 4, 5]] * 3
    limited = write_host(tmp_path / "limited", cores_per_node=4, threads_per_core=2, allowed="0,1,4,5")
    limit_cpus(limited, 1)
    monkeypatch.setenv("AETHERMIND_HOST_ROOT", str(limited))
    assert devices.worker_cpu_sets(2) == [[0, 1, 4, 5]] * 2


@pytest.mark.parametrize(("num_threads", "is_warned"), [(2, False), (3, True), (None, False)])
def test_more_threads_than_cores_are_warned_of(
    runtime: Runtime,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    num_threads: int | None,
    is_warned: bool,
) -> None:
    """Two cores of two hardware threads each: four processors are not four cores."""
    monkeypatch.setenv("AETHERMIND_HOST_ROOT", str(write_host(tmp_path, cores_per_node=2, threads_per_core=2)))
    runtime.open_device("cpu", num_threads=num_threads).backend.close()
    warning = "3 threads on 2 cores wait for each other, which is slower: ask for at most 2."
    assert [record.message for record in caplog.records if "wait for each other" in record.message] == (
        [warning] if is_warned else []
    )
