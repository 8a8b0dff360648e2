"""Test models of these families for the conformance kit, compared with transformers."""

from __future__ import annotations

from typing import Any

from aethermind.testing.families import SMALL, ModelCase, variations

__all__ = ["CASES"]

_BASE = {
    **SMALL,
    "num_hidden_layers": 4,
    "head_dim": 16,
    "query_pre_attn_scalar": 16,
    "sliding_window": 8,
    "tie_word_embeddings": True,
    "pad_token_id": 0,
}
_LINEAR = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
}


def _as_transformers_4_config(config: dict[str, Any]) -> dict[str, Any]:
    """Rewrite a config.json as published: bases of frequencies beside each other, and a pattern of layers."""
    rest = {name: value for name, value in config.items() if name not in ("rope_parameters", "layer_types", "dtype")}
    full, local = (dict(config["rope_parameters"][kind]) for kind in ("full_attention", "sliding_attention"))
    theta, kind = full.pop("rope_theta"), full.pop("rope_type")
    return {
        **rest,
        "rope_theta": theta,
        "rope_local_base_freq": local["rope_theta"],
        "rope_scaling": None if kind == "default" else {"rope_type": kind, **full},
        "sliding_window_pattern": 3,
        "torch_dtype": config["dtype"],
    }


_VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
_LAYER_TYPES = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]

CASES = (
    *variations(
        "Gemma2ForCausalLM",
        {
            "gemma2": {},
            "gemma2_low_caps": {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
            "gemma2_untied": {"tie_word_embeddings": False, "query_pre_attn_scalar": 40, "num_key_value_heads": 1},
            "gemma2_no_caps": {"attn_logit_softcapping": None, "final_logit_softcapping": None},
        },
        base=_BASE,
        allows_twice_reference_error=True,
    ),
    *variations(
        "Gemma3ForCausalLM",
        {
            "gemma3": {"num_hidden_layers": 7},
            "gemma3_one_kv_head": {"num_key_value_heads": 1, "head_dim": 64, "query_pre_attn_scalar": 64},
            "gemma3_scaled_rope": {"layer_types": _LAYER_TYPES, "rope_parameters": _LINEAR},
            "gemma3_soft_caps": {"final_logit_softcapping": 5.0, "layer_types": _LAYER_TYPES},
        },
        base=_BASE,
        allows_twice_reference_error=True,
    ),
    ModelCase(
        "gemma3_as_published",
        "Gemma3ForCausalLM",
        {**_BASE, "layer_types": _LAYER_TYPES, "rope_parameters": _LINEAR},
        rewrite_config=_as_transformers_4_config,
        allows_twice_reference_error=True,
    ),
    *variations(
        "Gemma3ForConditionalGeneration",
        {"gemma3_with_images": {}},
        base={"text_config": _BASE, "vision_config": _VISION, "mm_tokens_per_image": 4, "image_token_id": 130},
        allows_twice_reference_error=True,
    ),
)
