"""The conformance kit on the stand-in: late streams, memory that the host cannot touch, and the wheel's operators.

The whole of it takes minutes and runs with AETHERMIND_TEST_CANN=all; otherwise the hardware abstraction, the operators'
float32 forms and the parts of the models suite that depend on a backend most.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.sim.small_model import write_small_model

from aethermind import Runtime
from aethermind.testing.run import run_suites

IS_WHOLE = os.environ.get("AETHERMIND_TEST_CANN") == "all"
OF_OPERATORS = None if IS_WHOLE else "float32 and not attention or npu_ or quantized-torch-bfloat16"
OF_MODELS = None if IS_WHOLE else "close_to_the_reference or chunked_prefill[16] or half_precision or fewer_bits"


@pytest.mark.usefixtures("standin")
@pytest.mark.parametrize(
    ("device", "suite", "keyword", "least"),
    [("cann:1", "hal", None, 70), ("cann", "operators", OF_OPERATORS, 300), ("cann", "models", OF_MODELS, 8)],
)
def test_the_kit_passes(
    runtime: Runtime, device: str, suite: str, keyword: str | None, least: int, tmp_path: Path
) -> None:
    model = write_small_model(Path(runtime.models.locate("demo")), tmp_path / "model")
    report = run_suites(device, suites=[suite], model=str(model), keyword=keyword)
    assert [(case.name, case.reason) for case in report.failures] == []
    assert report.executed >= least
