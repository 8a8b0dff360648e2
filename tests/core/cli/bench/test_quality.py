"""bench quality: divergences computed by hand, and a report in which fewer bits lose more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aethermind.cli.bench.quality import compare_logits


def test_the_same_logits_do_not_diverge() -> None:
    logits = np.random.default_rng(0).standard_normal((5, 11)).astype(np.float32)
    same = compare_logits(logits, logits + 3)
    assert same.kl_mean == pytest.approx(0, abs=1e-6)
    assert same.top1_agreement == 1.0


def test_divergence_by_hand() -> None:
    """Two tokens: p = (3/4, 1/4) against (1/4, 3/4), and against itself."""
    expected = np.log(np.array([[3.0, 1.0], [3.0, 1.0]]))
    actual = np.log(np.array([[1.0, 3.0], [6.0, 2.0]]))
    found = compare_logits(expected, actual)
    first = 0.75 * np.log(3) + 0.25 * np.log(1 / 3)
    assert found.kl_mean == pytest.approx(first / 2)
    assert found.kl_p99 == pytest.approx(0.99 * first)
    assert found.top1_agreement == 0.5


def test_large_logits_stay_finite() -> None:
    found = compare_logits(np.array([[1e4, -1e4, 0]]), np.array([[-1e4, 1e4, 0]]))
    assert np.isfinite(found.kl_mean)
    assert found.kl_mean > 1e4


def report(invoke: Any, *args: str) -> dict[str, Any]:
    result = invoke("bench", "quality", "--device", "numpy", "--json", *args)
    assert result.exit_code == 0, result.stderr
    record: dict[str, Any] = json.loads(result.stdout)
    return record


def test_fewer_bits_cost_more(invoke: Any) -> None:
    found = report(invoke, "--quantization", "int8", "int4", "int1", "dense", "--tokens", "160")
    assert (found["num_tokens"], found["dtype"], found["text"]) == (160, "float32", None)
    by_name = {one["quantization"]: one for one in found["formats"]}
    assert list(by_name) == ["int8", "int4", "int1", "dense"]
    kl = {name: one["kl_mean"] for name, one in by_name.items()}
    assert kl["dense"] <= 1e-9 < kl["int8"] < 1e-3
    assert 2 * kl["int8"] < kl["int4"] < kl["int1"]
    assert by_name["dense"]["top1_agreement"] == 1.0
    assert by_name["int8"]["top1_agreement"] > 0.95
    assert (by_name["int8"]["bits_per_weight"], by_name["dense"]["bits_per_weight"]) == (8.5, None)


def test_a_given_text_and_head_format(invoke: Any, tmp_path: Path) -> None:
    text = tmp_path / "story.txt"
    text.write_text("Once upon a time there was a little fox.\n" * 3)
    found = report(invoke, "int4", "--lm-head-quantization", "int2", "--text", str(text), "--tokens", "20")
    assert (found["num_tokens"], found["text"]) == (20, str(text))
    (one,) = found["formats"]
    assert [use["name"] for use in one["weight_formats"]] == ["int4", "int2"]


def test_the_table(invoke: Any) -> None:
    result = invoke("bench", "quality", "int8_channel", "--device", "numpy", "--load-format", "dummy", "--tokens", "8")
    assert result.exit_code == 0, result.stderr
    title, header, row = result.stdout.splitlines()
    assert "8 tokens of its own writing" in title
    assert header.split()[0] == "format"
    assert row.split()[:3] == ["int8_channel", "29", "int8_channel"]
    result = invoke("bench", "quality", "--device", "numpy", "--kv-cache-dtype", "int8", "--tokens", "8")
    assert result.stdout.splitlines()[-1].startswith("  dense, KV int8  ")


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (("int3",), "int3"),
        (("--quantization", "int8", "--lm-head-quantization", "int3"), "int3"),
        (("--text", "missing"), "missing"),
    ],
)
def test_wrong_arguments_are_one_line_errors(invoke: Any, args: tuple[str, ...], word: str) -> None:
    result = invoke("bench", "quality", "--device", "numpy", *args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert word in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_an_empty_text_is_refused(invoke: Any, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    result = invoke("bench", "quality", "int8", "--device", "numpy", "--text", str(tmp_path / "empty.txt"))
    assert result.exit_code == 2
    assert "is empty" in result.stderr
