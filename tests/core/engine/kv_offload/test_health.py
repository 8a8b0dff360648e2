"""A store that fails is left alone for longer and longer, and complained of once."""

from __future__ import annotations

import logging

import pytest

from aethermind.engine.kv_offload.health import Complaints, StoreHealth, StoreUnavailableError


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def fail() -> None:
    raise OSError("the cable is out")


def test_pauses_double_and_end_with_success() -> None:
    clock = Clock()
    health = StoreHealth(Complaints("disk:/x"), 5.0, clock)
    pauses = []
    for _ in range(9):
        with pytest.raises(StoreUnavailableError):
            health.call(fail)
        pauses.append(health.seconds_to_wait)
        clock.now += health.seconds_to_wait
        assert health.seconds_to_wait == 0
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert health.call(lambda: 7) == 7
    with pytest.raises(StoreUnavailableError):
        health.call(fail)
    assert health.seconds_to_wait == 1


def test_a_slow_answer_counts_and_the_store_is_left_alone() -> None:
    clock = Clock()
    complaints = Complaints("disk:/x")
    health = StoreHealth(complaints, 5.0, clock)

    def slow(seconds: float) -> str:
        clock.now += 2
        assert not health.is_stuck
        clock.now += seconds - 2
        assert health.is_stuck == (seconds > 5)
        return "an answer"

    assert health.call(lambda: slow(4)) == "an answer"
    assert (health.seconds_to_wait, complaints.num_errors) == (0, 0)
    assert health.call(lambda: slow(6)) == "an answer"
    assert (health.seconds_to_wait, complaints.num_errors) == (1, 1)
    assert not health.is_stuck


def test_each_trouble_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    complaints = Complaints("redis://host/0")
    with caplog.at_level(logging.WARNING, "aethermind"):
        for _ in range(5):
            complaints.failed(OSError("the cable\nis out."))
            complaints.refused(ValueError())
    assert [record.getMessage() for record in caplog.records] == [
        "KV store redis://host/0 cannot be used (OSError: the cable is out); prompts are computed, and it is asked "
        "again later.",
        "KV store redis://host/0 returned an entry that is not used (ValueError); it is deleted and computed again.",
    ]
    assert complaints.num_errors == 10
