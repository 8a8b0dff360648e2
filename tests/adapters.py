"""LoRA adapters for tests: random ones, written as PEFT writes them, and what they make of a model's weights."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

__all__ = ["PROJECTIONS", "adapt_weights", "linear_shapes", "write_adapter"]

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def linear_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """The linear modules of a Llama or Qwen model by what config.json says, [N, K] by name."""
    hidden, inner, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    head_dim = config.get("head_dim") or hidden // heads
    width, kv_width = heads * head_dim, config.get("num_key_value_heads", heads) * head_dim
    attention = {"q_proj": (width, hidden), "k_proj": (kv_width, hidden), "v_proj": (kv_width, hidden)}
    attention["o_proj"] = (hidden, width)
    mlp = {"gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}
    return {
        f"model.layers.{layer}.{block}.{name}": shape
        for layer in range(config["num_hidden_layers"])
        for block, modules in (("self_attn", attention), ("mlp", mlp))
        for name, shape in modules.items()
    }


def write_adapter(
    directory: Path,
    shapes: Mapping[str, tuple[int, int]],
    *,
    seed: int = 0,
    rank: int = 4,
    targets: Sequence[str] = PROJECTIONS,
    size: float = 1.0,
    tensors: Mapping[str, Any] | None = None,
    dtype: Any = np.float32,
    **config: Any,
) -> Path:
    """Write an adapter whose updates are about `size` times as large as usual weights; returns the directory.

    `config` are further fields of its configuration, `tensors` further or other tensors.
    """
    rng = np.random.default_rng(seed)
    described = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": list(targets),
        "bias": "none",
        **config,
    }
    arrays: dict[str, Any] = {}
    for module, (num_outputs, num_inputs) in shapes.items():
        if module.rpartition(".")[2] in targets:
            down = rng.standard_normal((rank, num_inputs)) / np.sqrt(num_inputs)
            up = rng.standard_normal((num_outputs, rank)) * size / np.sqrt(rank)
            arrays[f"base_model.model.{module}.lora_A.weight"] = down.astype(dtype)
            arrays[f"base_model.model.{module}.lora_B.weight"] = up.astype(dtype)
    arrays.update(tensors or {})
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "adapter_config.json").write_text(json.dumps(described))
    save_file(
        {name: array for name, array in arrays.items() if array is not None}, directory / "adapter_model.safetensors"
    )
    return directory


def adapt_weights(
    weights: Mapping[str, Any], directory: Path, transposed: Collection[str] = frozenset()
) -> dict[str, Any]:
    """A model's weights with an adapter merged into them, in float64 on the way; `transposed` are stored [in, out]."""
    from safetensors.numpy import load_file

    config = json.loads((directory / "adapter_config.json").read_text())
    scale = config["lora_alpha"] / (config["r"] ** (0.5 if config.get("use_rslora") else 1))
    tensors = load_file(directory / "adapter_model.safetensors")
    merged = dict(weights)
    for name, down in tensors.items():
        if ".lora_A." in name:
            weight = name.removeprefix("base_model.model.").replace(".lora_A.", ".")
            up = tensors[name.replace("lora_A", "lora_B")]
            product = up.astype(np.float64) @ down.astype(np.float64) * scale
            product = product.T if weight in transposed else product
            merged[weight] = (merged[weight].astype(np.float64) + product).astype(merged[weight].dtype)
    return merged
