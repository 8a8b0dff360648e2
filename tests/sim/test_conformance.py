"""The simulated device passes the conformance kit under every stream order: no missing synchronisation, no stray
access."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.sim.small_model import write_small_model

from aethermind import Runtime
from aethermind.testing.run import run_suites


@pytest.mark.parametrize(("device", "seed"), [("sim", "0"), ("sim:1", "1")])
def test_the_kit_passes(
    runtime: Runtime, device: str, seed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AETHERMIND_SIM_SEED", seed)
    model = write_small_model(Path(runtime.models.locate("demo")), tmp_path / "model")
    report = run_suites(device, suites=["hal", "models"], model=str(model))
    assert [(case.name, case.reason) for case in report.failures] == []
    assert report.executed > 90
    assert report.exit_code == 0
