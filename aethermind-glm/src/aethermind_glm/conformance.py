"""Test models of these families for the conformance kit, compared with transformers."""

from __future__ import annotations

from aethermind.testing.families import SMALL, variations

__all__ = ["CASES"]

_BASE = {**SMALL, "pad_token_id": None, "head_dim": 16}
_WHOLE = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0}

CASES = (
    *variations(
        "GlmForCausalLM",
        {"glm": {}, "glm_no_bias_tied": {"attention_bias": False, "tie_word_embeddings": True}},
        base=_BASE,
    ),
    *variations(
        "Glm4ForCausalLM",
        {"glm4": {}, "glm4_whole_heads_no_bias": {"attention_bias": False, "rope_parameters": _WHOLE}},
        base=_BASE,
    ),
)
