"""Files that are written atomically: readers see a file complete or not at all.

A file is written to a temporary file in the same folder, whose name ends with `PARTIAL`, and then renamed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

__all__ = ["PARTIAL", "atomic_write", "delete_stale", "write_partial"]

PARTIAL = ".part"
"""The suffix of files that are being written."""

_STALE_AFTER_S = 3600.0
"""A partial file not written to for this many seconds is assumed to be left by a process that died."""


def atomic_write(
    path: Path,
    parts: Iterable[bytes | memoryview],
    is_cancelled: Callable[[], bool] = lambda: False,
    *,
    is_durable: bool = True,
) -> bool:
    """Write a temporary file in the same folder, then rename it to `path`: readers see the old file or all of the new.

    Returns False if `is_cancelled()` became true before the last of the `parts` was written. OSError if writing fails.
    Either way no partial file is left. With `is_durable` the file is fsynced before it is renamed.
    """
    partial = write_partial(path, parts, is_cancelled, is_durable=is_durable)
    if partial is None:
        return False
    try:
        os.replace(partial, path)
    except BaseException:
        _unlink(partial)
        raise
    return True


def write_partial(
    path: Path,
    parts: Iterable[bytes | memoryview],
    is_cancelled: Callable[[], bool] = lambda: False,
    *,
    mode: int = 0o600,
    is_durable: bool = False,
) -> Path | None:
    """Write a complete temporary file in the folder of `path`, for the caller to rename.

    `mode` is its permissions before the umask. Returns its path, or None if `is_cancelled()` became true before the
    last of the `parts` was written. OSError if writing fails. In these two cases no partial file is left.
    """
    partial = path.with_name(f"{path.stem[:8]}-{os.getpid()}-{os.urandom(6).hex()}{PARTIAL}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), mode)
    try:
        with open(descriptor, "wb", buffering=0) as file:
            for part in parts:
                if is_cancelled():
                    _unlink(partial)
                    return None
                remaining = memoryview(part)
                while remaining:
                    remaining = remaining[file.write(remaining) :]
            if is_durable:
                os.fsync(descriptor)
    except BaseException:
        _unlink(partial)
        raise
    return partial


def delete_stale(path: Path, status: os.stat_result) -> None:
    """Delete `path` if it is a stale partial file; `status` is its `stat()` result. OSError if it cannot be deleted."""
    if path.suffix == PARTIAL and time.time() - status.st_mtime > _STALE_AFTER_S:
        path.unlink()


def _unlink(path: Path) -> None:
    with suppress(OSError):
        os.unlink(path)
