"""Swap stores: the one without blocks, and the bookkeeping of the one in host memory."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from aethermind.cache import HostSwapStore, NoSwapStore


class Moves:
    """Remembers what it was asked to copy, as (from, to)."""

    def __init__(self) -> None:
        self.out: list[tuple[list[int], list[int]]] = []
        self.back: list[tuple[list[int], list[int]]] = []

    def move_out(self, blocks: Sequence[int], host_blocks: Sequence[int]) -> None:
        self.out.append((list(blocks), list(host_blocks)))

    def move_in(self, host_blocks: Sequence[int], blocks: Sequence[int]) -> None:
        self.back.append((list(host_blocks), list(blocks)))


def test_no_swap_store_stores_nothing() -> None:
    store = NoSwapStore()
    assert store.save("a", [0]) is False
    store.drop("a")
    with pytest.raises(AssertionError, match="sequence a was never saved"):
        store.load("a", [0])


def test_saved_blocks_are_loaded_from_their_host_blocks() -> None:
    moves = Moves()
    store = HostSwapStore(moves, 5)
    assert store.save("a", [7, 3])
    assert store.save("b", [1])
    store.load("a", [4, 9])
    (blocks, host_blocks), (_, others) = moves.out
    assert blocks == [7, 3]
    assert not set(host_blocks) & set(others)
    assert moves.back == [(host_blocks, [4, 9])]
    assert (store.num_moved_out, store.num_moved_in, store.num_used_blocks) == (3, 2, 1)


def test_a_full_store_returns_false_and_moves_nothing() -> None:
    moves = Moves()
    store = HostSwapStore(moves, 3)
    assert store.save("a", [0, 1])
    assert not store.save("b", [2, 3])
    assert (len(moves.out), store.num_used_blocks) == (1, 2)
    store.drop("a")
    assert store.num_used_blocks == 0
    assert store.save("b", [2, 3, 4])


def test_a_store_refuses_to_mix_sequences_up() -> None:
    store = HostSwapStore(Moves(), 3)
    assert store.save("a", [0, 1])
    with pytest.raises(AssertionError, match="already saved"):
        store.save("a", [2])
    with pytest.raises(AssertionError, match="2 blocks were saved, not 1"):
        store.load("a", [2])
