"""GGUF files written with the `gguf` library from model directories, as llama.cpp's converter writes them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import safetensors.torch
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

__all__ = ["add_tensors", "add_tokenizer", "interleaved", "random_blocks", "with_stacked_experts", "write_gguf"]

_TYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


def write_gguf(
    directory: Path,
    path: Path,
    *,
    arch: str = "qwen2",
    without: tuple[str, ...] = (),
    quantised: Mapping[str, str] | None = None,
    more: Callable[[gguf.GGUFWriter], None] = lambda _: None,
) -> Path:
    """Write a model directory as one file; `without` some keys, with tensors `quantised`, and with `more` keys."""
    config = json.loads((directory / "config.json").read_text())
    writer = gguf.GGUFWriter(path, arch)
    add_config(writer, config)
    add_tokenizer(
        writer, directory, config["vocab_size"], pre={"llama": "llama-bpe", "olmoe": "olmo"}.get(arch, "qwen2")
    )
    add_tensors(writer, directory, arch, quantised or {})
    more(writer)
    for key in without:
        del writer.kv_data[0][key]
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_config(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    rope = config.get("rope_parameters") or {"rope_theta": config.get("rope_theta", 10000.0)}
    writer.add_rope_freq_base(rope["rope_theta"])
    if config.get("head_dim"):
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    num_experts = config.get("num_experts") or config.get("num_local_experts")
    if num_experts:
        writer.add_expert_count(num_experts)
        writer.add_expert_used_count(config["num_experts_per_tok"])
    kind = rope.get("rope_type", "default")
    if kind == "llama3":
        writer.add_tensor("rope_freqs.weight", rope_factors(rope, config))
    elif kind != "default":
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(rope["factor"])
    if kind == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])


def rope_factors(rope: Mapping[str, Any], config: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """By what the converter says that Llama 3.1 divides the frequency of each pair, as transformers computes it."""
    rotated = transformers.LlamaConfig(**{**config, "rope_parameters": dict(rope)})
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](rotated, "cpu")
    head_dim = config["head_dim"]
    plain = rope["rope_theta"] ** -(torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    return np.asarray(plain / scaled)


def interleaved(values: np.ndarray[Any, Any], num_heads: int) -> np.ndarray[Any, Any]:
    """Rows as the converter stores a projection of Llama's: those that are rotated together side by side."""
    halves = values.reshape(num_heads, 2, -1, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)


def add_tokenizer(writer: gguf.GGUFWriter, directory: Path, vocab_size: int, pre: str = "qwen2") -> None:
    """What tokenizer.json and tokenizer_config.json say; ids without a token are padding, which has its own type."""
    state = json.loads((directory / "tokenizer.json").read_text())
    ids = state["model"]["vocab"] | {added["content"]: added["id"] for added in state["added_tokens"]}
    num_tokens = max(vocab_size, *(token_id + 1 for token_id in ids.values()))
    tokens = [f"[PAD{token_id}]" for token_id in range(num_tokens)]
    types = [gguf.TokenType.UNUSED] * num_tokens
    for token, token_id in ids.items():
        tokens[token_id], types[token_id] = token, gguf.TokenType.NORMAL
    for added in state["added_tokens"]:
        types[added["id"]] = gguf.TokenType.CONTROL if added["special"] else gguf.TokenType.USER_DEFINED
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    merges = state["model"]["merges"]
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    config = json.loads((directory / "tokenizer_config.json").read_text())
    writer.add_eos_token_id(ids[config["eos_token"]])
    writer.add_pad_token_id(ids[config["pad_token"]])
    writer.add_chat_template(config["chat_template"])


def add_tensors(writer: gguf.GGUFWriter, directory: Path, arch: str, quantised: Mapping[str, str]) -> None:
    """Matrices in the type that they have, vectors in F32."""
    config = json.loads((directory / "config.json").read_text())
    kind = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names = gguf.get_tensor_name_map(kind, config["num_hidden_layers"])
    for hf_name, tensor in with_stacked_experts(safetensors.torch.load_file(directory / "model.safetensors")).items():
        name = names.get_name(hf_name, try_suffixes=(".weight", ".bias"))
        assert name is not None
        values: np.ndarray[Any, Any] = tensor.float().numpy()
        if hf_name.endswith("shared_expert_gate.weight"):
            values = values[0]
        if arch == "llama" and ("q_proj" in hf_name or "k_proj" in hf_name):
            heads = "num_attention_heads" if "q_proj" in hf_name else "num_key_value_heads"
            values = interleaved(values, config[heads])
        type_name = quantised.get(name, "F32" if values.ndim == 1 else _TYPES[tensor.dtype])
        type = gguf.GGMLQuantizationType[type_name]
        matrix = values.reshape(-1, values.shape[-1])
        stored = random_blocks(type, matrix) if type_name.endswith(("_K", "Q8_1")) else gguf.quantize(matrix, type)
        writer.add_tensor(name, stored.reshape(*values.shape[:-1], -1), raw_dtype=type)


_EXPERT = re.compile(r"(model\.layers\.\d+\.)(?:mlp|block_sparse_moe)\.experts\.(\d+)\.(\w+)\.weight")


def with_stacked_experts(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors with those of experts as one tensor [E, N, K] per projection, by the names that the converter makes."""
    stacks: dict[str, dict[int, torch.Tensor]] = {}
    others: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        found = _EXPERT.fullmatch(name)
        if found is None:
            others[name] = tensor
            continue
        projection = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}.get(found[3], found[3])
        stacks.setdefault(f"{found[1]}mlp.experts.{projection}.weight", {})[int(found[2])] = tensor
    return others | {name: torch.stack([stack[expert] for expert in sorted(stack)]) for name, stack in stacks.items()}


def random_blocks(type: gguf.GGMLQuantizationType, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Blocks of a type that the library cannot quantise to: not the matrix given, but one of its size."""
    block, nbytes = gguf.GGML_QUANT_SIZES[type]
    rows, columns = values.shape
    rng = np.random.default_rng(columns)
    blocks = rng.integers(0, 256, (rows * columns // block, nbytes), np.uint8)
    deviation = float(values.std())
    if type.name == "Q8_1":  # which is not read
        return blocks.reshape(rows, -1)
    if type.name == "Q6_K":
        blocks[:, 208:] = np.array([deviation / 37 / 18], np.float16).view(np.uint8)
        blocks[:, 192:208] = rng.integers(-64, 64, (len(blocks), 16), np.int8).view(np.uint8)
    else:  # the offsets' multiples are the scales', so that the middle of the codes is zero
        middle = {"Q4_K": 7.5, "Q5_K": 15.5}[type.name]
        scale = deviation / 37 / middle * 1.7
        blocks[:, :4] = np.array([scale, scale * middle], np.float16).view(np.uint8)
        blocks[:, 8:12] = blocks[:, 4:8]
        blocks[:, 12:16] = (blocks[:, 12:16] & 15) * 17
    return blocks.reshape(rows, -1)
