"""A GGUF file's metadata in the terms of the Hugging Face files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from aethermind.errors import CheckpointError, ConfigError
from aethermind.model.gguf_family import GgufFamily
from aethermind.model.gguf_source import GgufSource
from aethermind.model.registry import gguf_families

FAMILY = GgufFamily("ToyForCausalLM", {})
KEYS: dict[str, Any] = {
    "toy.embedding_length": 32,
    "toy.feed_forward_length": 48,
    "toy.block_count": 2,
    "toy.attention.head_count": 4,
    "toy.context_length": 128,
    "toy.attention.layer_norm_rms_epsilon": 2.0**-20,
}
COMMON = {
    "architectures": ["ToyForCausalLM"],
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "rms_norm_eps": 2.0**-20,
    "vocab_size": 7,
    "tie_word_embeddings": True,
    "dtype": "float16",
    "eos_token_id": [],
    "attention_bias": False,
    "use_qkv_bias": False,
    "is_causal": True,
}


@pytest.fixture
def source(tmp_path: Path) -> Callable[..., GgufSource]:
    """Write a file with keys changed, added or (None) left out, and more tensors."""

    def make(
        keys: dict[str, Any] | None = None, tensors: dict[str, str] | None = None, arch: str = "toy"
    ) -> GgufSource:
        writer = gguf.GGUFWriter(tmp_path / "toy.gguf", arch)
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        for key, value in {**KEYS, **(keys or {})}.items():
            if value is not None:
                add.get(type(value), writer.add_array)(key, value)
        for name, kind in {"token_embd.weight": "F16", "output_norm.weight": "F32", **(tensors or {})}.items():
            dtype = gguf.GGMLQuantizationType[kind]
            shape = 32 if name == "output_norm.weight" else (7, 32)
            is_unreadable = kind == "Q8_1"  # 40 bytes for 32 values
            stored = np.zeros((7, 40), np.uint8) if is_unreadable else gguf.quantize(np.zeros(shape, np.float32), dtype)
            writer.add_tensor(name, stored, raw_dtype=dtype)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        registry = gguf_families()
        registry.register("toy", f"{__name__}:FAMILY", provider="tests")
        return GgufSource(tmp_path / "toy.gguf", registry)

    return make


def test_a_file_with_minimal_metadata(source: Callable[..., GgufSource]) -> None:
    assert source().config() == COMMON
    assert source().generation() == {}


def test_a_file_with_all_metadata(source: Callable[..., GgufSource]) -> None:
    keys = {
        "toy.attention.head_count_kv": 2,
        "toy.attention.key_length": 16,
        "toy.attention.value_length": 16,
        "toy.rope.freq_base": 1e6,
        "toy.rope.dimension_count": 8,
        "toy.rope.scaling.type": "yarn",
        "toy.rope.scaling.factor": 4.0,
        "toy.rope.scaling.original_context_length": 32,
        "toy.rope.scaling.finetuned": True,
        "toy.rope.scaling.yarn_beta_fast": 16.0,
        "toy.rope.scaling.yarn_beta_slow": 2.0,
        "tokenizer.ggml.eos_token_id": 5,
        "tokenizer.ggml.eot_token_id": 6,
    }
    assert source(keys, {"output.weight": "BF16", "blk.0.ffn_up.weight": "BF16"}).config() == {
        **COMMON,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rope_theta": 1e6,
        "partial_rotary_factor": 0.5,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 32,
            "beta_fast": 16.0,
            "beta_slow": 2.0,
        },
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        "eos_token_id": [5, 6],
    }


def test_factors_of_one_change_no_scaling(source: Callable[..., GgufSource]) -> None:
    scaling = {"toy.rope.scaling.type": "yarn", "toy.rope.scaling.factor": 4.0}
    ones = {f"toy.rope.scaling.{key}": 1.0 for key in ("attn_factor", "yarn_attn_factor", "yarn_ext_factor")}
    assert source({**scaling, **ones}).config() == source(scaling).config()
    found = source({**scaling, "toy.rope.scaling.yarn_attn_factor": 0.5}).config()["rope_scaling"]
    assert found == {"rope_type": "yarn", "factor": 4.0, "attention_factor": 0.5}


def test_rope_scaling_of_no_kind_is_none(source: Callable[..., GgufSource]) -> None:
    assert source({"toy.rope.scaling.type": "none", "toy.rope.scaling.factor": 2.0}).config() == COMMON


@pytest.mark.parametrize("key", ["scaling.factor", "scale_linear"])
def test_a_factor_of_no_kind_is_linear(source: Callable[..., GgufSource], key: str) -> None:
    """As the specification has it of files from before there were kinds."""
    scaled = source({f"toy.rope.{key}": 8.0}).config()
    assert scaled == {**COMMON, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    assert source({f"toy.rope.{key}": 1.0}).config() == COMMON
    with pytest.raises(ConfigError, match="attn_factor in its metadata, which is not supported"):
        source({f"toy.rope.{key}": 8.0, "toy.rope.scaling.attn_factor": 2.0}).config()


def test_encoder_files_give_pooling_and_attention(source: Callable[..., GgufSource]) -> None:
    assert source().pooling() is None
    kinds = gguf.PoolingType
    for kind, pooling in ((kinds.NONE, None), (kinds.MEAN, "mean"), (kinds.CLS, "cls"), (kinds.LAST, "last")):
        assert source({"toy.pooling_type": int(kind)}).pooling() == pooling
    with pytest.raises(ConfigError, match=r"toy\.pooling_type 4.*last, mean or cls"):
        source({"toy.pooling_type": int(kinds.RANK)}).pooling()
    assert source({"toy.attention.causal": False}).config() == {**COMMON, "is_causal": False}


def test_sampling_values_are_rounded_to_decimals(source: Callable[..., GgufSource]) -> None:
    keys = {"temp": 0.7, "top_k": 20, "top_p": 0.8, "min_p": 0.05, "penalty_repeat": 1.05, "mirostat": 2}
    assert source({f"general.sampling.{key}": value for key, value in keys.items()}).generation() == {
        "temperature": 0.7,
        "top_k": 20,
        "top_p": 0.8,
        "min_p": 0.05,
        "repetition_penalty": 1.05,
    }


def test_the_first_layer_that_drafts_tokens_has_the_names_of_an_mtp_module(source: Callable[..., GgufSource]) -> None:
    stored = ("attn_q", "nextn.eh_proj", "nextn.shared_head_norm", "nextn.shared_head_head")
    tensors = {"blk.0.attn_q.weight": "F16", **{f"blk.1.{name}.weight": "F16" for name in stored}}
    found = source({"toy.nextn_predict_layers": 1}, tensors)
    assert found.config() == {**COMMON, "num_hidden_layers": 1, "num_nextn_predict_layers": 1}
    model = ("model.embed_tokens.weight", "model.norm.weight", "model.layers.0.self_attn.q_proj.weight")
    module = ("mtp.layers.0.self_attn.q_proj.weight", "mtp.eh_proj.weight", "mtp.norm.weight")
    assert found.names() == (*model, *module)


@pytest.mark.parametrize("key", KEYS)
def test_a_missing_key_is_named(source: Callable[..., GgufSource], key: str) -> None:
    with pytest.raises(ConfigError, match=f"has no {key} in its metadata"):
        source({key: None}).config()


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"toy.attention.head_count": [4, 2]}, r"toy\.attention\.head_count that is not one number"),
        ({"toy.rope.freq_base": "much"}, r"toy\.rope\.freq_base that is not one number"),
        ({"toy.rope.scaling.type": [1, 2]}, r"toy\.rope\.scaling\.type that is not one value"),
        (
            {"toy.rope.scaling.type": "yarn", "toy.rope.scaling.attn_factor": 2.0},
            r"toy\.rope\.scaling\.attn_factor in its metadata, which is not supported",
        ),
    ],
)
def test_unsupported_metadata_is_named(source: Callable[..., GgufSource], keys: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        source(keys).config()


def test_an_unknown_architecture_lists_the_known(source: Callable[..., GgufSource]) -> None:
    with pytest.raises(ConfigError, match=r"GGUF architecture 'abacus'\. Installed: toy"):
        source(arch="abacus").config()


def test_quantised_tensors_have_formats_and_the_rest_is_computed_in_bfloat16(source: Callable[..., GgufSource]) -> None:
    quantised = source(tensors={"blk.0.attn_q.weight": "Q8_0", "blk.1.attn_q.weight": "Q4_1", "output.weight": "F16"})
    assert quantised.config()["dtype"] == "bfloat16"
    assert {name: format.name for name, format in quantised.weight_formats().items()} == {
        "model.layers.0.self_attn.q_proj.weight": "int8",
        "model.layers.1.self_attn.q_proj.weight": "int4_offset",
    }
    assert source().weight_formats() == {}


def test_unsupported_types_are_refused_by_name(source: Callable[..., GgufSource]) -> None:
    unreadable = source(tensors={"blk.0.attn_q.weight": "Q8_1"})
    for read in (unreadable.config, unreadable.weights, unreadable.weight_formats):
        with pytest.raises(CheckpointError, match=r"'blk\.0\.attn_q\.weight' in the quantised type Q8_1"):
            read()


def test_a_file_of_several_parts_is_refused(source: Callable[..., GgufSource]) -> None:
    with pytest.raises(CheckpointError, match=r"one of 3 parts of a model\. Pass the first"):
        source({"split.count": 3}).config()
