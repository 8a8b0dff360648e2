"""A KV cache store: a table in a SQLite file that all processes on a machine share.

Errors are raised unchanged: the engine then computes the blocks itself and retries later.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from aethermind.cache.stores import StoreAddress
from aethermind.errors import InvalidArgumentError

__all__ = ["SqliteStore", "open_store"]

_TABLE = "CREATE TABLE IF NOT EXISTS kv (key BLOB PRIMARY KEY, value BLOB NOT NULL, used INTEGER NOT NULL)"
_USED = "(SELECT 1 + COALESCE(MAX(used), 0) FROM kv)"
_DEFAULT_SIZE = 10 << 30
_LOCK_TIMEOUT_S = 2.0


class SqliteStore:
    """An LRU key-value store of at most `max_bytes` in a database file."""

    def __init__(self, path: str, size: int) -> None:
        """Store the settings; the file is opened lazily."""
        self._path = path
        self._size = size

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key, or None if the key is missing."""
        with self._database() as database:
            rows = [database.execute("SELECT value FROM kv WHERE key = ?", (key,)).fetchone() for key in keys]
            database.executemany(f"UPDATE kv SET used = {_USED} WHERE key = ?", [(key,) for key in keys])
        return [None if row is None else row[0] for row in rows]

    def put(self, entries: Sequence[tuple[bytes, bytes]]) -> None:
        """Store (key, value) pairs and evict the least recently used ones beyond the limit."""
        with self._database() as database:
            database.executemany(f"INSERT OR REPLACE INTO kv VALUES (?, ?, {_USED})", entries)
            sizes = database.execute("SELECT used, LENGTH(value) FROM kv ORDER BY used DESC").fetchall()
            total = 0
            for used, num_bytes in sizes:
                total += num_bytes
                if total > self._size:
                    database.execute("DELETE FROM kv WHERE used <= ?", (used,))
                    break

    def remove(self, keys: Sequence[bytes]) -> None:
        """Remove values; missing keys are ignored."""
        with self._database() as database:
            database.executemany("DELETE FROM kv WHERE key = ?", [(key,) for key in keys])

    def close(self) -> None:
        """Nothing to close: no connection is open between calls."""

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        """Open a connection for one call: two threads call, and a SQLite connection belongs to one."""
        database = sqlite3.connect(self._path, timeout=_LOCK_TIMEOUT_S)
        try:
            database.execute("PRAGMA synchronous = OFF")  # values lost in a power failure are recomputed
            with database:  # commits, or rolls back a failed call
                database.execute(_TABLE)
                yield database
        finally:
            database.close()


def open_store(address: StoreAddress) -> SqliteStore:
    """Open `sqlite:FILE?size=20GiB`; InvalidArgumentError for other addresses."""
    address.check_options({"size"})
    if not address.location:
        raise InvalidArgumentError("A KV store sqlite needs a file; write sqlite:/path/to/kv.db.")
    return SqliteStore(address.location, address.size_option("size", _DEFAULT_SIZE))
