"""Outcomes are values: compared, never raised."""

from __future__ import annotations

from aethermind.cache import CacheOutcome, OpenResult, ReserveResult


def test_results_compare_by_value() -> None:
    assert OpenResult(CacheOutcome.OK) == OpenResult(CacheOutcome.OK, 0)
    assert ReserveResult(CacheOutcome.OK) != ReserveResult(CacheOutcome.OK, ((0, 1),))
    assert not any(isinstance(outcome, Exception) for outcome in CacheOutcome)
