"""Test models of these families for the conformance kit, compared with transformers."""

from __future__ import annotations

from functools import partial
from typing import Any

from aethermind.testing.families import SMALL, ModelCase, variations

__all__ = ["CASES"]

_LLAMA3_ROPE = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_SCALED_ROPE = {**_LLAMA3_ROPE, "rope_theta": 500000.0, "original_max_position_embeddings": 32}


def _without_layer_types(config: dict[str, Any]) -> dict[str, Any]:
    """Remove layer_types from a config.json: Mistral 7B v0.1 has sliding_window without layer_types."""
    return {name: value for name, value in config.items() if name != "layer_types"}


_TIED = {"tie_word_embeddings": True, "num_key_value_heads": 4}
_GRANITE = {
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.1,
    "logits_scaling": 8.0,
}

_unpadded = partial(variations, base={**SMALL, "pad_token_id": None})
"""`variations` without a padding token: the default of some families is larger than the test models' vocabulary."""

_OLMO3_ROPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": {
        "rope_type": "yarn",
        "rope_theta": 500000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 32,
    },
}

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
            "olmoe_clipped": {"clip_qkv": 0.75},
            "olmoe_bias_all_kv_heads": {"attention_bias": True, "num_key_value_heads": 4, "tie_word_embeddings": True},
        },
        base={**SMALL, "num_experts": 10, "num_experts_per_tok": 4, "intermediate_size": 16},
    ),
    *_unpadded(
        "SmolLM3ForCausalLM",
        {
            "smollm3": {"num_hidden_layers": 4},
            "smollm3_bias_windows": {
                "no_rope_layers": [0, 1, 1],
                "attention_bias": True,
                "num_hidden_layers": 3,
                "use_sliding_window": True,
                "sliding_window": 7,
            },
        },
    ),
    *_unpadded("Olmo2ForCausalLM", {"olmo2": {}, "olmo2_bias_tied": {"attention_bias": True, **_TIED}}),
    *_unpadded(
        "Olmo3ForCausalLM",
        {
            "olmo3": {"num_hidden_layers": 4, "sliding_window": 7},
            "olmo3_yarn": {"num_hidden_layers": 4, "sliding_window": 9, "rope_parameters": _OLMO3_ROPE},
        },
    ),
    *_unpadded(
        "Ernie4_5ForCausalLM", {"ernie4_5": {"head_dim": 8}, "ernie4_5_wide": {"head_dim": 64, "use_bias": False}}
    ),
    *_unpadded(
        "StableLmForCausalLM",
        {
            "stablelm": {"hidden_size": 64},
            "stablelm_parallel_bias": {
                "use_parallel_residual": True,
                "use_qkv_bias": True,
                "partial_rotary_factor": 0.5,
            },
            "stablelm_whole_heads": {"partial_rotary_factor": 1.0, "num_key_value_heads": 4},
        },
    ),
    *_unpadded(
        "Starcoder2ForCausalLM", {"starcoder2": {}, "starcoder2_plain": {"use_bias": False, "sliding_window": 7}}
    ),
    *_unpadded(
        "GraniteForCausalLM",
        {
            "granite": _GRANITE,
            "granite_bias_tied": {**_GRANITE, "attention_bias": True, **_TIED},
        },
    ),
    *_unpadded(
        "CohereForCausalLM",
        {
            "cohere": {"tie_word_embeddings": True, "logit_scale": 2.0},
            "cohere_bias": {"attention_bias": True, "logit_scale": 0.5, **_TIED},
        },
    ),
    *_unpadded("Cohere2ForCausalLM", {"cohere2": {"num_hidden_layers": 4, "sliding_window": 7, **_TIED}}),
)
