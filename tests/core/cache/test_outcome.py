"""Outcomes are values: compared, never raised."""

from __future__ import annotations

from aethermind.cache import OpenResult, Outcome, ReserveResult


def test_results_compare_by_value() -> None:
    assert OpenResult(Outcome.OK) == OpenResult(Outcome.OK, 0)
    assert ReserveResult(Outcome.OK) != ReserveResult(Outcome.OK, ((0, 1),))
    assert not any(isinstance(outcome, Exception) for outcome in Outcome)
