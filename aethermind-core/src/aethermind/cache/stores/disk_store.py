"""Blocks as files in a local directory that several processes may use at once."""

from __future__ import annotations

import itertools
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from aethermind import env
from aethermind.cache.stores.address import StoreAddress
from aethermind.cache.stores.disk_index import DiskIndex
from aethermind.errors import ConfigError, InvalidArgumentError

__all__ = ["DiskStore", "open_disk_store"]

_DEFAULT_BYTES = 10 * 2**30
_LAYOUT = "v1"
"""Of the directory. Another one gets a folder of its own, so that versions of AetherMind do not meet."""
_SUFFIX = ".safetensors"
_PAGE_BYTES = 4096
_LOST_AFTER_S = 3600.0
_TELL_EVERY_NS = 10**9
"""Readers tell the index what they used not more often than that, and whenever they write."""


class DiskStore:
    """Up to `max_bytes` of files, the least recently used given up first; a `KVStore`.

    A file is written beside its place and moved there, so nobody reads half of one. `max_bytes` holds for all
    processes together (counted in pages, without the index); of different limits the smallest counts.
    """

    def __init__(self, directory: str | os.PathLike[str], max_bytes: int) -> None:
        """The store in a directory, which is made if it does not exist. Raises OSError where that is impossible."""
        self._directory = Path(directory) / _LAYOUT
        self._directory.mkdir(parents=True, exist_ok=True)
        self._max_bytes = max_bytes
        self._index = DiskIndex(self._directory / "index.sqlite", self._files)
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._used: dict[bytes, int] = {}
        self._told_at = time.time_ns()

    @property
    def num_bytes(self) -> int:
        """Bytes that the files of all processes take, by the index."""
        return self._index.num_bytes

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See `KVStore`."""
        values = [self._read(key) for key in keys]
        now = time.time_ns()
        with self._lock:
            self._used.update((key, now) for key, value in zip(keys, values, strict=True) if value is not None)
            is_due = now - self._told_at > _TELL_EVERY_NS
        if is_due:
            with suppress(OSError, sqlite3.Error):  # what was read is right whatever the index says
                self._tell_uses()
        return values

    def put(self, entries: Sequence[tuple[bytes, bytes]]) -> None:
        """See `KVStore`."""
        fitting = [(key, value) for key, value in entries if _num_pages_bytes(len(value)) <= self._max_bytes]
        written: list[tuple[Path, Path]] = []
        try:
            for key, value in fitting:
                place = self._place(key)
                place.parent.mkdir(parents=True, exist_ok=True)
                beside = place.with_name(f"{place.stem}.{os.getpid()}-{next(self._numbers)}.part")
                written.append((beside, place))
                beside.write_bytes(value)
            self._tell_uses()
            sizes = [(key, _num_pages_bytes(len(value))) for key, value in fitting]
            self._index.add(sizes, self._max_bytes, self._unlink)
            for beside, place in written:
                os.replace(beside, place)
            self._index.settle([key for key, _ in fitting], self._unlink)
        except BaseException:
            for beside, _ in written:
                with suppress(OSError):
                    beside.unlink(missing_ok=True)
            raise

    def remove(self, keys: Sequence[bytes]) -> None:
        """See `KVStore`."""
        self._index.remove(keys, self._unlink)

    def close(self) -> None:
        """See `KVStore`."""
        with suppress(OSError, sqlite3.Error):
            self._tell_uses()
        self._index.close()

    def _tell_uses(self) -> None:
        """Let the index know what was read since the last time."""
        with self._lock:
            used, self._used = self._used, {}
            self._told_at = time.time_ns()
        if used:
            self._index.touch(used)

    def _place(self, key: bytes) -> Path:
        digits = key.hex()
        return self._directory / digits[:2] / (digits + _SUFFIX)

    def _read(self, key: bytes) -> bytes | None:
        try:
            return self._place(key).read_bytes()
        except FileNotFoundError:
            return None

    def _unlink(self, key: bytes) -> None:
        self._place(key).unlink(missing_ok=True)

    def _files(self) -> Iterator[tuple[bytes, int]]:
        """What lies there without an index; what somebody began to write long ago goes."""
        for path in self._directory.glob("??/*"):
            with suppress(OSError, ValueError):
                status = path.stat()
                if path.suffix == _SUFFIX:
                    yield bytes.fromhex(path.stem), _num_pages_bytes(status.st_size)
                elif path.suffix == ".part" and time.time() - status.st_mtime > _LOST_AFTER_S:
                    path.unlink()


def open_disk_store(address: StoreAddress) -> DiskStore:
    """`disk:/path?size=10GiB`; ConfigError where there can be no such directory."""
    address.check_options(("size",))
    if not address.location:
        raise InvalidArgumentError("A KV store on disk needs a directory; write disk:/path, perhaps with ?size=10GiB.")
    try:
        return DiskStore(env.expand_home(address.location), address.size_option("size", _DEFAULT_BYTES))
    except OSError as error:
        raise ConfigError(
            f"{address.location} cannot hold a KV store: {error.strerror}. Choose a directory that can be written."
        ) from None


def _num_pages_bytes(num_bytes: int) -> int:
    return -(-num_bytes // _PAGE_BYTES) * _PAGE_BYTES
