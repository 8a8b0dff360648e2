"""What the control groups of this process allow it, both versions of them: processor time, and memory.

A group allows no more than the groups above it, so all of them are asked. See `cgroups(7)` of Linux; elsewhere nothing
is limited.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

__all__ = ["memory_limit", "memory_room", "processor_quota"]

_ROOT = Path("/")


def processor_quota(root: Path = _ROOT) -> float | None:
    """How many processors' time may be used; None where nothing says."""
    quotas = []
    for group in _groups(root, "cpu"):
        quota, _, period = _read(group / "cpu.max").partition(" ")
        if not quota:
            quota, period = _read(group / "cpu.cfs_quota_us"), _read(group / "cpu.cfs_period_us")
        if quota.isdecimal() and period.isdecimal():  # neither "max" nor -1
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def memory_limit(root: Path = _ROOT) -> int | None:
    """Bytes that may be used in all; None where nothing says."""
    return min((limit for _, limit in _memory_limits(root)), default=None)


def memory_room(root: Path = _ROOT) -> int | None:
    """Bytes that may still be taken; None where nothing says. Never negative.

    What files have in the page cache counts as used in a group, and is given up for whoever needs memory.
    """
    rooms = []
    for group, limit in _memory_limits(root):
        used = _read(group / "memory.current") or _read(group / "memory.usage_in_bytes")
        if used.isdecimal():
            rooms.append(min(max(limit - int(used) + _page_cache(group), 0), limit))
    return min(rooms, default=None)


def _memory_limits(root: Path) -> Iterator[tuple[Path, int]]:
    """The groups that limit memory, and their limits in bytes."""
    for group in _groups(root, "memory"):
        limit = _read(group / "memory.max") or _read(group / "memory.limit_in_bytes")
        if limit.isdecimal():
            yield group, int(limit)


def _page_cache(group: Path) -> int:
    """Bytes of files in memory, those of the groups below included. Shared memory is not among them."""
    fields = dict(line.split(" ", 1) for line in _read(group / "memory.stat").splitlines() if " " in line)
    sizes = [fields.get(f"total_{name}", fields.get(name, "0")) for name in ("inactive_file", "active_file")]
    return sum(int(size) for size in sizes if size.isdecimal())


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """The directories of this process's group and of those above it; in a container they may not be visible."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / (controller if controllers else "")
        for group in (PurePosixPath(path), *PurePosixPath(path).parents):
            yield mount / str(group).lstrip("/")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
