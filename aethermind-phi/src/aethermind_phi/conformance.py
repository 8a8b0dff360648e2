"""Test models of this family for the conformance kit, compared with transformers."""

from __future__ import annotations

from aethermind.testing.families import SMALL, ModelCase, variations

__all__ = ["CASES"]

_BASE = {**SMALL, "pad_token_id": None}
_PARTIAL = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.375}
_FACTORS = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0, 1.1, 1.2, 1.4, 1.7, 2.0],
    "long_factor": [1.0, 1.5, 2.5, 4.0, 6.0, 9.0],
}


def _longrope(name: str, original_context: int) -> ModelCase:
    """Return a case with LongRoPE: 256 positions, `original_context` before scaling, and max_model_len 128."""
    sizes = {"head_dim": 16, "hidden_size": 64, "max_position_embeddings": 256}
    rope = {**_FACTORS, "original_max_position_embeddings": original_context}
    config = {**_BASE, **sizes, "original_max_position_embeddings": original_context, "rope_parameters": rope}
    return ModelCase(name, "Phi3ForCausalLM", config, max_model_len=128)


CASES = (
    *variations(
        "Phi3ForCausalLM",
        {
            "phi3": {},
            "phi3_window_all_kv_heads": {"sliding_window": 7, "num_key_value_heads": 4},
            "phi4_mini_partial_tied": {
                "tie_word_embeddings": True,
                "hidden_size": 64,
                "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.75},
            },
        },
        base=_BASE,
    ),
    *variations(
        "PhiForCausalLM",
        {
            "phi2": {"head_dim": 16, "hidden_size": 64, "rope_parameters": _PARTIAL},
            "phi2_kv_heads_tied": {"num_key_value_heads": 2, "tie_word_embeddings": True},
        },
        base={**_BASE, "num_key_value_heads": 4},
    ),
    _longrope("phi3_longrope_short", 128),
    _longrope("phi3_longrope_long", 64),
)
