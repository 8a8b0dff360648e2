"""The swap store that has no room."""

from __future__ import annotations

import pytest

from aethermind.cache import NoSwapStore


def test_nothing_is_kept() -> None:
    store = NoSwapStore()
    assert store.save("a", [0]) is False
    store.drop("a")
    with pytest.raises(AssertionError, match="sequence a was never saved"):
        store.load("a", [0])
