"""The shapes of Qwen3-30B-A3B (config.json of Qwen/Qwen3-30B-A3B), in 12 of its 48 layers: for random weights.

All layers are alike, so times of a layer hold for the whole model; 61 GB would take too long to load.
"""

from __future__ import annotations

from typing import Any

__all__ = ["CONFIG", "SMALL_CONFIG"]

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "num_hidden_layers": 12,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}
SMALL_CONFIG = CONFIG | {
    "hidden_size": 256,
    "moe_intermediate_size": 64,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 1024,
    "max_position_embeddings": 512,
}
"""For a rehearsal."""
