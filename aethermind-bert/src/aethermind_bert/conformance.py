"""Test models of this family for the conformance kit, compared with transformers."""

from __future__ import annotations

from aethermind.testing.families import variations

__all__ = ["CASES"]

CASES = variations(
    "BertModel",
    {
        "bert": {},
        "gelu_new": {"hidden_act": "gelu_new", "num_attention_heads": 2},
        "head_dim_3": {"num_attention_heads": 16},
    },
    base={
        "vocab_size": 131,
        "hidden_size": 48,
        "intermediate_size": 70,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 32,
    },
)
