"""Small valid files of each format for the fuzzer to start from, with a bit of everything that the formats know."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import gguf
import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

__all__ = ["write_seeds"]

_GPT2_TOKENS = [chr(c) for c in (*range(33, 127), *range(161, 173), *range(174, 256))]


def write_seeds(target: str, directory: Path) -> list[Path]:
    """Write the seeds of a target; their paths."""
    return _safetensors(directory) if target == "safetensors" else _gguf(directory)


def _safetensors(directory: Path) -> list[Path]:
    rng = np.random.default_rng(0)
    kinds = (np.float32, np.float16, ml_dtypes.bfloat16, np.float64, np.int8, np.int64, np.bool_)
    tensors = {f"layers.{i}.weight": rng.standard_normal((2, i)).astype(kind) for i, kind in enumerate(kinds)}
    paths = [directory / name for name in ("many.safetensors", "one.safetensors", "none.safetensors")]
    save_file(tensors, paths[0], metadata={"format": "pt"})
    save_file({"a": np.zeros((), np.float32)}, paths[1])
    header = json.dumps({"__metadata__": {"x": "y"}, "w": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}})
    paths[2].write_bytes(len(header).to_bytes(8, "little") + header.encode())
    return paths


def _gguf(directory: Path) -> list[Path]:
    fill_of_name = {"model": _model, "vocab": _vocabulary, "values": _values, "empty": lambda _: None}
    for name, fill in fill_of_name.items():
        _write(directory / f"{name}.gguf", fill)
    return [directory / f"{name}.gguf" for name in fill_of_name]


def _write(path: Path, fill: Callable[[gguf.GGUFWriter], None]) -> None:
    writer = gguf.GGUFWriter(path, "qwen2")
    fill(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


_HIDDEN, _VOCAB = 32, 8


def _vocabulary(writer: gguf.GGUFWriter) -> None:
    """A model's metadata and tokenizer without its tensors."""
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(_HIDDEN)
    writer.add_feed_forward_length(_HIDDEN)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([*_GPT2_TOKENS[: _VOCAB - 1], "<|im_end|>"])
    writer.add_token_types([gguf.TokenType.NORMAL] * (_VOCAB - 1) + [gguf.TokenType.CONTROL])
    writer.add_token_merges(['! "'])
    writer.add_eos_token_id(_VOCAB - 1)
    writer.add_chat_template("{{ messages[0].content }}")
    writer.add_float32("general.sampling.temp", 0.5)


def _model(writer: gguf.GGUFWriter) -> None:
    """A model of one layer whose matrices are in several types."""
    _vocabulary(writer)
    values = np.random.default_rng(0).standard_normal((_HIDDEN, _HIDDEN)).astype(np.float32)
    writer.add_tensor("token_embd.weight", values[:_VOCAB].astype(np.float16))
    writer.add_tensor("output_norm.weight", values[0])
    writer.add_tensor("blk.0.attn_norm.weight", values[0])
    writer.add_tensor("blk.0.ffn_norm.weight", values[0])
    for name, kind in (("attn_q", "Q8_0"), ("attn_k", "Q4_0"), ("attn_v", "Q4_1"), ("ffn_up", "Q5_0")):
        type = gguf.GGMLQuantizationType[kind]
        writer.add_tensor(f"blk.0.{name}.weight", gguf.quants.quantize(values, type), raw_dtype=type)
    for kind in ("Q4_K", "Q6_K"):
        type = gguf.GGMLQuantizationType[kind]
        num_bytes = gguf.GGML_QUANT_SIZES[type][1]
        writer.add_tensor(f"extra.{kind}", np.full((2, num_bytes), 1, np.uint8), raw_dtype=type)


def _values(writer: gguf.GGUFWriter) -> None:
    """Metadata of every type, and an alignment of its own."""
    writer.add_custom_alignment(64)
    for name, value in (("uint8", 1), ("int8", -1), ("uint16", 2), ("int16", -2), ("uint32", 3), ("int32", -3)):
        getattr(writer, f"add_{name}")(f"a.{name}", value)
    writer.add_uint64("a.uint64", 2**63)
    writer.add_int64("a.int64", -(2**63))
    writer.add_float64("a.float64", 0.5)
    writer.add_bool("a.bool", True)
    writer.add_string("a.string", "é")
    writer.add_array("a.numbers", [1, 2, 3])
    writer.add_array("a.strings", ["a", "", "é"])
    writer.add_tensor("w", np.zeros((2, 3), np.float32))
    writer.add_tensor("i", np.zeros(5, np.int8))
