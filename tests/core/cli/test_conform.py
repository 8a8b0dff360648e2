"""conform: its report, and errors of wrong arguments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def test_the_report_of_a_device(invoke: Any, tmp_path: Path) -> None:
    badge = tmp_path / "badge.svg"
    words = ("conform", "numpy", "--suite", "hal", "-k", "alone or elapsed_time_runs")
    result = invoke(*words, "--json", "--badge", str(badge))
    report = json.loads(result.stdout)
    assert result.exit_code == 0
    assert {key: report[key] for key in ("ok", "level", "executed", "passed", "failed")} == {
        "ok": True,
        "level": None,
        "executed": 2,
        "passed": 2,
        "failed": 0,
    }
    assert [case["name"] for case in report["cases"]] == [
        "hal.elapsed_time_runs_forward",
        "hal.views_at_an_offset_are_copied_alone",
    ]
    assert badge.read_text().startswith("<svg")
    assert "a selection" in badge.read_text()
    assert "#2da44e" not in badge.read_text()
    assert "numpy: selection passed, no level" in invoke(*words).stdout


def test_wrong_arguments_are_one_line_errors(invoke: Any) -> None:
    for words, sentence in (
        (("nochip",), "Unknown device 'nochip'"),
        (("numpy", "--suite", "kernels"), "There is no suite 'kernels'; pass --suite hal, operators, models."),
        (("numpy", "--suite", "models", "-m", "nope"), "No model 'nope'"),
        (("numpy", "--suite", "hal", "--compare", "zz"), "Unknown device 'zz'"),
        (("numpy", "--expectations", "nowhere.toml"), "nowhere.toml cannot be read"),
        (("numpy", "--device", "cpu"), "--device has no effect on numpy"),
        (("qwen2", "--suite", "hal"), "--suite has no effect on qwen2"),
        (("qwen2", "--compare", "numpy"), "--compare has no effect on qwen2"),
    ):
        result = invoke("conform", *words)
        assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
        assert sentence in result.stderr
