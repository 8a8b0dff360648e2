"""The circuit breaker of a failing store: pauses double, and each kind of failure is warned of once."""

from __future__ import annotations

import logging

import pytest

from aethermind.engine.kv_offload.health import CircuitBreaker, StoreUnavailableError, WarnOnce


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def fail() -> None:
    raise OSError("the cable is out")


def test_pauses_double_and_end_with_success() -> None:
    clock = Clock()
    breaker = CircuitBreaker(WarnOnce("disk:/x"), 5.0, clock)
    pauses = []
    for _ in range(9):
        with pytest.raises(StoreUnavailableError):
            breaker.call(fail)
        pauses.append(breaker.retry_after_s)
        clock.now += breaker.retry_after_s
        assert breaker.retry_after_s == 0
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert breaker.call(lambda: 7) == 7
    with pytest.raises(StoreUnavailableError):
        breaker.call(fail)
    assert breaker.retry_after_s == 1


def test_a_slow_call_counts_as_failed_and_opens_the_breaker() -> None:
    clock = Clock()
    warnings = WarnOnce("disk:/x")
    breaker = CircuitBreaker(warnings, 5.0, clock)

    def slow(seconds: float) -> str:
        clock.now += 2
        assert not breaker.is_stuck
        clock.now += seconds - 2
        assert breaker.is_stuck == (seconds > 5)
        return "an answer"

    assert breaker.call(lambda: slow(4)) == "an answer"
    assert (breaker.retry_after_s, warnings.num_errors) == (0, 0)
    assert breaker.call(lambda: slow(6)) == "an answer"
    assert (breaker.retry_after_s, warnings.num_errors) == (1, 1)
    assert not breaker.is_stuck


def test_each_kind_of_failure_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    warnings = WarnOnce("redis://host/0")
    with caplog.at_level(logging.WARNING, "aethermind"):
        for _ in range(5):
            warnings.failed(OSError("the cable\nis out."))
            warnings.refused(ValueError())
    assert [record.getMessage() for record in caplog.records] == [
        "KV store redis://host/0 cannot be used (OSError: the cable is out); prompts are computed, and it is "
        "retried later.",
        "KV store redis://host/0 returned an entry that is not used (ValueError); it is deleted and computed again.",
    ]
    assert warnings.num_errors == 10
