"""Control group limits of both versions, read from a fake file system."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.made_up_host import write_files as write

from aethermind.hal.cgroup import available_memory, memory_limit, processor_quota


def test_no_limits_without_cgroup_files(tmp_path: Path) -> None:
    assert (processor_quota(tmp_path), available_memory(tmp_path)) == (None, None)
    write(tmp_path, {"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/b/cpu.max": "max 100000"})
    write(tmp_path, {"sys/fs/cgroup/a/b/memory.max": "max", "sys/fs/cgroup/a/b/memory.current": "5"})
    assert (processor_quota(tmp_path), available_memory(tmp_path)) == (None, None)


def test_the_lowest_limit_of_all_parent_groups_applies(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/user/slice/job",
            "sys/fs/cgroup/user/slice/job/cpu.max": "800000 100000",
            "sys/fs/cgroup/user/slice/cpu.max": "150000 100000",
            "sys/fs/cgroup/cpu.max": "max 100000",
            "sys/fs/cgroup/user/memory.max": "1000",
            "sys/fs/cgroup/user/memory.current": "400",
            "sys/fs/cgroup/user/slice/job/memory.max": "900",
            "sys/fs/cgroup/user/slice/job/memory.current": "100",
        },
    )
    assert (processor_quota(tmp_path), available_memory(tmp_path), memory_limit(tmp_path)) == (1.5, 600, 900)


def test_a_container_sees_its_own_group_as_the_root(tmp_path: Path) -> None:
    write(tmp_path, {"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "200000 100000"})
    assert processor_quota(tmp_path) == 2


def test_cgroup_v1_has_a_hierarchy_for_each_controller(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "9:name=systemd:/\n4:memory:/job\n2:cpu,cpuacct:/job\n3:cpuset:/other",
            "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "300000",
            "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "100",
            "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "130",
        },
    )
    assert (processor_quota(tmp_path), available_memory(tmp_path)) == (3, 0)


@pytest.mark.parametrize(
    ("stat", "available"),
    [
        ("", 100),
        ("anon 700\ninactive_file 150\nactive_file 50", 300),
        ("inactive_file 1\nactive_file 1\ntotal_inactive_file 150\ntotal_active_file 0", 250),
        ("inactive_file 5000", 1000),
    ],
)
def test_the_page_cache_counts_as_available_memory(tmp_path: Path, stat: str, available: int) -> None:
    """Pages of files count as used, but are reclaimed under memory pressure."""
    write(tmp_path, {"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": "1000", "sys/fs/cgroup/memory.stat": stat})
    assert available_memory(tmp_path) is None
    write(tmp_path, {"sys/fs/cgroup/memory.current": "900"})
    assert available_memory(tmp_path) == available
