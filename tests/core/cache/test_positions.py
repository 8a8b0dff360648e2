"""Positions of tokens against two plain lists: of positions, and of positions when computed."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from aethermind.cache.positions import IDENTITY_POSITIONS, BlockShift, PositionRun, TokenPositions, block_shifts

FAR = 2**31 + 5


def listed(positions: TokenPositions, num_tokens: int) -> list[int]:
    return [positions.position(index) for index in range(num_tokens)]


@given(st.data(), st.integers(1, 30))
def test_any_changes_equal_those_of_lists(data: st.DataObject, num_tokens: int) -> None:
    positions, now, computed = IDENTITY_POSITIONS, list(range(num_tokens)), list(range(num_tokens))

    def number(low: int, high: int) -> int:
        return data.draw(st.integers(low, high))

    for change in data.draw(st.lists(st.sampled_from(["drop", "shift", "truncate", "turn", "append"]), max_size=12)):
        if change == "drop":
            start = number(0, len(now))
            end = number(start, len(now))
            del now[start:end], computed[start:end]
            positions = positions.without(start, end) if end < len(now) + end - start else positions.truncated(start)
        elif change == "shift" and now:
            start = number(0, len(now) - 1)
            delta = number(now[start - 1] + 1 - now[start] if start else -now[0], 2**40)
            now[start:] = [position + delta for position in now[start:]]
            positions = positions.shifted(start, delta)
        elif change == "truncate":
            del now[(count := number(0, len(now))) :], computed[count:]
            positions = positions.truncated(count)
        elif change == "turn":
            computed = list(now)
            positions = positions.with_keys_shifted()
        elif change == "append" and positions == positions.with_keys_shifted():
            following = range((start := now[-1] + 1 if now else 0), start + number(0, 5))
            now += following
            computed += following
        assert listed(positions, len(now)) == now
        shifts = list(block_shifts(positions, range(100, 200), 1, len(now)))
        assert shifts == [
            BlockShift(100 + index, 1, after - before)
            for index, (after, before) in enumerate(zip(now, computed, strict=True))
            if after != before
        ]
        for position in {0, *now, *(one + 1 for one in now)}:
            # Past the last token the answer is the index that a token there would have.
            expected = next((index for index, one in enumerate(now) if one >= position), None)
            assert expected is None or positions.index(position) == expected


def test_a_gap_is_closed_by_a_shift() -> None:
    gap = IDENTITY_POSITIONS.without(4, 12)
    assert listed(gap, 6) == [0, 1, 2, 3, 12, 13]
    assert [gap.index(position) for position in (3, 4, 11, 12, 13)] == [3, 4, 4, 4, 5]
    closed = gap.shifted(4, -8)
    assert listed(closed, 6) == [0, 1, 2, 3, 4, 5]
    assert closed.runs == (PositionRun(0, 0, 0), PositionRun(4, 4, 12))
    assert list(block_shifts(closed, [7, 9], 4, 6)) == [BlockShift(9, 2, -8)]
    assert closed.with_keys_shifted() == IDENTITY_POSITIONS


def test_a_shift_forth_and_back_changes_nothing() -> None:
    assert IDENTITY_POSITIONS.shifted(3, 9).shifted(3, -9) == IDENTITY_POSITIONS
    assert hash(IDENTITY_POSITIONS.shifted(3, 9).shifted(3, -9)) == hash(IDENTITY_POSITIONS)


def test_positions_beyond_32_bits() -> None:
    far: Any = IDENTITY_POSITIONS.shifted(16, FAR - 16)
    assert far.position(16) == FAR
    assert far.index(FAR + 3) == 19
    assert list(block_shifts(far, [0, 2**33], 16, 20)) == [BlockShift(2**33, 4, FAR - 16)]


def test_tokens_appended_after_a_truncation_follow_the_last_token() -> None:
    gap = IDENTITY_POSITIONS.without(4, 12)
    assert gap.truncated(4).position(4) == 4
    assert gap.truncated(5).position(5) == 13
    assert gap.truncated(0) == IDENTITY_POSITIONS
