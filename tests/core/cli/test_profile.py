"""profile: the tables of both phases, memory over time, a trace, one JSON object."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aethermind.cli.profile import summarize
from aethermind.engine.observation.profiler import CallProfile, StepProfile
from aethermind.engine.observation.roofline import Work
from aethermind.hal.backend import MeasuredLimits
from aethermind.hal.dtype import DType
from aethermind.ops.operator import Cost

SMALL = ("--prompt-tokens", "6", "--output-tokens", "2", "--repeat", "1")


def call(operator: str, layer: int | None, seconds: float, cost: Cost, work: Work) -> CallProfile:
    return CallProfile(f"x.{operator}", operator, "k", layer, (), seconds, cost, work)


def test_summaries_are_sorted_and_have_fractions_of_the_limits() -> None:
    calls = (
        call("add", 0, 1.0, Cost(10, 20, 5), Work(0, 5, DType.FLOAT32)),
        call("linear", 0, 2.0, Cost(100, 20, 400), Work(80, 400, DType.INT8)),
    )
    steps = [StepProfile("decode", 1, 9, calls, 3.5, 2.0), StepProfile("decode", 1, 10, calls, 2.5, 3.0)]
    report = summarize(steps, MeasuredLimits(160.0, {"float32": 50.0, "int8": 800.0}))
    assert (report["num_steps"], report["seconds"], report["unmarked_seconds"]) == (2, 6.0, 5.0)
    assert report["marked_seconds"] == 6.0
    assert report["overhead_fraction"] == pytest.approx(0.2)
    assert report["overhead_s_per_call"] == pytest.approx(1 / 4)
    linear, add = report["operators"]
    assert (linear["operator"], linear["num_calls"], linear["seconds"]) == ("linear", 2, 4.0)
    assert (linear["bytes_read"], linear["bytes_written"], linear["flops"]) == (200, 40, 800)
    assert (linear["bytes_per_s"], linear["flops_per_s"]) == (60.0, 200.0)
    names = ("memory_limit_fraction", "arithmetic_limit_fraction", "limit_fraction")
    assert [linear[name] for name in names] == [0.25, 0.25, 0.25]
    assert [add[name] for name in names] == [0.0, 0.1, 0.1]
    assert add["share"] == pytest.approx(1 / 3)
    (layer,) = report["layers"]
    assert layer["limit_fraction"] == pytest.approx((2 * 0.1 + 2 * 0.5) / 6)
    assert (layer["layer"], layer["num_calls"], layer["share"]) == (0, 4, 1.0)


def test_without_limits_or_time_there_is_no_fraction() -> None:
    one = call("add", None, 0.0, Cost(1, 1, 1), Work(1, 1, DType.FLOAT64))
    for limits in (None, MeasuredLimits(1.0, {})):
        report = summarize([StepProfile("decode", 1, 9, (one,), 0.0, 0.0)], limits)
        (record,) = report["operators"]
        assert report["overhead_fraction"] is None
        names = ("share", "bytes_per_s", "flops_per_s", "memory_limit_fraction", "limit_fraction")
        assert [record[name] for name in names] == [None] * 5


@pytest.mark.parametrize("device", ["numpy", "cpu"])
def test_json_and_trace_agree(invoke: Any, tmp_path: Path, device: str) -> None:
    trace = tmp_path / "trace.json"
    result = invoke("profile", "--device", device, *SMALL, "--trace", str(trace), "--json")
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert report["device"] == f"{device}:0"
    phases = report["phases"]
    assert [phases[name]["num_steps"] for name in ("prefill", "decode")] == [1, 2]
    events = json.loads(trace.read_text())["traceEvents"]
    for phase in phases.values():
        shares = [record["share"] for record in phase["operators"]]
        assert sum(shares) == pytest.approx(1)
        assert shares == sorted(shares, reverse=True)
        assert sum(record["share"] for record in phase["layers"]) == pytest.approx(1)
    num_calls = sum(record["num_calls"] for phase in phases.values() for record in phase["operators"])
    assert sum(event.get("cat") == "kernel" for event in events) == num_calls
    assert [event["name"] for event in events if event.get("cat") == "step"] == ["prefill", "decode", "decode"]
    assert [use["moment"] for use in report["memory"]] == ["planned", "loaded", "after prefill", "after decode"]
    counters = [event["args"] for event in events if event["ph"] == "C" and event["name"] == "memory"]
    for use, counter in zip(report["memory"], counters, strict=True):
        assert counter.items() <= use.items()
    assert report["memory"][1]["weights"] + report["memory"][1]["packed_weights"] > 2_000_000
    assert (report["limits"]["memory_bytes_per_s"] is None) == (device == "numpy")


def linear_flops(report: dict[str, Any], phase: str) -> int:
    (flops,) = (record["flops"] for record in report["phases"][phase]["operators"] if record["operator"] == "linear")
    return int(flops)


def test_requests_of_a_batch_share_their_steps(invoke: Any) -> None:
    result = invoke("profile", "--device", "numpy", *SMALL, "--batch", "3", "--json")
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert report["batch"] == 3
    assert [report["phases"][name]["num_steps"] for name in ("prefill", "decode")] == [1, 2]
    alone = json.loads(invoke("profile", "--device", "numpy", *SMALL, "--json").stdout)
    for name in ("prefill", "decode"):
        assert linear_flops(report, name) == 3 * linear_flops(alone, name)


def test_the_report_as_text(invoke: Any, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    result = invoke("profile", "--device", "numpy", *SMALL, "--trace", str(trace))
    assert result.exit_code == 0
    for words in (
        "prefill: 1 × ",
        "decode: 2 × ",
        "with timing of calls",
        "operator",
        "layer",
        "paged_attention",
        "outside",
    ):
        assert words in result.stdout
    assert "after decode" in result.stdout
    assert f"Trace written to {trace}" in result.stdout


def test_a_device_that_computes_nothing_is_no_error(invoke: Any) -> None:
    assert invoke("profile", "--device", "null", *SMALL).exit_code == 0


def test_a_trace_that_cannot_be_written_is_a_sentence(invoke: Any, tmp_path: Path) -> None:
    result = invoke("profile", *SMALL, "--trace", str(tmp_path / "nowhere" / "trace.json"))
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: Trace file ")
    assert "No such file or directory" in result.stderr


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--prompt-tokens", "0"), "--prompt-tokens"),
        (("--output-tokens", "0"), "--output-tokens"),
        (("--batch", "0"), "--batch"),
        (("--prompt-tokens", "100000"), "max-model-len 100017"),
        (("--device", "abacus"), "abacus"),
    ],
)
def test_wrong_values_have_exit_code_2(invoke: Any, args: tuple[str, ...], words: str) -> None:
    result = invoke("profile", *args)
    assert result.exit_code == 2
    assert words in result.stderr
