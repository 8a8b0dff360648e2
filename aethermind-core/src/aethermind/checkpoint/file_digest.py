"""Digests of the contents of files, in 32 hexadecimal digits, independent of the files' location.

Reading a whole checkpoint takes seconds, so the digest of a file is cached in the user's cache directory
(`XDG_CACHE_HOME`, else `~/.cache`). A changed size, modification time or inode change time invalidates it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from aethermind import env
from aethermind.cache_folder import atomic_write
from aethermind.errors import CheckpointError

__all__ = ["digest_files"]

_PIECE_BYTES = 64 * 2**20
_NUM_DIGITS = 32
_TICK_NS = 100_000_000
"""Longer than the resolution of file times: a file that changed so recently may change again without a new time, so
its digest is not cached.
"""


def digest_files(paths: Sequence[Path]) -> str:
    """Compute the digest of files in their order, without their names. CheckpointError if one cannot be read."""
    return _short(sha256("".join(_digest(path) for path in paths).encode()).hexdigest())


def _digest(path: Path) -> str:
    try:
        status = path.stat()
        seen = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        name = _short(sha256(repr((str(path.resolve()), seen)).encode()).hexdigest())
        cached = env.cache_directory() / "digests" / name
        with suppress(OSError):
            known = cached.read_text("ascii")
            if len(known) == _NUM_DIGITS:
                return known
        is_settled = time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) > _TICK_NS
        found = _read(path, status.st_size)
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read: {error.strerror}. Check the path and its permissions."
        ) from error
    if not is_settled:
        return found
    with suppress(OSError):
        cached.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(cached, [found.encode("ascii")], is_durable=False)
    return found


def _read(path: Path, num_bytes: int) -> str:
    """Hash the digests of a file's pieces, which several threads compute."""

    def digest(begin: int) -> bytes:
        piece = sha256()
        with open(path, "rb", buffering=0) as file:
            file.seek(begin)
            left = min(_PIECE_BYTES, num_bytes - begin)
            while left and (data := file.read(min(left, 2**20))):
                piece.update(data)
                left -= len(data)
        return piece.digest()

    with ThreadPoolExecutor(thread_name_prefix="aethermind-digest") as pool:
        pieces = pool.map(digest, range(0, num_bytes, _PIECE_BYTES))
        return _short(sha256(b"".join(pieces)).hexdigest())


def _short(digest: str) -> str:
    return digest[:_NUM_DIGITS]
