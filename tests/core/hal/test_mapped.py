"""Pages of mapped files are given back, and only those."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest

from aethermind.hal.mapped import drop_mapped_pages

NUM_PAGES = 64


@pytest.fixture
def values() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 255, NUM_PAGES * mmap.PAGESIZE, dtype=np.uint8)


def test_pages_of_a_mapped_file_are_forgotten_and_read_again(tmp_path: Path, values: np.ndarray) -> None:
    path = tmp_path / "values"
    path.write_bytes(values.tobytes())
    with open(path, "rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    array = np.ndarray((len(values) - 100,), np.uint8, buffer=mapping, offset=100)
    assert array.sum(dtype=np.int64) == values[100:].sum(dtype=np.int64)
    before = resident_pages(path)
    drop_mapped_pages(array.reshape(-1, 1)[:-50])
    assert before - resident_pages(path) >= NUM_PAGES - 2
    np.testing.assert_array_equal(array, values[100:])


def test_memory_that_is_not_a_mapped_file_is_left_alone(values: np.ndarray) -> None:
    copy = values.copy()
    anonymous = mmap.mmap(-1, len(values))
    anonymous[:] = values.tobytes()
    drop_mapped_pages(copy)
    drop_mapped_pages(np.frombuffer(anonymous, np.uint8))
    drop_mapped_pages(np.frombuffer(values.tobytes(), np.uint8))
    np.testing.assert_array_equal(copy, values)
    assert anonymous[:] == values.tobytes()


def resident_pages(path: Path) -> int:
    """Pages of a file that this process has in its page table."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    (start,) = [index for index, line in enumerate(lines) if line.endswith(str(path))]
    (rss,) = [line for line in lines[start : start + 6] if line.startswith("Rss:")]
    return int(rss.split()[1]) * 1024 // mmap.PAGESIZE
