"""Fingerprints: KV blocks are shared only by engines that compute the same model in the same way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file
from tests.end_to_end.models import DEMO, copy_demo

from aethermind import Runtime
from aethermind.engine.kv_offload import fingerprint
from aethermind.engine.loading.loader import compile_model


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def of(runtime: Runtime, model: str | Path = "demo", **options: Any) -> str:
    return fingerprint(compile_model(runtime, model, **{"device": "numpy", "dtype": "float32", **options}))


def test_limits_and_paths_do_not_change_the_fingerprint(runtime: Runtime, tmp_path: Path) -> None:
    plain = of(runtime)
    assert len(plain) == 32
    assert of(runtime, copy_demo(tmp_path / "copy")) == plain
    assert of(runtime, num_kv_blocks=99, max_num_seqs=3, max_model_len=200, max_num_batched_tokens=64) == plain
    assert of(runtime, seed=5) == plain, "of a model with weights, the seed chooses tokens only"


@pytest.mark.parametrize("options", [{}, {"load_format": "dummy"}], ids=["weights", "made-up"])
def test_ranks_share_what_they_compute(runtime: Runtime, options: dict[str, Any]) -> None:
    """Unless every bit is to be the same: they add up in another order."""
    assert of(runtime, tensor_parallel_size=2, **options) == of(runtime, **options)
    exact = {"deterministic": True, **options}
    assert of(runtime, tensor_parallel_size=2, **exact) != of(runtime, **exact)


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "bfloat16"},
        {"quantization": "int8"},
        {"kv_cache_dtype": "int8"},
        {"block_size": 8},
        {"device": "cpu"},
        {"deterministic": True},
        {"load_format": "dummy"},
        {"load_format": "dummy", "seed": 1},
    ],
    ids=str,
)
def test_options_that_change_values_change_the_fingerprint(runtime: Runtime, options: dict[str, Any]) -> None:
    assert of(runtime, **options) not in {of(runtime), of(runtime, load_format="dummy", seed=2)}


def test_weights_of_the_same_shape_have_different_fingerprints(runtime: Runtime, tmp_path: Path) -> None:
    """One value of one matrix differs; the file has its old size and name."""
    weights = next(DEMO.glob("*.safetensors"))
    tensors = load_file(weights)
    name = next(name for name, tensor in tensors.items() if tensor.ndim == 2)
    tensors[name] = tensors[name].copy()
    tensors[name][0, 0] += 1
    save_file(tensors, tmp_path / "changed.safetensors", metadata={"format": "pt"})
    changed = (tmp_path / "changed.safetensors").read_bytes()
    assert of(runtime, copy_demo(tmp_path / "other", files={weights.name: changed})) != of(runtime)


def test_the_configuration_counts(runtime: Runtime, tmp_path: Path) -> None:
    theta = json.loads((DEMO / "config.json").read_text()).get("rope_theta", 10000.0)
    other = copy_demo(tmp_path / "other", {"rope_theta": theta * 2})
    assert of(runtime, other) != of(runtime)


def test_the_version_counts(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    before = of(runtime)
    monkeypatch.setattr("aethermind.__version__", "0.0.0")
    assert of(runtime) != before
