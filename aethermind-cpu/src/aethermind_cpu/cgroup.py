"""What the control groups of this process allow it, both versions of them: processor time, and memory.

A group allows no more than the groups above it, so all of them are asked. See `cgroups(7)` of Linux; elsewhere nothing
is limited.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

__all__ = ["memory_room", "processor_quota"]

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


def memory_room(root: Path = _ROOT) -> int | None:
    """Bytes that may still be taken; None where nothing says. Never negative."""
    rooms = []
    for group in _groups(root, "memory"):
        limit = _read(group / "memory.max") or _read(group / "memory.limit_in_bytes")
        used = _read(group / "memory.current") or _read(group / "memory.usage_in_bytes")
        if limit.isdecimal() and used.isdecimal():
            rooms.append(max(int(limit) - int(used), 0))
    return min(rooms, default=None)


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
