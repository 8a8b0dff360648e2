"""The folder of packed weights: a hit equals what was written, damage is an error, and the size is limited."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file
from tests.scale import scaled

from aethermind.engine import weight_cache as folder_module
from aethermind.engine.weight_cache import WeightFolder
from aethermind.errors import CheckpointError

KIB = 1 << 10


@pytest.fixture(autouse=True)
def _any_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not every system that this runs on has huge pages for files."""
    monkeypatch.setattr(WeightFolder, "needs_huge_pages", False)


def some_bytes(*sizes: int, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    generator = np.random.default_rng(seed)
    return {f"w{index}#layout": generator.integers(0, 256, size, np.uint8) for index, size in enumerate(sizes)}


def sizes_of(constants: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, int]:
    return {name: array.nbytes for name, array in constants.items()}


@settings(deadline=None, max_examples=scaled(2000))
@example([100, 3 << 20, 64, 5 << 20, 1])
@given(st.lists(st.integers(0, 300), max_size=6))
def test_found_constants_equal_the_written_ones(sizes: list[int]) -> None:
    constants = some_bytes(*sizes)
    with tempfile.TemporaryDirectory() as path:
        folder = WeightFolder(Path(path) / "made" / "on demand", 1 << 30)
        assert folder.find("key", sizes_of(constants)) == {}
        assert folder.write("key", constants)
        found = folder.find("key", sizes_of(constants))
        assert list(found) == list(constants)
        for name, array in found.items():
            np.testing.assert_array_equal(array, constants[name])
            assert array.ctypes.data % 64 == 0
            assert not array.flags.writeable
        stored = load_file(folder.path / "key.safetensors")  # by another reader
        assert all(np.array_equal(stored[name][: array.size], array) for name, array in constants.items())


@pytest.fixture
def folder(tmp_path: Path) -> WeightFolder:
    return WeightFolder(tmp_path / "weights", 1 << 30)


def files_in(folder: WeightFolder) -> set[str]:
    return {path.name for path in folder.path.iterdir()} if folder.path.exists() else set()


def test_a_file_with_a_changed_header_byte_is_deleted(folder: WeightFolder) -> None:
    constants = some_bytes(100, 200)
    folder.write("key", constants)
    file = folder.path / "key.safetensors"
    written = file.read_bytes()
    for position in (*range(250), 3000, 4095):
        changed = bytearray(written)
        changed[position] ^= 1
        file.write_bytes(changed)
        with pytest.raises(CheckpointError):
            folder.find("key", sizes_of(constants))
        assert files_in(folder) == set()


@pytest.mark.parametrize("length", [0, 7, 4000, 4096, 4200])
def test_a_truncated_file_is_noticed(folder: WeightFolder, length: int) -> None:
    constants = some_bytes(100, 200)
    folder.write("key", constants)
    os.truncate(folder.path / "key.safetensors", length)
    with pytest.raises(CheckpointError):
        folder.find("key", sizes_of(constants))
    assert files_in(folder) == set()


def test_a_file_that_another_process_evicts_meanwhile_is_a_miss(
    folder: WeightFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    constants, read = some_bytes(100), folder_module._read
    folder.write("key", constants)

    def read_too_late(place: Path, *rest: Any) -> Any:
        place.unlink()
        return read(place, *rest)

    monkeypatch.setattr(folder_module, "_read", read_too_late)
    assert folder.find("key", sizes_of(constants)) == {}


def test_constants_of_another_size_or_name_are_an_error(folder: WeightFolder) -> None:
    for wanted in ({"w0#layout": 130}, {"w1#layout": 100}):
        folder.write("key", some_bytes(100))
        with pytest.raises(CheckpointError):
            folder.find("key", wanted)


def test_the_least_recently_used_file_is_evicted_first(tmp_path: Path) -> None:
    folder = WeightFolder(tmp_path, 4 * 68 * KIB)  # three of 64 KiB and their headers
    for turn, key in enumerate("abc"):
        folder.write(key, some_bytes(64 * KIB))
        os.utime(tmp_path / f"{key}.safetensors", (turn, turn))
    held = folder.find("a", {"w0#layout": 64 * KIB})
    os.utime(tmp_path / "c.safetensors", (9, 9))
    assert folder.write("d", some_bytes(140 * KIB, seed=1))
    assert files_in(folder) == {"a.safetensors", "d.safetensors"}
    assert folder.write("e", some_bytes(200 * KIB))
    assert files_in(folder) == {"e.safetensors"}
    np.testing.assert_array_equal(held["w0#layout"], some_bytes(64 * KIB)["w0#layout"])  # whoever maps it keeps it


def test_a_file_beyond_the_limit_is_not_written(tmp_path: Path) -> None:
    folder = WeightFolder(tmp_path / "weights", 64 * KIB)
    folder.write("small", some_bytes(100))
    assert not folder.write("large", some_bytes(65 * KIB))
    assert files_in(folder) == {"small.safetensors"}


def test_an_interrupted_write_leaves_no_file(folder: WeightFolder) -> None:
    answers = iter([False, True])
    assert not folder.write("key", some_bytes(5 << 20), lambda: next(answers))
    assert files_in(folder) == set()

    def interrupt() -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        folder.write("key", some_bytes(100), interrupt)
    assert files_in(folder) == set()


def test_a_nearly_full_disk_is_not_written_to(folder: WeightFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 150))
    with pytest.raises(OSError, match="space") as error:
        folder.write("key", some_bytes(100))
    assert error.value.errno == errno.ENOSPC
    assert files_in(folder) == set()


def test_old_unfinished_files_are_deleted(folder: WeightFolder) -> None:
    folder.write("key", some_bytes(1))
    for name, age in (("old.part", 1), ("new.part", 2**32)):
        (folder.path / name).touch()
        os.utime(folder.path / name, (age, age))
    folder.write("other", some_bytes(1))
    assert files_in(folder) == {"key.safetensors", "other.safetensors", "new.part"}
