"""Test models of these families for the conformance kit, compared with transformers."""

from __future__ import annotations

from typing import Any

from aethermind.testing.families import SMALL, ModelCase, variations

__all__ = ["CASES"]

_LLAMA3_ROPE = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_SCALED_ROPE = {**_LLAMA3_ROPE, "rope_theta": 500000.0, "original_max_position_embeddings": 32}


def _without_layer_types(config: dict[str, Any]) -> dict[str, Any]:
    """Mistral 7B v0.1 has sliding_window without layer_types."""
    return {name: value for name, value in config.items() if name != "layer_types"}


CASES = (
    *variations(
        "LlamaForCausalLM",
        {
            "llama": {},
            "llama_tied": {"tie_word_embeddings": True, "num_key_value_heads": 4},
            "llama_attention_bias": {"attention_bias": True},
            "llama_3_1": {"rope_parameters": _SCALED_ROPE, "head_dim": 64},
        },
    ),
    *variations("MistralForCausalLM", {"mistral_wide": {"sliding_window": None, "head_dim": 16}}),
    ModelCase("mistral", "MistralForCausalLM", {**SMALL, "sliding_window": 7}, rewrite_config=_without_layer_types),
    *variations(
        "MixtralForCausalLM",
        {
            "mixtral": {},
            "mixtral_odd_width_sliding": {"intermediate_size": 15, "sliding_window": 7, "num_experts_per_tok": 3},
            "mixtral_tied_one_expert": {"tie_word_embeddings": True, "num_experts_per_tok": 1, "head_dim": 16},
        },
        base={**SMALL, "num_local_experts": 8, "intermediate_size": 32},
    ),
    *variations(
        "OlmoeForCausalLM",
        {
            "olmoe": {},
            "olmoe_renormalized_odd_width": {"norm_topk_prob": True, "intermediate_size": 13},
            "olmoe_bias_all_kv_heads": {"attention_bias": True, "num_key_value_heads": 4, "tie_word_embeddings": True},
        },
        base={**SMALL, "num_experts": 10, "num_experts_per_tok": 4, "intermediate_size": 16},
    ),
)
