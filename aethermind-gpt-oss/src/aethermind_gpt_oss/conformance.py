"""Test models of this family for the conformance kit, compared with transformers."""

from __future__ import annotations

from aethermind.testing.families import SMALL, variations

__all__ = ["CASES"]

_BASE = {
    **SMALL,
    "num_hidden_layers": 4,
    "head_dim": 16,
    "sliding_window": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 4,
    "intermediate_size": 32,
    "swiglu_limit": 1.5,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 150000.0,
        "factor": 4.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 32,
    },
}

CASES = variations(
    "GptOssForCausalLM",
    {
        "gpt_oss": {},
        "gpt_oss_odd_width_one_kv_head": {
            "head_dim": 64,
            "num_key_value_heads": 1,
            "intermediate_size": 15,
            "num_experts_per_tok": 2,
            "tie_word_embeddings": True,
        },
    },
    base=_BASE,
)
