"""The store: a table of values in a file that the processes of one machine share.

Whatever goes wrong is raised as it comes: the engine computes instead, and asks again later.
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
_PATIENCE_S = 2.0


class SqliteStore:
    """Values in a database of at most so many bytes; what was used least recently goes first."""

    def __init__(self, path: str, size: int) -> None:
        """Nothing is opened before it is asked for."""
        self._path = path
        self._size = size

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The value of each key, None where there is none."""
        with self._database() as database:
            found = [database.execute("SELECT value FROM kv WHERE key = ?", (key,)).fetchone() for key in keys]
            database.executemany(f"UPDATE kv SET used = {_USED} WHERE key = ?", [(key,) for key in keys])
        return [None if row is None else row[0] for row in found]

    def put(self, entries: Sequence[tuple[bytes, bytes]]) -> None:
        """Keep (key, value) pairs, and no more bytes than there is room for."""
        with self._database() as database:
            database.executemany(f"INSERT OR REPLACE INTO kv VALUES (?, ?, {_USED})", entries)
            sizes = database.execute("SELECT used, LENGTH(value) FROM kv ORDER BY used DESC").fetchall()
            kept = 0
            for used, num_bytes in sizes:
                kept += num_bytes
                if kept > self._size:
                    database.execute("DELETE FROM kv WHERE used <= ?", (used,))
                    break

    def remove(self, keys: Sequence[bytes]) -> None:
        """Forget values; keys without one do not matter."""
        with self._database() as database:
            database.executemany("DELETE FROM kv WHERE key = ?", [(key,) for key in keys])

    def close(self) -> None:
        """No connection is open between calls."""

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        """A connection for one call: two threads call, and connections of SQLite belong to one."""
        database = sqlite3.connect(self._path, timeout=_PATIENCE_S)
        try:
            database.execute("PRAGMA synchronous = OFF")  # what a power cut takes is computed again: no need to wait
            with database:  # commits, or takes back what a failing call has done
                database.execute(_TABLE)
                yield database
        finally:
            database.close()


def open_store(address: StoreAddress) -> SqliteStore:
    """`sqlite:FILE?size=20GiB`; InvalidArgumentError for an address that says something else."""
    address.check_options({"size"})
    if not address.location:
        raise InvalidArgumentError("A KV store sqlite needs a file; write sqlite:/path/to/kv.db.")
    return SqliteStore(address.location, address.size_option("size", _DEFAULT_SIZE))
