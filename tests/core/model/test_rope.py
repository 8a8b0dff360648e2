"""Rotary frequencies against transformers' own initialisers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from transformers import Qwen2Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.qwen2.modeling_qwen2 import Qwen2RotaryEmbedding

from aethermind.errors import ConfigError
from aethermind.model.rope import inverse_frequencies, read_rope

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 1024,
}
SCALINGS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 2.5},
    "dynamic": {"rope_type": "dynamic", "factor": 3.0},
    "yarn": YARN,
    "yarn_original_is_max": {"rope_type": "yarn", "factor": 4.0},
    "yarn_not_truncated": {**YARN, "truncate": False},
    "yarn_betas": {**YARN, "beta_fast": 16.0, "beta_slow": 2.0},
    "yarn_attention_factor": {**YARN, "attention_factor": 1.25},
    "yarn_mscale": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.0},
    "yarn_equal_mscales": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
    "yarn_one_mscale": {**YARN, "mscale": 0.7},
    "yarn_shrinking": {**YARN, "factor": 0.5},
    "yarn_few_positions": {**YARN, "original_max_position_embeddings": 4},
    "llama3": LLAMA3,
    "llama3_narrow": {**LLAMA3, "low_freq_factor": 3.5, "factor": 32.0},
}


def reference(scaling: dict[str, Any], head_dim: int, theta: float, length: int) -> tuple[np.ndarray[Any, Any], float]:
    """What transformers computes for sequences of up to `length` tokens."""
    config = Qwen2Config(
        hidden_size=4 * head_dim,
        num_attention_heads=4,
        max_position_embeddings=8192,
        rope_parameters={**scaling, "rope_theta": theta},
    )
    compute = ROPE_INIT_FUNCTIONS.get(scaling["rope_type"], Qwen2RotaryEmbedding.compute_default_rope_parameters)
    frequencies, factor = compute(config, device="cpu", seq_len=length)
    return frequencies.numpy(), factor


@pytest.mark.parametrize(("head_dim", "theta"), [(8, 1e4), (64, 1e6), (80, 5e5), (128, 1e6)])
@pytest.mark.parametrize("name", SCALINGS)
def test_frequencies(name: str, head_dim: int, theta: float) -> None:
    scaling = SCALINGS[name]
    fields = {"rope_parameters": {**scaling, "rope_theta": theta}}
    config = read_rope(fields, head_dim=head_dim, max_position_embeddings=8192)
    for length in (100, 8192) if name != "dynamic" else (100, 8192, 8193, 20000):
        frequencies, factor = inverse_frequencies(config, length)
        expected, expected_factor = reference(scaling, head_dim, theta, length)
        assert frequencies.dtype == np.float32
        assert factor == pytest.approx(expected_factor, rel=1e-12)
        assert_within_ulps(frequencies, expected, 1 if name == "default" else 2)


def assert_within_ulps(values: np.ndarray[Any, Any], expected: np.ndarray[Any, Any], ulps: int) -> None:
    assert expected.dtype == np.float32
    np.testing.assert_array_less(np.abs(values.astype(np.float64) - expected), (ulps + 0.5) * np.spacing(expected))


@pytest.mark.parametrize("name", ["yarn", "llama3"])
@pytest.mark.parametrize("within", [{}, {"original_max_position_embeddings": 4096}])
def test_the_original_context_may_be_beside_the_scaling_object(name: str, within: dict[str, Any]) -> None:
    """Where transformers looks first."""
    scaling = {**SCALINGS[name], **within, "rope_theta": 1e6}
    if not within:
        del scaling["original_max_position_embeddings"]
    sizes = {"max_position_embeddings": 8192, "original_max_position_embeddings": 512}
    theirs = Qwen2Config(hidden_size=256, num_attention_heads=4, rope_parameters=dict(scaling), **sizes)
    expected, _ = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](theirs, device="cpu")
    config = read_rope({"rope_parameters": scaling, **sizes}, head_dim=64, max_position_embeddings=8192)
    assert_within_ulps(inverse_frequencies(config, 100)[0], expected.numpy(), 2)


def test_yarn_without_a_factor_scales_to_max_position_embeddings() -> None:
    fields = {"rope_scaling": {"type": "yarn", "original_max_position_embeddings": 2048}}
    assert read_rope(fields, head_dim=8, max_position_embeddings=8192).factor == 4.0


def test_positions_that_a_scaling_reaches() -> None:
    def reach(**scaling: Any) -> int:
        return read_rope({"rope_scaling": scaling}, head_dim=8, max_position_embeddings=1000).max_positions

    assert reach(type="linear", factor=2.0) == 2000
    assert reach(type="dynamic", factor=3.0, original_max_position_embeddings=10) == 3000
    assert reach(type="yarn", factor=4.0, original_max_position_embeddings=100) == 400
    assert reach() == 0


@pytest.mark.parametrize(
    ("fields", "head_dim", "sentence"),
    [
        ({"partial_rotary_factor": 0.5}, 64, "partial_rotary_factor 0.5.*Take another model"),
        (
            {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25}},
            64,
            "partial_rotary_factor 0.25",
        ),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, 2, "head_dim above 2"),
        ({"rope_parameters": [YARN]}, 64, "rope_parameters in config.json should be an object"),
        ({"rope_parameters": {"full_attention": YARN, "sliding_attention": {}}}, 64, "'full_attention'"),
        ({"rope_scaling": {"factor": 4.0}}, 64, "no rope_type"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "rope_scaling": YARN}, 64, "they differ"),
        ({"rope_scaling": {"type": "longrope", "long_factor": [1.0]}}, 64, "short_factor .* a list of 32 numbers"),
    ],
)
def test_unsupported_rope_parameters_are_refused(fields: dict[str, Any], head_dim: int, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        read_rope(fields, head_dim=head_dim, max_position_embeddings=4096)


@pytest.mark.parametrize("kind", ["longrope", "su"])
@pytest.mark.parametrize("factor", [{}, {"attention_factor": 1.5}, {"factor": 1.0}])
def test_longrope_chooses_its_factors_by_the_context_in_use(kind: str, factor: dict[str, float]) -> None:
    scaling = {"short_factor": [1.0 + i / 8 for i in range(12)], "long_factor": [2.0 + i for i in range(12)], **factor}
    sizes = {"original_max_position_embeddings": 512, "partial_rotary_factor": 0.75}
    fields = {"rope_scaling": {"type": kind, **scaling}, "rope_theta": 1e4, **sizes}
    config = read_rope(fields, head_dim=32, max_position_embeddings=8192, has_partial_rotary=True)
    assert (config.head_dim, config.max_positions) == (24, 512 if factor.get("factor") else 8192)
    rope = {"rope_type": "longrope", "rope_theta": 1e4, **scaling, **sizes}
    theirs = Qwen2Config(
        hidden_size=128, num_attention_heads=4, head_dim=32, max_position_embeddings=8192, rope_parameters=rope
    )
    for length in (100, 512, 513, 8192):
        expected, expected_factor = ROPE_INIT_FUNCTIONS["longrope"](theirs, device="cpu", seq_len=length)
        frequencies, attention_factor = inverse_frequencies(config, length)
        assert attention_factor == pytest.approx(expected_factor, rel=1e-12)
        assert_within_ulps(frequencies, expected.numpy(), 2)


@pytest.mark.parametrize("partial", [0.0, 1.5, True, "half", 0.1])
def test_a_part_that_is_no_even_number_of_elements_is_refused(partial: Any) -> None:
    fields = {"partial_rotary_factor": partial}
    with pytest.raises(ConfigError, match="partial_rotary_factor"):
        read_rope(fields, head_dim=30, max_position_embeddings=64, has_partial_rotary=True)
