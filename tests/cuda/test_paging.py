"""Where keys lie in a paged cache, beyond what 32 bits can count too, and how the keys of a sequence are split."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cuda.emulator import Kernels, compile_kernels
from tests.scale import scaled

LARGEST = 2**31 - 1


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    """Device functions with a kernel around each."""
    return compile_kernels(Path(__file__).parent / "samples" / "paging.cu")


@pytest.mark.parametrize("block_size", [1, 5, 16, 256])
def test_a_key_is_found_in_the_block_that_the_table_names(kernels: Kernels, block_size: int) -> None:
    blocks = np.array([7, 0, LARGEST - 1, LARGEST, 123_456_789], np.int32)
    keys = np.array([0, block_size - 1, block_size, 3 * block_size - 1, 5 * block_size - 1], np.int32)
    rows = np.zeros(len(keys), np.int64)
    kernels.rows_of_keys(rows, keys, blocks, 3, 4, block_size, grid=1, block=len(keys))
    expected = [(int(blocks[key // block_size]) * 4 + 3) * block_size + key % block_size for key in keys.tolist()]
    assert rows.tolist() == expected


def test_slots_are_64_bit(kernels: Kernels) -> None:
    slots = np.array([0, 15, 16, 2**31 + 5, 2**40 + 17], np.int64)
    rows = np.zeros(len(slots), np.int64)
    kernels.rows_of_slots(rows, slots, 2, 8, 16, grid=1, block=len(slots))
    assert rows.tolist() == [(slot // 16 * 8 + 2) * 16 + slot % 16 for slot in slots.tolist()]


@settings(max_examples=scaled(5000), deadline=None)
@given(begin=st.integers(0, 5000), total=st.integers(1, 200_000), num_splits=st.integers(1, 300))
def test_parts_cover_all_keys_once(kernels: Kernels, begin: int, total: int, num_splits: int) -> None:
    ranges, count = np.zeros((num_splits, 2), np.int32), np.zeros(1, np.int32)
    kernels.parts_of_splits(ranges, count, begin, begin + total, num_splits, grid=1, block=num_splits)
    parts = ranges[: count[0]]
    assert 1 <= count[0] <= num_splits
    assert parts[0, 0] == begin
    assert parts[-1, 1] == begin + total
    assert np.array_equal(parts[1:, 0], parts[:-1, 1])
    assert np.all(parts[:, 1] > parts[:, 0])
