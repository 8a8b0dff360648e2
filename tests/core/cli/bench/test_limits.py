"""bench limits."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aethermind.cli.bench.limits import as_record, average, describe_limits
from aethermind.hal.backend import MeasuredLimits


def test_average_of_two_measurements() -> None:
    before = MeasuredLimits(10e9, {"float32": 1e11, "bfloat16": 4e11})
    after = MeasuredLimits(20e9, {"float32": 3e11, "bfloat16": 4e11})
    limits = average(before, None, after)
    assert limits == MeasuredLimits(15e9, {"float32": 2e11, "bfloat16": 4e11})
    rates = {"fp32": 2e11, "fp16": None, "bf16": 4e11, "fp8": None, "int8": None}
    assert as_record(limits) == {"memory_bytes_per_s": 15e9, "flops_per_s": rates}
    assert describe_limits(limits) == [("memory", "15.00 GB/s"), ("fp32", "200.00 GFLOP/s"), ("bf16", "400.00 GFLOP/s")]
    assert average(None, None) is None


def test_a_backend_that_measures_nothing(invoke: Any) -> None:
    record = json.loads(invoke("bench", "limits", "--device", "numpy", "--json").stdout)
    assert record["memory_bytes_per_s"] is None
    assert record["flops_per_s"] == {"fp32": None, "fp16": None, "bf16": None, "fp8": None, "int8": None}
    assert "not measured" in invoke("bench", "limits", "--device", "numpy").stdout


def test_measured_limits_are_reported(invoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = MeasuredLimits(5e9, {"float32": 1e9, "float16": 4e9, "bfloat16": 2e9, "float8_e4m3fn": 8e9, "int8": 3e9})
    asked: list[Any] = []

    def measure(_self: Any, dtypes: Any, num_threads: int | None = None) -> MeasuredLimits:
        asked.append(([str(dtype) for dtype in dtypes], num_threads))
        return measured

    monkeypatch.setattr("aethermind.hal.builtin_backends.NumpyBackend.measure_limits", measure)
    record = json.loads(invoke("bench", "limits", "--device", "numpy", "--threads", "2", "--json").stdout)
    assert record["flops_per_s"] == {"fp32": 1e9, "fp16": 4e9, "bf16": 2e9, "fp8": 8e9, "int8": 3e9}
    assert asked == [(["float32", "float16", "bfloat16", "float8_e4m3fn", "int8"], 2)]
