"""Small valid files of each format for the fuzzer to start from, with a bit of everything that the formats know."""

from __future__ import annotations

import json
from base64 import b64encode
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
    write = {"safetensors": _safetensors, "quantised": _quantised, "tiktoken": _tiktoken}.get(target, _gguf)
    return write(directory)


def _tiktoken(directory: Path) -> list[Path]:
    path = directory / "small.tiktoken"
    tokens = [*(bytes([byte]) for byte in range(256)), b"th", b"the", b" the"]
    path.write_bytes(b"".join(b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens)))
    return [path]


def _quantised(directory: Path) -> list[Path]:
    """One file for each way in which matrices [4, 64] are quantised, or [32, 64] where codes fill words."""
    rng = np.random.default_rng(0)

    def words(*shape: int) -> np.ndarray:
        return rng.integers(0, 256, (*shape[:-1], 4 * shape[-1]), np.uint8).view(np.int32)

    def some(dtype: type, *shape: int) -> np.ndarray:
        return (rng.uniform(0.1, 1, shape) * 0.1).astype(dtype)

    half, float8, byte = np.float16, ml_dtypes.float8_e4m3fn, np.uint8
    state = np.frombuffer(b'{"shape": [4, 64], "blocksize": 64, "nested_blocksize": 4, "nested_offset": 0.1}', byte)
    packed = rng.integers(0, 256, (4, 32), byte)
    files: dict[str, dict[str, np.ndarray]] = {
        "gptq": {"qweight": words(8, 32), "qzeros": words(2, 4), "scales": some(half, 2, 32),
                 "g_idx": np.arange(64, dtype=np.int32) // 32},
        "gemm": {"qweight": words(64, 4), "qzeros": words(2, 4), "scales": some(half, 2, 32)},
        "gemv": {"qweight": words(4, 8), "qzeros": words(4, 4), "scales": some(half, 4, 32)},
        "gemv_fast": {"qweight": words(1, 32).view(np.int16), "qzeros": -some(half, 32, 4),
                      "scales": some(half, 32, 4)},
        "compressed": {"weight_packed": words(4, 8), "weight_scale": some(half, 4, 2),
                       "weight_zero_point": words(1, 2), "weight_shape": np.array([4, 64]),
                       "weight_g_idx": np.arange(64, dtype=np.int32)[::-1] // 32},
        "modelopt": {"weight": packed, "weight_scale": some(float8, 4, 4), "weight_scale_2": some(np.float32)},
        "fp8": {"weight": some(float8, 4, 64), "weight_scale_inv": some(np.float32, 2, 2)},
        "bitsandbytes": {"weight": packed.reshape(-1, 1), "weight.absmax": packed[0, :4],
                         "weight.quant_map": some(np.float32, 16), "weight.nested_absmax": some(np.float32, 1),
                         "weight.nested_quant_map": some(np.float32, 256),
                         "weight.quant_state.bitsandbytes__nf4": state},
        "hqq": {"W_q": packed.reshape(4, 32), "scale": some(half, 8), "zero": some(half, 8),
                "shape": np.array([4, 64]), "axis": np.array(1, np.int32), "group_size": np.array(32, np.int32),
                "nbits": np.array(4, np.int32), "packing": np.frombuffer(b"4bit_u8", byte)},
        "torchao": {"_weight_qdata": packed.view(np.int8), "_weight_scale": some(half, 4, 1),
                    "_weight_zero_point": packed[:, :1].view(np.int8)},
        "mxfp4": {"w_blocks": packed.reshape(1, 4, 2, 16), "w_scales": packed[:, :2].reshape(1, 4, 2) % 200},
    }  # fmt: skip
    for kind, tensors in files.items():
        named = {f"{kind}/m.{name}": np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
        save_file(named, directory / f"{kind}.safetensors")
    return [directory / f"{kind}.safetensors" for kind in files]


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
    for kind in ("Q4_K", "Q6_K", "IQ2_XXS", "IQ1_M", "IQ3_S", "TQ1_0", "NVFP4"):
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
