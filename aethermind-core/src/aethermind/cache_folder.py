"""Cache folders: files that several processes write and read at once, evicted least recently used first.

A file appears under its name only when it is complete (see `atomic_file`). The modification time of a file records its
last use. A name is a digest of everything that the contents depend on, so a file is never overwritten with other
contents. Readers treat a damaged file as a cache miss.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from aethermind.atomic_file import atomic_write, delete_stale

__all__ = [
    "CacheFolder",
    "digest_of",
    "file_fingerprint",
    "files_by_lru",
]


class CacheFolder:
    """A folder `path` of files named `KEY` + `suffix`, limited to `max_files` files and `max_bytes` in total.

    A process that has mapped a file keeps its mapping when another one evicts the file.
    """

    def __init__(self, path: Path, suffix: str, *, max_files: int | None = None, max_bytes: int | None = None) -> None:
        self.path = path
        self.max_files = max_files
        self.max_bytes = max_bytes
        self._suffix = suffix

    def path_of(self, key: str) -> Path:
        """Return the path of the file of a key, whether it exists or not."""
        return self.path / (key + self._suffix)

    def has(self, key: str) -> bool:
        """Whether there is a file for a key."""
        return self.path_of(key).exists()

    def touch(self, key: str) -> None:
        """Record that the file of a key was used now, if the folder can be written."""
        with suppress(OSError):
            os.utime(self.path_of(key))

    def discard(self, key: str) -> None:
        """Delete the file of a key, such as one that is damaged, if it exists and the folder can be written."""
        with suppress(OSError):
            self.path_of(key).unlink()

    def create(self) -> None:
        """Make the folder, with access for its user only; OSError if that fails."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def evict(self, nbytes: int = 0) -> None:
        """Delete the least recently used files until another file of `nbytes` fits; OSError if there is no folder."""
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
        """Write the file of a key with `atomic_write`. The folder must exist."""
        return atomic_write(self.path_of(key), parts, is_cancelled)

    def _fits(self, num_files: int, num_bytes: int) -> bool:
        fits_max_files = self.max_files is None or num_files <= self.max_files
        return fits_max_files and (self.max_bytes is None or num_bytes <= self.max_bytes)


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


def file_fingerprint(path: Path) -> list[Any]:
    """Return a fingerprint that changes when the file does: name, inode, size, mtime and ctime in ns.

    A copy of the file has a different fingerprint. OSError if the file does not exist.
    """
    status = os.stat(path)
    return [path.name, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def digest_of(value: Any) -> str:
    """Return a cache key: the first 32 hex digits of the SHA-256 digest of a JSON-serialisable value."""
    return sha256(json.dumps(value).encode()).hexdigest()[:32]
