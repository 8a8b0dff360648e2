"""Fitting costs: what made the rows is found again, and a device can be measured."""

from __future__ import annotations

import pytest
from tests.core.engine.engines import open_engine

from aethermind import Runtime
from aethermind.engine.simulation import StepCosts
from aethermind.engine.simulation.cost_model import fit_costs, measure_costs

KINDS = [(64, 0, 64), (512, 0, 512), (0, 1, 100), (0, 1, 2000), (0, 16, 1600), (0, 16, 30_000)]


def test_the_costs_that_made_the_rows_are_found_again() -> None:
    true = StepCosts(5e-3, 8e-5, 3e-5, 6e-8)
    rows = [(p, d, c, true.fixed_s + p * 8e-5 + d * 3e-5 + c * 6e-8) for p, d, c in KINDS]
    found = fit_costs(rows)
    for name in StepCosts.__slots__:
        assert getattr(found, name) == pytest.approx(getattr(true, name), rel=1e-6)


def test_fitted_costs_are_not_negative() -> None:
    rows = [(p, d, c, 5e-3 + p * 8e-5 + d * 3e-5 - c * 2e-8) for p, d, c in KINDS]
    found = fit_costs(rows)
    assert found.context_token_s == 0.0
    assert min(getattr(found, name) for name in StepCosts.__slots__) >= 0.0


def test_a_device_can_be_measured(runtime: Runtime) -> None:
    engine = open_engine(runtime, "null", enable_prefix_caching=False, max_num_seqs=4)
    costs = measure_costs(engine)
    assert costs.fixed_s + costs.prefill_token_s > 0
    assert not engine.has_unfinished
