"""Reading a decoder's configuration, in both spellings."""

from __future__ import annotations

from typing import Any

import pytest

from aethermind.errors import AetherMindError
from aethermind.hal.dtype import DType
from aethermind.model.config import DecoderConfig, read_decoder_config

RAW = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 512,
}


def read(defaults: dict[str, Any] | None = None, **changes: Any) -> DecoderConfig:
    raw = {name: value for name, value in {**RAW, **changes}.items() if value != "absent"}
    return read_decoder_config(raw, defaults=defaults or {})


def test_fields_are_read_and_derived() -> None:
    config = read()
    assert (config.head_dim, config.num_key_value_heads, config.rms_norm_eps) == (8, 2, 1e-6)
    assert (config.tie_word_embeddings, config.dtype, config.eos_token_ids) == (False, DType.FLOAT32, ())
    assert config.sliding_windows == (0, 0, 0, 0)
    assert read(head_dim=32).head_dim == 32
    assert read(num_key_value_heads="absent").num_key_value_heads == 8
    assert read(num_key_value_heads=None).num_key_value_heads == 8


def test_defaults_replace_absent_and_null_fields() -> None:
    defaults = {"head_dim": 128, "rms_norm_eps": 1e-5}
    assert read(defaults).head_dim == 128
    assert read(defaults, head_dim=None, rms_norm_eps=None).rms_norm_eps == 1e-5
    assert read(defaults, head_dim=16).head_dim == 16


@pytest.mark.parametrize("name", ["dtype", "torch_dtype"])
@pytest.mark.parametrize("value", ["bfloat16", "torch.bfloat16"])
def test_dtype_in_both_spellings(name: str, value: str) -> None:
    assert read(**{name: value}).dtype is DType.BFLOAT16


def test_dtype_takes_precedence_over_torch_dtype() -> None:
    assert read(dtype="float16", torch_dtype="float32").dtype is DType.FLOAT16
    assert read(dtype=None, torch_dtype="bfloat16").dtype is DType.BFLOAT16


def test_dtype_auto_counts_as_unspecified() -> None:
    assert read(dtype="auto").dtype is read(torch_dtype="auto").dtype is DType.FLOAT32
    assert read(dtype="auto", torch_dtype="float16").dtype is DType.FLOAT16


def test_rotary_embedding_in_both_spellings() -> None:
    scaling = {"factor": 4.0, "original_max_position_embeddings": 128}
    today = read(rope_parameters={"rope_type": "yarn", "rope_theta": 1e6, **scaling})
    older = read(rope_theta=1e6, rope_scaling={"type": "yarn", **scaling})
    assert today == older
    assert (today.rope.theta, today.rope.kind, today.rope.max_positions) == (1e6, "yarn", 512)
    assert read().rope.theta == 10000.0
    assert read(rope_theta=5e5, rope_scaling=None).rope.theta == 5e5


def test_sliding_windows_in_both_spellings() -> None:
    kinds = ["full_attention", "full_attention", "sliding_attention", "sliding_attention"]
    today = read(sliding_window=16, layer_types=kinds)
    older = read(sliding_window=16, use_sliding_window=True, max_window_layers=2)
    assert today.sliding_windows == older.sliding_windows == (0, 0, 16, 16)
    assert read(sliding_window=16, use_sliding_window=False, max_window_layers=2).sliding_windows == (0, 0, 0, 0)
    assert read(sliding_window=16, use_sliding_window=True, max_window_layers=0).sliding_windows == (16,) * 4
    assert read(sliding_window=None, layer_types=["full_attention"] * 4).sliding_windows == (0,) * 4


@pytest.mark.parametrize(("value", "ids"), [(None, ()), (7, (7,)), ([7, 9], (7, 9)), (-1, (-1,))])
def test_eos_token_ids_are_read(value: Any, ids: tuple[int, ...]) -> None:
    assert read(eos_token_id=value).eos_token_ids == ids


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"hidden_size": "absent"}, ("hidden_size", "None")),
        ({"hidden_size": True}, ("hidden_size", "True")),
        ({"vocab_size": -5}, ("vocab_size", "-5")),
        ({"vocab_size": 2**40}, ("vocab_size", str(2**40))),
        ({"num_hidden_layers": 2.0}, ("num_hidden_layers", "2.0")),
        ({"hidden_size": 63}, ("hidden_size (63)", "num_attention_heads (8)")),
        ({"num_key_value_heads": 3}, ("num_attention_heads (8)", "num_key_value_heads (3)")),
        ({"head_dim": 7}, ("head_dim (7)", "even")),
        ({"rms_norm_eps": 0}, ("rms_norm_eps", "0")),
        ({"hidden_act": "gelu"}, ("hidden_act", "'gelu'")),
        ({"dtype": "int8"}, ("'int8'", "compute in")),
        ({"dtype": 3}, ("'3'",)),
        ({"rope_theta": -1}, ("rope_theta", "-1")),
        ({"rope_scaling": "yarn"}, ("rope_scaling", "'yarn'")),
        ({"rope_scaling": {"type": "ntk"}}, ("'ntk'", "linear")),
        ({"rope_scaling": {"type": "linear", "factor": "4"}}, ("factor", "'4'")),
        ({"layer_types": ["full_attention"]}, ("layer_types", "(4)")),
        ({"layer_types": ["mamba"] * 4}, ("'mamba'", "sliding_attention")),
        ({"layer_types": ["sliding_attention"] * 4}, ("sliding_window",)),
        ({"use_sliding_window": True, "max_window_layers": [2], "sliding_window": 8}, ("max_window_layers", "[2]")),
        ({"eos_token_id": "</s>"}, ("eos_token_id", "'</s>'")),
        ({"eos_token_id": [1, True]}, ("eos_token_id", "True")),
        ({"is_causal": False}, ("is_causal", "both directions")),
    ],
)
def test_bad_fields_are_named_with_their_values(changes: dict[str, Any], says: tuple[str, ...]) -> None:
    with pytest.raises(AetherMindError) as caught:
        read(**changes)
    assert all(words in str(caught.value) for words in says)
