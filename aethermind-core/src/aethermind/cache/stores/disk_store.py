"""A KV store in a local directory that several processes share: one file for each block or recurrent state, and an
SQLite index for LRU eviction.

The index is in SQLite's write-ahead mode, in which readers and the one writer do not wait for each other. A row may
exist without its file, if its writer was killed in between. A file without a row does not exist for long: a row is
added before its file is renamed from a temporary name, checked once the file is renamed, and deleted after the file. So
no process has to list the directory.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from aethermind import env
from aethermind.atomic_file import delete_stale, write_partial
from aethermind.cache.stores.kv_store import StoreAddress
from aethermind.errors import ConfigError, InvalidArgumentError

__all__ = ["DiskIndex", "DiskStore", "open_disk_store"]

_BUSY_S = 5.0
_RETRY_S = 0.005
_TABLES = """
CREATE TABLE blocks (key BLOB PRIMARY KEY, num_bytes INTEGER NOT NULL, used INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX by_use ON blocks (used);
CREATE TABLE total (num_bytes INTEGER NOT NULL);
INSERT INTO total VALUES (0);
CREATE TRIGGER came AFTER INSERT ON blocks BEGIN UPDATE total SET num_bytes = num_bytes + NEW.num_bytes; END;
CREATE TRIGGER went AFTER DELETE ON blocks BEGIN UPDATE total SET num_bytes = num_bytes - OLD.num_bytes; END;
CREATE TRIGGER grew AFTER UPDATE OF num_bytes ON blocks
    BEGIN UPDATE total SET num_bytes = num_bytes - OLD.num_bytes + NEW.num_bytes; END;
"""


class DiskIndex:
    """A table of keys with their sizes and times of use. Safe for threads, and for processes on one machine.

    Any method raises sqlite3.Error or OSError if the table cannot be used; the next call tries again with a new
    connection. A damaged table is deleted and created again.
    """

    def __init__(self, path: Path, list_existing: Callable[[], Iterable[tuple[bytes, int]]]) -> None:
        """Use the table in the file at `path`. `list_existing` yields (key, bytes) for the rows of a new table."""
        self._path = path
        self._list_existing = list_existing
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None

    @property
    def num_bytes(self) -> int:
        """The sum of the sizes in all rows."""
        with self._connected() as connection:
            return int(connection.execute("SELECT num_bytes FROM total").fetchone()[0])

    def add(self, sizes: Sequence[tuple[bytes, int]], max_bytes: int, evict: Callable[[bytes], None]) -> None:
        """Enter (key, bytes) rows as used now; `evict` the least recently used until all take `max_bytes` at most."""
        with self._connected() as connection, _transaction(connection):
            now = time.time_ns()
            connection.executemany(
                "INSERT INTO blocks VALUES (?, ?, ?) "
                "ON CONFLICT (key) DO UPDATE SET num_bytes = excluded.num_bytes, used = excluded.used",
                [(key, num_bytes, now) for key, num_bytes in sizes],
            )
            (total,) = connection.execute("SELECT num_bytes FROM total").fetchone()
            evicted = []
            if total > max_bytes:
                oldest = connection.execute("SELECT key, num_bytes FROM blocks ORDER BY used")
                while total > max_bytes and (row := oldest.fetchone()) is not None:
                    evicted.append(row[0])
                    total -= row[1]
                oldest.close()
            for key in evicted:
                evict(key)
            _delete(connection, evicted)

    def confirm(self, keys: Sequence[bytes], evict: Callable[[bytes], None]) -> None:
        """Check rows once their files exist: `evict` the files of rows that another process deleted in between."""
        with self._connected() as connection, _transaction(connection):
            for key in keys:
                if connection.execute("SELECT 1 FROM blocks WHERE key = ?", (key,)).fetchone() is None:
                    evict(key)

    def touch(self, used: Mapping[bytes, int]) -> None:
        """Record the times of use of keys, in nanoseconds."""
        with self._connected() as connection, _transaction(connection):
            rows = [(time_ns, key) for key, time_ns in used.items()]
            connection.executemany("UPDATE blocks SET used = max(used, ?) WHERE key = ?", rows)

    def remove(self, keys: Sequence[bytes], evict: Callable[[bytes], None]) -> None:
        """Delete the rows of keys, after `evict` was called for each."""
        with self._connected() as connection, _transaction(connection):
            for key in keys:
                evict(key)
            _delete(connection, keys)

    def close(self) -> None:
        """Close the connection; the next call opens another one."""
        with self._lock:
            self._disconnect()

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection, for one thread at a time; it is closed after an error."""
        with self._lock:
            if self._connection is not None and self._identity != _identity_of(self._path):
                self._disconnect()  # the directory was deleted, and perhaps created again, since the connection opened
            try:
                yield self._connection or self._connect()
            except BaseException as error:
                self._disconnect()
                if _is_damage(error):
                    self._delete_damaged()
                raise

    def _connect(self) -> sqlite3.Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            _write_ahead(connection)
            connection.execute("PRAGMA synchronous = NORMAL")
            if not _has_tables(connection):
                with _transaction(connection):
                    self._create_tables(connection)
        except BaseException:
            connection.close()
            raise
        self._connection, self._identity = connection, _identity_of(self._path)
        return connection

    def _create_tables(self, connection: sqlite3.Connection) -> None:
        """Create the tables with rows for the existing files, unless another process did that in between."""
        if _has_tables(connection):
            return
        for statement in _statements(_TABLES):
            connection.execute(statement)
        rows = ((key, num_bytes, time.time_ns()) for key, num_bytes in self._list_existing())
        connection.executemany("INSERT OR IGNORE INTO blocks VALUES (?, ?, ?)", rows)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _delete_damaged(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Set the journal mode of a new file. If two processes do so at once, SQLite refuses one without waiting."""
    until = time.monotonic() + _BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(_RETRY_S)


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Run the block as one transaction, during which no other connection can write."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _has_tables(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'blocks'").fetchone() is not None


def _delete(connection: sqlite3.Connection, keys: Sequence[bytes]) -> None:
    connection.executemany("DELETE FROM blocks WHERE key = ?", [(key,) for key in keys])


def _statements(script: str) -> Iterator[str]:
    """Split a script into statements; `executescript` would commit the transaction that is open."""
    statement = ""
    for line in script.splitlines():
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _is_damage(error: BaseException) -> bool:
    codes = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
    return isinstance(error, sqlite3.DatabaseError) and getattr(error, "sqlite_errorcode", None) in codes


def _identity_of(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


_DEFAULT_BYTES = 10 * 2**30
_LAYOUT = "v1"
"""Version of the directory's layout. Each layout has its own folder, so versions of AetherMind do not interfere."""
_SUFFIX = ".safetensors"
_FILE_SYSTEM_BLOCK = 4096
_FLUSH_INTERVAL_NS = 10**9
"""The shortest time between two writes of access times to the index; they are also written before blocks are."""


class DiskStore:
    """A `KVStore` of up to `max_bytes` of files with LRU eviction.

    A file is written under a temporary name and renamed, so a partial one is never read. `max_bytes` is the limit for
    all processes together (each file rounded up to a block of the file system, the index left out); if
    processes have different limits, the smallest counts.
    """

    def __init__(self, directory: str | os.PathLike[str], max_bytes: int) -> None:
        """Open the store in a directory, which is created if it does not exist. Raises OSError if it cannot be."""
        self._directory = Path(directory) / _LAYOUT
        self._directory.mkdir(parents=True, exist_ok=True)
        self._max_bytes = max_bytes
        self._index = DiskIndex(self._directory / "index.sqlite", self._list_files)
        self._lock = threading.Lock()
        self._used: dict[bytes, int] = {}
        self._flushed_at = time.time_ns()

    @property
    def num_bytes(self) -> int:
        """Bytes of the files of all processes, by the index."""
        return self._index.num_bytes

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See `KVStore`."""
        values = [self._read(key) for key in keys]
        now = time.time_ns()
        with self._lock:
            self._used.update((key, now) for key, value in zip(keys, values, strict=True) if value is not None)
            is_due = now - self._flushed_at > _FLUSH_INTERVAL_NS
        if is_due:
            with suppress(OSError, sqlite3.Error):  # the values are right even if the index cannot be updated
                self._flush_access_times()
        return values

    def put(self, entries: Sequence[tuple[bytes, bytes]]) -> None:
        """See `KVStore`."""
        fitting = [(key, value) for key, value in entries if _bytes_on_disk(len(value)) <= self._max_bytes]
        written: list[tuple[Path, Path]] = []
        try:
            for key, value in fitting:
                path = self._path_of(key)
                path.parent.mkdir(parents=True, exist_ok=True)
                partial = write_partial(path, [value], mode=0o666)
                assert partial is not None, "the write has no cancellation"
                written.append((partial, path))
            self._flush_access_times()
            sizes = [(key, _bytes_on_disk(len(value))) for key, value in fitting]
            self._index.add(sizes, self._max_bytes, self._unlink)
            for partial, path in written:
                os.replace(partial, path)
            self._index.confirm([key for key, _ in fitting], self._unlink)
        except BaseException:
            for partial, _ in written:
                with suppress(OSError):
                    partial.unlink(missing_ok=True)
            raise

    def remove(self, keys: Sequence[bytes]) -> None:
        """See `KVStore`."""
        self._index.remove(keys, self._unlink)

    def close(self) -> None:
        """See `KVStore`."""
        with suppress(OSError, sqlite3.Error):
            self._flush_access_times()
        self._index.close()

    def _flush_access_times(self) -> None:
        """Write the times of use since the last call to the index."""
        with self._lock:
            used, self._used = self._used, {}
            self._flushed_at = time.time_ns()
        if used:
            self._index.touch(used)

    def _path_of(self, key: bytes) -> Path:
        digits = key.hex()
        return self._directory / digits[:2] / (digits + _SUFFIX)

    def _read(self, key: bytes) -> bytes | None:
        try:
            return self._path_of(key).read_bytes()
        except FileNotFoundError:
            return None

    def _unlink(self, key: bytes) -> None:
        self._path_of(key).unlink(missing_ok=True)

    def _list_files(self) -> Iterator[tuple[bytes, int]]:
        """Yield the files that exist, for a new index; delete temporary files that were abandoned."""
        for path in self._directory.glob("??/*"):
            with suppress(OSError, ValueError):
                status = path.stat()
                if path.suffix == _SUFFIX:
                    yield bytes.fromhex(path.stem), _bytes_on_disk(status.st_size)
                else:
                    delete_stale(path, status)


def open_disk_store(address: StoreAddress) -> DiskStore:
    """Open `disk:/path?size=10GiB`; ConfigError if the directory cannot be created."""
    address.check_options(("size",))
    if not address.location:
        raise InvalidArgumentError("A KV store on disk needs a directory; write disk:/path, perhaps with ?size=10GiB.")
    try:
        return DiskStore(env.expand_home(address.location), address.size_option("size", _DEFAULT_BYTES))
    except OSError as error:
        raise ConfigError(
            f"{address.location} cannot hold a KV store: {error.strerror}. Choose a directory that can be written."
        ) from None


def _bytes_on_disk(num_bytes: int) -> int:
    return -(-num_bytes // _FILE_SYSTEM_BLOCK) * _FILE_SYSTEM_BLOCK
