"""simulate: the table, the JSON record, the plot, and errors."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from aethermind.engine.simulation import StepCosts

SMALL = Path(__file__).parents[2] / "engine" / "simulation" / "small.csv"
PREFIXES = SMALL.with_suffix(".jsonl")


def test_a_table_has_a_column_for_each_policy(invoke: Any) -> None:
    result = invoke("simulate", str(SMALL))
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("8 requests in 2 s, 64 sequences and 512 tokens a step at most")
    for word in ("fair", "fcfs", "priority", "shortest", "deadline", "first token, p50/p90/p99", "fairness (Jain)"):
        assert word in result.stdout


def test_requests_that_exceed_the_kv_cache_are_reported(invoke: Any) -> None:
    assert "rejected;" not in invoke("simulate", str(SMALL)).stdout
    result = invoke("simulate", str(SMALL), "--num-kv-blocks", "2")
    assert result.exit_code == 0, result.output
    assert "of 8 requests need more tokens than the 32 that the KV cache holds, and were rejected" in result.stdout


def test_the_json_record_has_the_same_metrics(invoke: Any) -> None:
    arguments = ("--policy", "priority,fcfs,priority", "--limit", "5", "--rate-scale", "2", "--json")
    report = json.loads(invoke("simulate", str(SMALL), *arguments).stdout)
    assert list(report["policies"]) == ["priority", "fcfs"]
    assert (report["num_requests"], report["duration_s"]) == (5, pytest.approx(0.75))
    assert report["policies"]["fcfs"]["num_requests"] == 5
    assert report["policies"]["fcfs"]["urgent_ttft"]["p50"] is None, "one in ten of five is none"
    assert 0 < report["policies"]["fcfs"]["fairness"] <= 1


def test_limits_and_costs_change_the_result(invoke: Any, tmp_path: Path) -> None:
    (tmp_path / "costs.json").write_text('{"fixed_s": 1.0, "prefill_token_s": 0, "decode_sequence_s": 0}')
    options = ("--cost-model", str(tmp_path / "costs.json"), "--max-num-seqs", "1", "--block-size", "32", "--json")
    report = json.loads(invoke("simulate", str(PREFIXES), "--policy", "fcfs", *options).stdout)
    assert report["costs"]["fixed_s"] == 1.0
    assert (report["num_kv_blocks"], report["block_size"]) == (25_000, 32)
    fcfs = report["policies"]["fcfs"]
    assert fcfs["mean_running"] == 1.0
    assert fcfs["cached_share"] == pytest.approx(1024 / 3400)
    assert fcfs["num_steps"] == (3 + 8) + (1 + 3) + 2


def test_costs_can_be_measured(invoke: Any) -> None:
    result = invoke("simulate", str(SMALL), "--calibrate", "demo", "--device", "null", "--policy", "fcfs", "--json")
    assert json.loads(result.stdout)["costs"]["fixed_s"] != StepCosts().fixed_s


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_a_plot_is_written(invoke: Any, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"run.{suffix}"
    assert invoke("simulate", str(SMALL), "--plot", str(path)).exit_code == 0
    begin = path.read_bytes()[:300]
    assert (b"<?xml" in begin) if suffix == "svg" else begin.startswith(b"\x89PNG")


def test_without_matplotlib_plots_are_a_one_line_error(
    invoke: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = invoke("simulate", str(SMALL), "--plot", str(tmp_path / "run.svg"))
    assert result.exit_code == 2
    assert re.search(r"pip install '.*aethermind-core\[plot\]'", result.stderr)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("absent.csv",), "absent.csv cannot be used: No such file"),
        ((str(SMALL), "--policy", "magic"), "Unknown scheduling policy 'magic'"),
        ((str(SMALL), "--policy", ""), "Unknown scheduling policy ''"),
        ((str(SMALL), "--plot", "run.gif"), "should end in .svg or .png"),
        ((str(SMALL), "--rate-scale", "0"), "--rate-scale is 0.0 but must be a number above 0"),
        ((str(SMALL), "--slack", "nan"), "--slack is nan"),
        ((str(SMALL), "--urgent-share", "nan"), "--urgent-share is nan"),
        ((str(SMALL), "--device", "cpu"), "--device is about the model that --calibrate measures"),
        ((str(SMALL), "--load-format", "dummy"), "--load-format is about the model that --calibrate measures"),
        ((str(SMALL), "--num-kv-blocks", "0"), "--num-kv-blocks is 0 but must be an integer from 1 to 2147483647"),
        ((str(SMALL), "--max-num-seqs", "0"), "max_num_seqs is 0"),
        ((str(SMALL), "--max-num-batched-tokens", "7"), "must be at least max_num_seqs"),
        ((str(SMALL), "--cost-model", str(SMALL)), "is not JSON"),
        ((str(SMALL), "--cost-model", str(SMALL), "--calibrate", "demo"), "pass one of them"),
        ((str(Path(__file__)),), "has no column TIMESTAMP"),
    ],
)
def test_bad_input_is_a_sentence(invoke: Any, arguments: tuple[str, ...], words: str) -> None:
    result = invoke("simulate", *arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert "Traceback" not in result.output
