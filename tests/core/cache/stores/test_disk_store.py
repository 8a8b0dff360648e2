"""A store in a directory: its size, the processes that share it, and what can happen to its files."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from aethermind.atomic_file import write_partial
from aethermind.cache.stores import StoreAddress, disk_store
from aethermind.cache.stores.disk_store import DiskStore, open_disk_store
from aethermind.errors import ConfigError, InvalidArgumentError

PAGE = 4096
VALUE = bytes(PAGE)
KEYS = [i.to_bytes(16, "big") for i in range(64)]


def files(directory: Path) -> set[bytes]:
    return {bytes.fromhex(path.stem) for path in directory.glob("v1/??/*.safetensors")}


def parts(directory: Path) -> list[Path]:
    return list(directory.glob("v1/??/*.part"))


def test_the_least_recently_used_value_is_evicted_first(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, 3 * PAGE)
    for key in KEYS[:3]:
        store.put([(key, VALUE)])
    store.get(KEYS[:1])
    store.put([(KEYS[3], VALUE)])
    assert files(tmp_path) == {KEYS[0], KEYS[2], KEYS[3]}
    store.put([(KEYS[4], bytes(2 * PAGE))])
    assert files(tmp_path) == {KEYS[3], KEYS[4]}
    assert store.num_bytes == 3 * PAGE
    store.put([(KEYS[5], bytes(4 * PAGE))])
    assert store.get([KEYS[5], KEYS[4]]) == [None, bytes(2 * PAGE)], "what can never fit displaces nothing"


def test_a_replaced_value_counts_with_its_new_size(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, 10 * PAGE)
    store.put([(KEYS[0], bytes(5 * PAGE)), (KEYS[1], VALUE)])
    store.put([(KEYS[0], VALUE)])
    assert store.num_bytes == 2 * PAGE
    store.remove(KEYS[:2])
    assert (store.num_bytes, files(tmp_path)) == (0, set())


PROCESS = f"""
import random, sys
from aethermind.cache.stores.disk_store import DiskStore
random.seed(int(sys.argv[2]))
store = DiskStore(sys.argv[1], 20 * {PAGE})
for _ in range(60):
    keys = [random.randrange(64).to_bytes(16, "big") for _ in range(3)]
    store.put([(key, key * {PAGE // 16}) for key in keys])
    keys = [random.randrange(64).to_bytes(16, "big") for _ in range(5)]
    assert all(value in (None, key * {PAGE // 16}) for key, value in zip(keys, store.get(keys)))
    if random.random() < 0.1:
        store.remove(keys[:1])
"""


def test_several_processes_share_one_directory(tmp_path: Path) -> None:
    """All values are whole, the limit holds for all together, and the index knows every file."""
    command = [sys.executable, "-c", PROCESS, str(tmp_path)]
    processes = [subprocess.Popen([*command, str(seed)], stderr=subprocess.PIPE) for seed in range(3)]
    for process in processes:
        _, said = process.communicate(timeout=600)
        assert process.returncode == 0, said.decode()
    store = DiskStore(tmp_path, 20 * PAGE)
    found = files(tmp_path)
    assert 0 < len(found) <= 20
    assert store.num_bytes >= len(found) * PAGE
    assert store.num_bytes <= 20 * PAGE
    assert parts(tmp_path) == []


def test_a_file_whose_row_was_evicted_before_its_rename_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = (DiskStore(tmp_path, 2 * PAGE) for _ in range(2))
    replace = os.replace

    def replace_late(beside: Path, place: Path) -> None:
        monkeypatch.setattr(os, "replace", replace)
        other.put([(KEYS[1], VALUE), (KEYS[2], VALUE)])
        replace(beside, place)

    monkeypatch.setattr(os, "replace", replace_late)
    store.put([(KEYS[0], VALUE)])
    assert files(tmp_path) == {KEYS[1], KEYS[2]}
    assert store.num_bytes == 2 * PAGE


def test_processes_that_create_the_index_wait_for_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DiskStore(tmp_path, 10 * PAGE)
    other = sqlite3.connect(tmp_path / "v1" / "index.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    monkeypatch.setattr(disk_store.time, "sleep", lambda _: other.execute("ROLLBACK"))
    store.put([(KEYS[0], VALUE)])
    assert not other.in_transaction
    assert (store.get(KEYS[:1]), store.num_bytes) == ([VALUE], PAGE)


def test_a_deleted_directory_is_created_again(tmp_path: Path) -> None:
    store, directory = DiskStore(tmp_path / "kv", 100 * PAGE), tmp_path / "kv"
    store.put([(KEYS[0], VALUE)])
    directory.rename(tmp_path / "moved")
    assert store.get(KEYS[:1]) == [None]
    store.put([(KEYS[1], VALUE)])
    assert DiskStore(directory, 100 * PAGE).get(KEYS[:2]) == [None, VALUE]
    assert store.num_bytes == PAGE


def test_a_lost_index_is_rebuilt_from_the_files(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, 4 * PAGE)
    store.put([(key, VALUE) for key in KEYS[:3]])
    store.close()
    for path in tmp_path.glob("v1/index.sqlite*"):
        path.unlink()
    (tmp_path / "v1" / "00" / "not a key.safetensors").write_bytes(b"")
    again = DiskStore(tmp_path, 4 * PAGE)
    assert again.num_bytes == 3 * PAGE
    again.put([(key, VALUE) for key in KEYS[3:6]])
    assert again.num_bytes == 4 * PAGE
    assert len([value for value in again.get(KEYS[:6]) if value]) == 4


def test_a_damaged_index_fails_once_and_is_rebuilt(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, 4 * PAGE)
    store.put([(KEYS[0], VALUE)])
    store.close()
    (tmp_path / "v1" / "index.sqlite").write_bytes(b"This is not a database, whatever it is called. " * 100)
    with pytest.raises(sqlite3.DatabaseError):
        store.put([(KEYS[1], VALUE)])
    store.put([(KEYS[2], VALUE)])
    assert store.get(KEYS[:3]) == [VALUE, None, VALUE]
    assert store.num_bytes == 2 * PAGE


def test_reading_needs_no_index(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, 4 * PAGE)
    store.put([(KEYS[0], VALUE)])
    store.close()
    (tmp_path / "v1" / "index.sqlite").write_bytes(b"This is not a database, whatever it is called. " * 100)
    assert store.get(KEYS[:1]) == [VALUE]


def test_abandoned_temporary_files_are_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "v1" / "00"
    folder.mkdir(parents=True)
    old, new = folder / "a.1-1.part", folder / "b.1-1.part"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    DiskStore(tmp_path, PAGE).put([(KEYS[0], VALUE)])
    assert parts(tmp_path) == [new]


def test_a_full_disk_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DiskStore(tmp_path, 10 * PAGE)
    store.put([(KEYS[0], VALUE)])

    def until_full(data: bytes) -> Iterator[bytes]:
        yield data[:100]
        raise OSError(28, "No space left on device")

    def write_some(place: Path, parts: Sequence[bytes], **options: Any) -> Path | None:
        is_full = place.name.startswith(KEYS[2].hex())
        return write_partial(place, until_full(parts[0]) if is_full else parts, **options)

    monkeypatch.setattr(disk_store, "write_partial", write_some)
    with pytest.raises(OSError, match="No space left"):
        store.put([(key, VALUE) for key in KEYS[1:4]])
    assert parts(tmp_path) == []
    assert files(tmp_path) == {KEYS[0]}
    assert store.num_bytes == PAGE


def test_a_long_transaction_elsewhere_delays_writing_only(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, 10 * PAGE)
    store.put([(KEYS[0], VALUE)])
    other = sqlite3.connect(tmp_path / "v1" / "index.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    writer = threading.Thread(target=store.put, args=([(KEYS[1], VALUE)],))
    writer.start()
    assert DiskStore(tmp_path, 10 * PAGE).num_bytes == PAGE
    other.execute("COMMIT")
    writer.join()
    assert store.get(KEYS[:2]) == [VALUE, VALUE]


def test_a_directory_that_cannot_be_created_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot hold a KV store: Not a directory\. Choose a directory"):
        open_disk_store(StoreAddress.parse(f"disk:{tmp_path}/file/kv"))
    with pytest.raises(InvalidArgumentError, match="needs a directory; write disk:/path"):
        open_disk_store(StoreAddress.parse("disk"))
