"""Sizes of decode steps, to which the engine pads and which backends capture."""

from __future__ import annotations

from itertools import pairwise

import pytest

from aethermind.graph.plan import BATCH_SIZES, is_decode_size

MOST = {"T": 512, "S": 40, "R": 40, "B": 100, "X": 9}


@pytest.mark.parametrize(
    ("sizes", "is_decode"),
    [
        ((1, 1, 1, 1, 0), True),
        ((16, 16, 16, 64, 0), True),
        ((40, 40, 40, 100, 0), True),
        ((3, 3, 3, 4, 0), False),
        ((16, 16, 16, 3, 0), False),
        ((16, 8, 8, 4, 0), False),
        ((16, 16, 8, 4, 0), False),
        ((16, 16, 16, 4, 5), False),
        ((0, 0, 0, 0, 0), False),
    ],
)
def test_which_sizes_are_those_of_padded_decodes(sizes: tuple[int, ...], is_decode: bool) -> None:
    assert is_decode_size(dict(zip(MOST, sizes, strict=True)), MOST) is is_decode
    assert not is_decode_size({"R": 1}, {"R": 4})


def test_padding_is_bounded() -> None:
    assert list(BATCH_SIZES) == sorted(set(BATCH_SIZES))
    steps = pairwise(BATCH_SIZES)
    assert all(after <= 2 * before and (before < 64 or after - before <= before // 4) for before, after in steps)
