"""A model with the demo model's tokenizer and random weights, at a few milliseconds of NumPy per token."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

__all__ = ["write_small_model"]

HIDDEN, INTERMEDIATE, HEAD_DIM, NUM_HEADS, NUM_KV_HEADS, NUM_LAYERS = 32, 48, 8, 4, 2, 2


def write_small_model(demo: Path, directory: Path) -> Path:
    """Write the model to a new directory, derived from the demo model."""
    shutil.copytree(demo, directory, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((demo / "config.json").read_text())
    config |= {
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_attention_heads": NUM_HEADS,
        "num_key_value_heads": NUM_KV_HEADS,
        "num_hidden_layers": NUM_LAYERS,
        "max_window_layers": NUM_LAYERS,
        "tie_word_embeddings": True,
    }
    (directory / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(0)
    shapes = _shapes(config["vocab_size"])
    weights = {name: rng.normal(0, shape[-1] ** -0.5, shape).astype(np.float32) for name, shape in shapes.items()}
    save_file(weights, directory / "model.safetensors")
    return directory


def _shapes(vocab_size: int) -> dict[str, tuple[int, ...]]:
    queries, keys = NUM_HEADS * HEAD_DIM, NUM_KV_HEADS * HEAD_DIM
    of_layer = {
        "input_layernorm.weight": (HIDDEN,),
        "post_attention_layernorm.weight": (HIDDEN,),
        "self_attn.q_proj.weight": (queries, HIDDEN),
        "self_attn.q_proj.bias": (queries,),
        "self_attn.k_proj.weight": (keys, HIDDEN),
        "self_attn.k_proj.bias": (keys,),
        "self_attn.v_proj.weight": (keys, HIDDEN),
        "self_attn.v_proj.bias": (keys,),
        "self_attn.o_proj.weight": (HIDDEN, queries),
        "mlp.gate_proj.weight": (INTERMEDIATE, HIDDEN),
        "mlp.up_proj.weight": (INTERMEDIATE, HIDDEN),
        "mlp.down_proj.weight": (HIDDEN, INTERMEDIATE),
    }
    layers = {f"model.layers.{layer}.{name}": shape for layer in range(NUM_LAYERS) for name, shape in of_layer.items()}
    return {"model.embed_tokens.weight": (vocab_size, HIDDEN), "model.norm.weight": (HIDDEN,), **layers}
