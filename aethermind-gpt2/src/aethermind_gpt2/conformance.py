"""Test models of this family for the conformance kit, compared with transformers."""

from __future__ import annotations

from aethermind.testing.families import variations

__all__ = ["CASES"]

CASES = variations(
    "GPT2LMHeadModel",
    {
        "gelu_new": {},
        "gelu_wide": {"activation_function": "gelu", "n_inner": 70},
        "untied_unscaled_head_dim_5": {
            "n_embd": 20,
            "tie_word_embeddings": False,
            "scale_attn_weights": False,
        },
    },
    base={"vocab_size": 131, "n_positions": 96, "n_embd": 48, "n_layer": 2, "n_head": 4, "eos_token_id": 2},
)
