"""Content digests of files: SHA-256 over the digests of their chunks, truncated to 32 hex digits, without their paths.

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
from aethermind.atomic_file import atomic_write
from aethermind.errors import CheckpointError

__all__ = ["digest_files"]

_CHUNK_BYTES = 64 * 2**20
_NUM_DIGITS = 32
_MIN_AGE_NS = 100_000_000
"""The digest of a file that changed more recently than this is not cached: within the resolution of file timestamps the
file could change again without a new timestamp.
"""


def digest_files(paths: Sequence[Path]) -> str:
    """Return one digest of the contents of all files, in the given order. CheckpointError if one cannot be read."""
    return _truncate(sha256("".join(_cached_digest(path) for path in paths).encode()).hexdigest())


def _cached_digest(path: Path) -> str:
    try:
        status = path.stat()
        file_id = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        cache_key = _truncate(sha256(repr((str(path.resolve()), file_id)).encode()).hexdigest())
        cache_path = env.cache_directory() / "digests" / cache_key
        with suppress(OSError):
            digest = cache_path.read_text("ascii")
            if len(digest) == _NUM_DIGITS:
                return digest
        is_old_enough = time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) > _MIN_AGE_NS
        digest = _hash_file(path, status.st_size)
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read: {error.strerror}. Check the path and its permissions."
        ) from error
    if not is_old_enough:
        return digest
    with suppress(OSError):
        cache_path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(cache_path, [digest.encode("ascii")], is_durable=False)
    return digest


def _hash_file(path: Path, num_bytes: int) -> str:
    """Return SHA-256 over the SHA-256 digests of the file's chunks, which are computed in parallel."""

    def chunk_digest(begin: int) -> bytes:
        chunk = sha256()
        with open(path, "rb", buffering=0) as file:
            file.seek(begin)
            remaining = min(_CHUNK_BYTES, num_bytes - begin)
            while remaining and (data := file.read(min(remaining, 2**20))):
                chunk.update(data)
                remaining -= len(data)
        return chunk.digest()

    with ThreadPoolExecutor(thread_name_prefix="aethermind-digest") as pool:
        chunks = pool.map(chunk_digest, range(0, num_bytes, _CHUNK_BYTES))
        return _truncate(sha256(b"".join(chunks)).hexdigest())


def _truncate(digest: str) -> str:
    return digest[:_NUM_DIGITS]
