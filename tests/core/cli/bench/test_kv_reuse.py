"""bench kv-reuse: reports for all pairs and for given ones, and errors of invalid pairs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


def test_a_report(invoke: Any) -> None:
    args = ("--device", "numpy", "--tokens", "40", "--reuse", "3:2", "--reuse", "2:1,3:1", "--json")
    result = invoke("bench", "kv-reuse", *args)
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert [one["sources"] for one in report["reuse"]] == [{"3": 2}, {"2": 1, "3": 1}]
    assert 0 < report["reuse"][0]["kl_mean"] < report["reuse"][1]["kl_mean"]
    for cosines in (report["key_cosines"], report["value_cosines"]):
        assert [row[layer] for layer, row in enumerate(cosines)] == pytest.approx([1] * len(cosines))


@pytest.mark.parametrize(("reuse", "words"), [("3", "READER:SOURCE"), ("1:2", "name an earlier one")])
def test_invalid_pairs_are_refused(invoke: Any, reuse: str, words: str) -> None:
    result = invoke("bench", "kv-reuse", "--device", "numpy", "--tokens", "8", "--reuse", reuse)
    assert result.exit_code == 2
    assert words in result.stderr


def test_a_report_with_distillation(invoke: Any) -> None:
    args = ("--device", "numpy", "--tokens", "40", "--distill", "60", "--reuse", "3:2")
    report = json.loads(invoke("bench", "kv-reuse", *args, "--json").stdout)
    assert report["num_tokens"] == 40
    assert 0 < report["num_distilled_tokens"] <= 60
    assert report["reuse"][0]["distilled"].keys() == report["reuse"][0].keys() - {"sources", "distilled"}
    assert "distilled" in invoke("bench", "kv-reuse", *args).stdout


def test_a_text_too_short_to_distill_from_is_refused(invoke: Any, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("Once upon a time", encoding="utf-8")
    args = ("--device", "numpy", "--tokens", "40", "--distill", "60", "--text", str(text))
    result = invoke("bench", "kv-reuse", *args)
    assert result.exit_code == 2
    assert "Lower --tokens" in result.stderr
