"""GGUF's tensor names against the library's own table."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from aethermind.checkpoint.gguf_tensors import GgufNames, GgufParts, GgufTensors, hf_name
from aethermind.errors import CheckpointError

HF_NAMES = (
    "model.embed_tokens.weight",
    "model.norm.weight",
    "lm_head.weight",
    *(
        f"model.layers.11.{part}"
        for part in (
            "input_layernorm.weight",
            *(f"self_attn.{letter}_proj.{kind}" for letter in "qkv" for kind in ("weight", "bias")),
            "self_attn.o_proj.weight",
            "self_attn.q_norm.weight",
            "self_attn.k_norm.weight",
            "post_attention_layernorm.weight",
            "mlp.gate_proj.weight",
            "mlp.up_proj.weight",
            "mlp.down_proj.weight",
        )
    ),
)


@pytest.mark.parametrize("name", HF_NAMES)
def test_names_match_the_library_s_table(name: str) -> None:
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, 12)
    theirs = table.get_name(name, try_suffixes=(".weight", ".bias"))
    if theirs is None:  # Qwen3 has no such biases; Qwen2 does
        theirs = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, 12).get_name(name, (".weight", ".bias"))
    assert theirs is not None
    assert hf_name(theirs) == name


@pytest.mark.parametrize(
    "name", ["rope_freqs.weight", "blk.0.attn_q", "blk.0.output.weight", "blk.x.attn_q.weight", ""]
)
def test_unknown_names_are_unchanged(name: str) -> None:
    assert hf_name(name) == name


def test_modules_of_one_family_only() -> None:
    modules = {"shortconv.conv": "conv.conv", "ssm_a": "mixer.A_log", "ssm_dt.bias": "mixer.dt_bias"}
    own = GgufNames(modules, {"output_norm": "norm_f"}, layers="h")
    assert hf_name("blk.3.shortconv.conv.weight") == "blk.3.shortconv.conv.weight"
    assert hf_name("blk.3.shortconv.conv.weight", own) == "h.3.conv.conv.weight"
    assert hf_name("blk.3.attn_q.bias", own) == "h.3.self_attn.q_proj.bias"
    assert hf_name("blk.3.ssm_a", own) == "h.3.mixer.A_log"
    assert hf_name("blk.3.ssm_dt.bias", own) == "h.3.mixer.dt_bias"
    assert hf_name("output_norm.bias", own) == "norm_f.bias"
    assert hf_name("output.weight", own) == "lm_head.weight"


def write(path: Path, kind: str) -> GgufParts:
    writer = gguf.GGUFWriter(path, "llama")
    type = gguf.GGMLQuantizationType[kind]
    nbytes = 256 // gguf.GGML_QUANT_SIZES[type][0] * gguf.GGML_QUANT_SIZES[type][1]
    stored = np.zeros((2, nbytes), np.uint8) if kind == "Q8_1" else gguf.quantize(np.ones((2, 256), np.float32), type)
    writer.add_tensor("output.weight", stored, raw_dtype=type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GgufParts(path)


def test_tensors_by_their_new_names(tmp_path: Path) -> None:
    file = write(tmp_path / "model.gguf", "F16")
    tensors = GgufTensors(file)
    assert tensors.names == ("lm_head.weight",)
    assert tensors.paths == (tmp_path / "model.gguf",)
    assert tensors.info("lm_head.weight") == file.info("output.weight")
    assert np.shares_memory(tensors.array("lm_head.weight"), file.array("output.weight"))
    assert tensors.total_bytes == 1024
    with pytest.raises(CheckpointError, match=r"no tensor 'output\.weight'"):
        tensors.info("output.weight")


def test_unsupported_tensors_are_refused_at_open(tmp_path: Path) -> None:
    file = write(tmp_path / "model.gguf", "Q8_1")
    with pytest.raises(CheckpointError, match="Q8_1"):
        GgufTensors(file)
