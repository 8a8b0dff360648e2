"""Cache folders: files that several processes write and read at once, evicted least recently used first.

A file appears under its name only when it is complete: it is written beside its place, under a name that ends with
`PARTIAL`, and renamed. The time of modification of a file is that of its last use. Names are digests of all that the
contents depend on, so nothing is ever overwritten with other contents; readers treat a damaged file as a miss.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

__all__ = [
    "CacheFolder",
    "PARTIAL",
    "atomic_write",
    "delete_stale",
    "digest_of",
    "file_stamp",
    "files_by_lru",
    "write_partial",
]

PARTIAL = ".part"
"""The suffix of files that are being written."""

_STALE_AFTER_S = 3600.0
"""A partial file that was not written to for so long was left by a process that died."""


class CacheFolder:
    """Files `KEY` + `suffix` in the folder `path`, at most `max_files` of them and `max_bytes` together.

    A process that has mapped a file keeps its mapping when another one evicts the file.
    """

    def __init__(self, path: Path, suffix: str, *, max_files: int | None = None, max_bytes: int | None = None) -> None:
        self.path = path
        self.max_files = max_files
        self.max_bytes = max_bytes
        self._suffix = suffix

    def place(self, key: str) -> Path:
        """Return the path of the file of a key, whether it exists or not."""
        return self.path / (key + self._suffix)

    def has(self, key: str) -> bool:
        """Whether there is a file for a key."""
        return self.place(key).exists()

    def touch(self, key: str) -> None:
        """Record that the file of a key was used now, if the folder can be written."""
        with suppress(OSError):
            os.utime(self.place(key))

    def discard(self, key: str) -> None:
        """Delete the file of a key, such as one that is damaged, if it exists and the folder can be written."""
        with suppress(OSError):
            self.place(key).unlink()

    def create(self) -> None:
        """Make the folder, readable by its user alone; OSError where that is impossible."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def evict(self, nbytes: int = 0) -> None:
        """Delete the least recently used files until one more of `nbytes` fits; OSError where there is no folder."""
        files = files_by_lru(self.path, self._suffix)
        count, total = len(files), sum(size for _, size in files)
        for path, size in files:
            if self._fits(count + 1, total + nbytes):
                break
            with suppress(OSError):
                path.unlink()
                count, total = count - 1, total - size

    def write(
        self, key: str, parts: Iterable[bytes | memoryview], is_cancelled: Callable[[], bool] = lambda: False
    ) -> bool:
        """Write the file of a key, as `atomic_write` does, into a folder that exists."""
        return atomic_write(self.place(key), parts, is_cancelled)

    def _fits(self, num_files: int, num_bytes: int) -> bool:
        is_few = self.max_files is None or num_files <= self.max_files
        return is_few and (self.max_bytes is None or num_bytes <= self.max_bytes)


def atomic_write(
    place: Path,
    parts: Iterable[bytes | memoryview],
    is_cancelled: Callable[[], bool] = lambda: False,
    *,
    is_durable: bool = True,
) -> bool:
    """Write a file beside its place and rename it when it is complete: readers see all of it, or what was there before.

    Returns False where `is_cancelled()` was true before one of the `parts`. OSError where writing is impossible. Either
    way no partial file is left. With `is_durable` the contents reach the disk before the name does.
    """
    partial = write_partial(place, parts, is_cancelled, is_durable=is_durable)
    if partial is None:
        return False
    try:
        os.replace(partial, place)
    except BaseException:
        _unlink(partial)
        raise
    return True


def write_partial(
    place: Path,
    parts: Iterable[bytes | memoryview],
    is_cancelled: Callable[[], bool] = lambda: False,
    *,
    mode: int = 0o600,
    is_durable: bool = False,
) -> Path | None:
    """Write a complete file beside `place`, to be renamed by the caller; `mode` are its permissions, less the umask.

    Returns its path, or None where `is_cancelled()` was true before one of the `parts`. OSError where writing is
    impossible. In these two cases no partial file is left.
    """
    partial = place.with_name(f"{place.stem[:8]}-{os.getpid()}-{os.urandom(6).hex()}{PARTIAL}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), mode)
    try:
        with open(descriptor, "wb", buffering=0) as file:
            for part in parts:
                if is_cancelled():
                    _unlink(partial)
                    return None
                rest = memoryview(part)
                while rest:
                    rest = rest[file.write(rest) :]
            if is_durable:
                os.fsync(descriptor)
    except BaseException:
        _unlink(partial)
        raise
    return partial


def files_by_lru(folder: Path, suffix: str) -> list[tuple[Path, int]]:
    """Return the files of a folder with this suffix and their sizes in bytes, the least recently used first.

    Deletes partial files that are stale.
    """
    files = []
    for path in folder.iterdir():
        with suppress(OSError):
            status = path.stat()
            if path.suffix == suffix:
                files.append((status.st_mtime_ns, status.st_size, path))
            else:
                delete_stale(path, status)
    return [(path, size) for _, size, path in sorted(files)]


def delete_stale(path: Path, status: os.stat_result) -> None:
    """Delete a partial file of this status that a process which died has left; OSError where that is impossible."""
    if path.suffix == PARTIAL and time.time() - status.st_mtime > _STALE_AFTER_S:
        path.unlink()


def file_stamp(path: Path) -> list[Any]:
    """Return what changes when a file does: name, inode, size, and times of modification and of change in ns.

    A copy of the file has another stamp. OSError where the file is missing.
    """
    status = os.stat(path)
    return [path.name, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def digest_of(described: Any) -> str:
    """Return 32 hexadecimal digits of the SHA-256 digest of JSON types: a key for what they describe."""
    return sha256(json.dumps(described).encode()).hexdigest()[:32]


def _unlink(path: Path) -> None:
    with suppress(OSError):
        os.unlink(path)
