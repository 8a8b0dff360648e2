"""Limits of this process's control groups (cgroup v1 and v2): processor time, processors and memory.

A group is limited by the groups above it as well, so all of them are read. See `cgroups(7)`; other systems than
Linux have no limits.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

__all__ = ["allowed_by_cpuset", "available_memory", "memory_limit", "parse_cpu_list", "processor_quota", "read_text"]

_ROOT = Path("/")


def processor_quota(root: Path = _ROOT) -> float | None:
    """Return the CPU quota in processors, or None without a limit."""
    quotas = []
    for group in _groups(root, "cpu"):
        quota, _, period = read_text(group / "cpu.max").partition(" ")
        if not quota:
            quota, period = read_text(group / "cpu.cfs_quota_us"), read_text(group / "cpu.cfs_period_us")
        if quota.isdecimal() and period.isdecimal():  # not "max" or -1
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def allowed_by_cpuset(root: Path = _ROOT) -> frozenset[int] | None:
    """Return the processors of this process's cpuset, or None without one."""
    for group in _groups(root, "cpuset"):
        for name in ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"):
            if cpus := parse_cpu_list(read_text(group / name)):
                return cpus
    return None


def parse_cpu_list(text: str) -> frozenset[int]:
    """Return the numbers in a list of the kernel, such as `0-3,8`; empty for a malformed one."""
    numbers: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, dash, last = part.partition("-")
        if not dash:
            last = first
        if not (first.isdecimal() and last.isdecimal()):
            return frozenset()
        numbers.update(range(int(first), int(last) + 1))
    return frozenset(numbers)


def memory_limit(root: Path = _ROOT) -> int | None:
    """Return the memory limit in bytes, or None without one."""
    return min((limit for _, limit in _memory_limits(root)), default=None)


def available_memory(root: Path = _ROOT) -> int | None:
    """Return the bytes that may still be allocated, never negative, or None without a limit.

    The page cache counts as used in a group but is reclaimed under memory pressure, so it counts as available here.
    """
    available = []
    for group, limit in _memory_limits(root):
        used = read_text(group / "memory.current") or read_text(group / "memory.usage_in_bytes")
        if used.isdecimal():
            available.append(min(max(limit - int(used) + _page_cache(group), 0), limit))
    return min(available, default=None)


def _memory_limits(root: Path) -> Iterator[tuple[Path, int]]:
    """Yield the groups that limit memory, with their limits in bytes."""
    for group in _groups(root, "memory"):
        limit = read_text(group / "memory.max") or read_text(group / "memory.limit_in_bytes")
        if limit.isdecimal():
            yield group, int(limit)


def _page_cache(group: Path) -> int:
    """Return the bytes of the group's page cache, including child groups, without shared memory."""
    fields = dict(line.split(" ", 1) for line in read_text(group / "memory.stat").splitlines() if " " in line)
    sizes = [fields.get(f"total_{name}", fields.get(name, "0")) for name in ("inactive_file", "active_file")]
    return sum(int(size) for size in sizes if size.isdecimal())


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the directories of this process's group and its parents; a container may not see them."""
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / (controller if controllers else "")
        for group in (PurePosixPath(path), *PurePosixPath(path).parents):
            yield mount / str(group).lstrip("/")


def read_text(path: Path) -> str:
    """Return the stripped contents of a file of the kernel, empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""
