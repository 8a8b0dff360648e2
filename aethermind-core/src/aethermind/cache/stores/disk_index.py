"""Which files of a directory were used when, and how much room they take: a table that several processes share.

SQLite keeps it, in its write-ahead mode: readers and the one writer at a time do not wait for each other. A row may be
there without its file (who wrote it ended in between), never the other way round for long: files are named in the
table before they get their names, looked up there once they have them, and lose them before their rows go. That is why
nobody has to look at the directory.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

__all__ = ["DiskIndex"]

_BUSY_S = 5.0
_LOOK_AGAIN_S = 0.005
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
    """Keys with their sizes and times of use. Safe to share by threads, and by processes on one machine.

    Any method raises sqlite3.Error or OSError when the table cannot be used; the next call tries again with a
    connection of its own. A table that is damaged is thrown away and made anew.
    """

    def __init__(self, path: Path, found: Callable[[], Iterable[tuple[bytes, int]]]) -> None:
        """The table in the file at `path`. `found` names what is there already when a new table is made."""
        self._path = path
        self._found = found
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes that all rows say together."""
        with self._connected() as connection:
            return int(connection.execute("SELECT num_bytes FROM total").fetchone()[0])

    def add(self, sizes: Sequence[tuple[bytes, int]], max_bytes: int, give_up: Callable[[bytes], None]) -> None:
        """Name (key, bytes) as used now; `give_up` what was used least recently, until all take `max_bytes` at most."""
        with self._connected() as connection, _transaction(connection):
            now = time.time_ns()
            connection.executemany(
                "INSERT INTO blocks VALUES (?, ?, ?) "
                "ON CONFLICT (key) DO UPDATE SET num_bytes = excluded.num_bytes, used = excluded.used",
                [(key, num_bytes, now) for key, num_bytes in sizes],
            )
            (total,) = connection.execute("SELECT num_bytes FROM total").fetchone()
            gone = []
            if total > max_bytes:
                oldest = connection.execute("SELECT key, num_bytes FROM blocks ORDER BY used")
                while total > max_bytes and (row := oldest.fetchone()) is not None:
                    gone.append(row[0])
                    total -= row[1]
                oldest.close()
            for key in gone:
                give_up(key)
            _delete(connection, gone)

    def settle(self, keys: Sequence[bytes], give_up: Callable[[bytes], None]) -> None:
        """The files of keys are in their places: `give_up` those that others made room of before there was a file."""
        with self._connected() as connection, _transaction(connection):
            for key in keys:
                if connection.execute("SELECT 1 FROM blocks WHERE key = ?", (key,)).fetchone() is None:
                    give_up(key)

    def touch(self, used: Mapping[bytes, int]) -> None:
        """Keys were used at times in nanoseconds."""
        with self._connected() as connection, _transaction(connection):
            rows = [(time_ns, key) for key, time_ns in used.items()]
            connection.executemany("UPDATE blocks SET used = max(used, ?) WHERE key = ?", rows)

    def remove(self, keys: Sequence[bytes], give_up: Callable[[bytes], None]) -> None:
        """Forget keys, after `give_up` has taken what they name."""
        with self._connected() as connection, _transaction(connection):
            for key in keys:
                give_up(key)
            _delete(connection, keys)

    def close(self) -> None:
        """Close the connection; the next call opens another one."""
        with self._lock:
            self._disconnect()

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        """The connection, for one thread at a time; it is dropped when something goes wrong with it."""
        with self._lock:
            if self._connection is not None and self._identity != _identity_of(self._path):
                self._disconnect()  # the directory was deleted, perhaps made again, under our feet
            try:
                yield self._connection or self._connect()
            except BaseException as error:
                self._disconnect()
                if _is_damage(error):
                    self._throw_away()
                raise

    def _connect(self) -> sqlite3.Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            _write_ahead(connection)
            connection.execute("PRAGMA synchronous = NORMAL")
            if not _has_tables(connection):
                with _transaction(connection):
                    self._fill(connection)
        except BaseException:
            connection.close()
            raise
        self._connection, self._identity = connection, _identity_of(self._path)
        return connection

    def _fill(self, connection: sqlite3.Connection) -> None:
        """Make the tables, unless another process was faster."""
        if _has_tables(connection):
            return
        for statement in _statements(_TABLES):
            connection.execute(statement)
        rows = ((key, num_bytes, time.time_ns()) for key, num_bytes in self._found())
        connection.executemany("INSERT OR IGNORE INTO blocks VALUES (?, ?, ?)", rows)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _throw_away(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Change the mode of a new file. SQLite refuses one of two that do so at once, and does not wait before."""
    until = time.monotonic() + _BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(_LOOK_AGAIN_S)


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All of it or nothing; the only writer from its first statement on."""
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
    """`executescript` would commit what came before it, so statements go one by one."""
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
