"""The digest of files depends on their bytes, whatever is cached."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from aethermind.checkpoint import file_digest
from aethermind.checkpoint.file_digest import digest_files
from aethermind.errors import CheckpointError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(bytes(range(256)) * 40)
    return path


def test_copies_have_one_digest_and_every_byte_counts(file: Path, tmp_path: Path) -> None:
    digest = digest_files([file])
    assert len(digest) == 32
    copy = tmp_path / "elsewhere"
    shutil.copy(file, copy)
    assert digest_files([copy]) == digest
    for place in (0, 5000, 10239):
        changed = bytearray(file.read_bytes())
        changed[place] ^= 1
        copy.write_bytes(changed)
        assert digest_files([copy]) != digest
    assert digest_files([file, file]) != digest
    copy.write_bytes(b"")
    assert digest_files([copy]) != digest


def test_a_change_with_the_same_size_and_time_is_noticed(file: Path) -> None:
    before, digest = file.stat(), digest_files([file])
    data = bytearray(file.read_bytes())
    data[7] ^= 1
    file.write_bytes(data)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert digest_files([file]) != digest


def test_a_file_is_read_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_digest, "_MIN_AGE_NS", -1)  # it need not lie there for a while
    digest = digest_files([file])
    monkeypatch.setattr(file_digest, "_hash_file", lambda path, num_bytes: pytest.fail(f"{path} is read again"))
    assert digest_files([file]) == digest


def test_changes_are_noticed_in_every_piece(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_digest, "_CHUNK_BYTES", 1000)
    digest = digest_files([file])
    data = bytearray(file.read_bytes())
    data[:1000], data[1000:2000] = data[1000:2000], data[:1000]
    data[3500] ^= 1
    file.write_bytes(data)
    assert digest_files([file]) != digest


def test_digests_work_without_a_cache_directory(file: Path, cache: Path) -> None:
    cache.write_text("a file where the directory should be")
    assert digest_files([file]) == digest_files([file])


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be read: No such file or directory"):
        digest_files([tmp_path / "none"])
