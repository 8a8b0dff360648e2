"""Files in a folder that several processes may use at once: each is there as a whole or not, and what was used least
recently is given up first.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

__all__ = ["UNFINISHED", "by_use", "write_whole"]

UNFINISHED = ".part"
"""How the names of files end that are being written."""

_LOST_AFTER_S = 3600.0


def write_whole(place: Path, parts: Iterable[bytes | memoryview], is_over: Callable[[], bool] = lambda: False) -> bool:
    """Write a file beside its place and move it there once it is on disk, so that nobody maps half of one; False where
    `is_over` said so before a part.

    OSError where that is impossible. Either way nothing is left behind.
    """
    descriptor, name = tempfile.mkstemp(UNFINISHED, place.name[:8], place.parent)
    try:
        with open(descriptor, "wb", buffering=0) as file:
            for part in parts:
                if is_over():
                    return False
                rest = memoryview(part)
                while rest:
                    rest = rest[file.write(rest) :]
            os.fsync(descriptor)
        os.replace(name, place)
    finally:
        with suppress(OSError):
            os.unlink(name)
    return True


def by_use(folder: Path, suffix: str) -> list[tuple[Path, int]]:
    """The files whose names end so and their sizes in bytes, the least recently used first. What somebody began to
    write long ago is deleted.
    """
    files = []
    for path in folder.iterdir():
        with suppress(OSError):
            status = path.stat()
            if path.suffix == suffix:
                files.append((status.st_mtime_ns, status.st_size, path))
            elif path.suffix == UNFINISHED and time.time() - status.st_mtime > _LOST_AFTER_S:
                path.unlink()
    return [(path, size) for _, size, path in sorted(files)]
