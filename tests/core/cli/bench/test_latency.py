"""bench latency: rates from token times, fractions of the roofline, and the keys of the JSON object."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aethermind.cli.bench.latency import BatchTiming, Phases, split_phases, summarize
from aethermind.engine.observation.roofline import StepShape
from aethermind.engine.requests.output import CompletionOutput, RequestMetrics, RequestOutput
from aethermind.engine.scheduling.decision import ScheduleDecision
from aethermind.engine.steps.in_flight_step import InFlightStep
from aethermind.engine.steps.model_runner import ModelRunner

KEYS = {
    "prefill_tokens_per_s",
    "decode_tokens_per_s",
    "ttft_s",
    "load_s",
    "peak_memory_bytes",
    "weight_bytes",
    "prefill_limit_fraction",
    "decode_limit_fraction",
    "limits",
}


def output(request_id: str, num_tokens: int, first_token_s: float) -> RequestOutput:
    completion = CompletionOutput(0, "", [1] * num_tokens, None, None, None)
    return RequestOutput(request_id, None, [], [completion], False, RequestMetrics(100.0, first_token_s, None))


@pytest.fixture
def one() -> BatchTiming:
    """One request of 8 tokens: first token after 2 s, then 4 more, one every half second."""
    run = BatchTiming(1, 8)
    for i in range(5):
        run.record(output("0", i + 1, 102.0), 102.0 + i / 2)
    return run


def test_one_request(one: BatchTiming) -> None:
    assert (one.ttft_s, one.prefill_s) == (2.0, 2.0)
    assert one.prefill_tokens_per_s == 4.0
    assert one.decode_tokens_per_s == 2.0
    assert one.decode_s == 2.0


def test_tokens_decoded_while_others_prefill_do_not_count() -> None:
    run = BatchTiming(2, 8)
    run.record(output("0", 1, 101.0), 101.0)
    run.record(output("0", 2, 101.0), 102.0)
    run.record(output("1", 1, 104.0), 104.0)
    run.record(output("0", 3, 101.0), 105.0)
    run.record(output("1", 2, 104.0), 105.0)
    assert run.prefill_tokens_per_s == 16 / 4.0
    assert run.decode_tokens_per_s == 2 / 1.0
    assert run.ttft_s == 2.5


def test_one_token_has_no_decode_rate() -> None:
    run = BatchTiming(1, 8)
    run.record(output("0", 1, 102.0), 102.0)
    assert run.decode_tokens_per_s is None
    summary = summarize([run], Phases(0.5, 0.0))
    assert (summary["decode_tokens_per_s"], summary["decode_limit_fraction"]) == (None, None)


def test_fractions(one: BatchTiming) -> None:
    summary = summarize([one, one, one], Phases(0.5, 1.5))
    assert (summary["prefill_limit_fraction"], summary["decode_limit_fraction"]) == (0.25, 0.75)
    summary = summarize([one], Phases(None, None))
    assert (summary["prefill_limit_fraction"], summary["decode_limit_fraction"]) == (None, None)


def test_prefill_ends_with_the_last_step_that_is_not_all_decode() -> None:
    shapes = [StepShape((i,), (), is_decode) for i, is_decode in enumerate((False, True, False, True, True))]
    assert split_phases(shapes) == (shapes[:3], shapes[3:])
    assert split_phases(shapes[3:]) == ([], shapes[3:])


def test_json_of_a_real_run(invoke: Any) -> None:
    args = "--device numpy --load-format dummy --prompt-tokens 8 --output-tokens 3 --batch 2 --repeat 1 --json"
    result = invoke("bench", "latency", *args.split())
    assert result.exit_code == 0, result.stderr
    record = json.loads(result.stdout)
    assert record.keys() >= KEYS
    assert record["prefill_tokens_per_s"] > 0
    assert record["decode_tokens_per_s"] > 0
    assert record["peak_memory_bytes"] > record["weight_bytes"] > 0
    rates = {"fp32": None, "fp16": None, "bf16": None, "fp8": None, "int8": None}
    assert record["limits"] == {"memory_bytes_per_s": None, "flops_per_s": rates}
    assert record["decode_limit_fraction"] is None
    assert record["weight_formats"] == []


def test_asynchronous_scheduling_is_timed_without_an_observer(invoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shapes of the steps come from a separate run."""
    looks: list[bool] = []
    launch = ModelRunner.launch

    def noting(self: ModelRunner, decision: ScheduleDecision, before: InFlightStep | None = None) -> InFlightStep:
        looks.append(self.observer is not None)
        return launch(self, decision, before)

    monkeypatch.setattr(ModelRunner, "launch", noting)
    args = "--device sim --prompt-tokens 4 --output-tokens 3 --repeat 2 --json"
    assert json.loads(invoke("bench", "latency", *args.split()).stdout)["decode_tokens_per_s"] > 0
    assert looks == sorted(looks, reverse=True)
    assert looks.count(False) == 2 * 3


def test_weight_formats_are_reported(invoke: Any) -> None:
    args = (
        "--device numpy --prompt-tokens 4 --output-tokens 2 --repeat 1 --quantization int8 --lm-head-quantization dense"
    )
    record = json.loads(invoke("bench", "latency", *args.split(), "--json").stdout)
    (use,) = record["weight_formats"]
    assert (use["name"], use["bits_per_weight"], use["num_dequantized"]) == ("int8", 8.5, use["num_parameters"])
    assert "matrices in int8" in invoke("bench", "latency", *args.split()).stdout


def test_the_table(invoke: Any) -> None:
    result = invoke("bench", "latency", "--device", "numpy", "--prompt-tokens", "4", "--output-tokens", "2")
    assert result.exit_code == 0, result.stderr
    for words in ("prefill", "decode", "first token", "peak memory", "not measured by this device"):
        assert words in result.stdout


@pytest.mark.parametrize("option", ["--prompt-tokens", "--output-tokens", "--batch", "--repeat"])
def test_zero_is_a_usage_error(invoke: Any, option: str) -> None:
    assert invoke("bench", "latency", option, "0").exit_code == 2


def test_too_long_for_the_model_is_a_sentence(invoke: Any) -> None:
    result = invoke("bench", "latency", "--device", "numpy", "--prompt-tokens", "100000")
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: ")
