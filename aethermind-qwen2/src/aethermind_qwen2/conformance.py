"""Test models of these families for the conformance kit, compared with transformers."""

from __future__ import annotations

from typing import Any

from aethermind.testing.families import SMALL, ModelCase, variations

__all__ = ["CASES"]

_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 10000.0}
_DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
_WINDOWS = {"use_sliding_window": True, "sliding_window": 8, "num_hidden_layers": 3}


def _as_transformers_4_config(config: dict[str, Any]) -> dict[str, Any]:
    """Rewrite a config.json of transformers 5 with the field names of transformers 4."""
    other = {name: value for name, value in config.items() if name not in ("rope_parameters", "layer_types", "dtype")}
    scaling = {name: value for name, value in config["rope_parameters"].items() if name != "rope_theta"}
    rope_type = scaling.pop("rope_type")
    return {
        **other,
        "rope_theta": config["rope_parameters"]["rope_theta"],
        "rope_scaling": None if rope_type == "default" else {"type": rope_type, **scaling},
        "torch_dtype": config["dtype"],
    }


def _transformers_4_case(name: str, changes: dict[str, Any], max_model_len: int | None = None) -> ModelCase:
    config = {**SMALL, **changes}
    rewrite = _as_transformers_4_config
    return ModelCase(name, "Qwen2ForCausalLM", config, max_model_len=max_model_len, rewrite_config=rewrite)


_QWEN2 = variations(
    "Qwen2ForCausalLM",
    {
        "head_dim_8": {},
        "head_dim_64_one_kv_head": {
            "hidden_size": 56,
            "num_attention_heads": 7,
            "num_key_value_heads": 1,
            "head_dim": 64,
        },
        "seven_kv_heads_tied_odd_intermediate": {
            "hidden_size": 112,
            "intermediate_size": 77,
            "num_attention_heads": 14,
            "num_key_value_heads": 7,
            "tie_word_embeddings": True,
        },
        "head_dim_80": {
            "hidden_size": 160,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "intermediate_size": 130,
        },
        "sliding_by_layer_types": {
            **_WINDOWS,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
        "yarn": {"rope_parameters": _YARN, "head_dim": 64},
        "linear": {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 10000.0}},
        "dynamic_within": {"rope_parameters": _DYNAMIC},
    },
)
_TRANSFORMERS_4 = (
    _transformers_4_case("old_spelling", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    _transformers_4_case("sliding_by_max_window_layers", {**_WINDOWS, "max_window_layers": 1}),
    _transformers_4_case("yarn_old_spelling", {"rope_parameters": {**_YARN, "attention_factor": 1.3}}),
    _transformers_4_case(
        "dynamic_beyond", {"max_position_embeddings": 32, "rope_parameters": _DYNAMIC}, max_model_len=128
    ),
)
_SHARDED = ModelCase(
    "sharded_tied",
    "Qwen2ForCausalLM",
    {**SMALL, "tie_word_embeddings": True, "num_hidden_layers": 3},
    max_shard_size="12KB",
)
_QWEN3 = variations(
    "Qwen3ForCausalLM",
    {
        "qwen3_head_dim_128": {
            "hidden_size": 64,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 128,
        },
        "qwen3_head_dim_64_tied": {"hidden_size": 40, "head_dim": 64, "tie_word_embeddings": True},
        "qwen3_attention_bias": {"attention_bias": True, "head_dim": 16},
        "qwen3_sliding": {**_WINDOWS, "head_dim": 16, "max_window_layers": 2},
    },
)
_MIXTURE = {**SMALL, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_QWEN2_MOE = variations(
    "Qwen2MoeForCausalLM",
    {
        "qwen2_moe": {},
        "qwen2_moe_renormalized_odd_widths": {
            "norm_topk_prob": True,
            "moe_intermediate_size": 13,
            "shared_expert_intermediate_size": 21,
        },
        "qwen2_moe_20_experts_no_bias": {
            "num_experts": 20,
            "num_experts_per_tok": 8,
            "qkv_bias": False,
            "num_hidden_layers": 1,
        },
        "qwen2_moe_some_layers_dense": {"num_hidden_layers": 4, "decoder_sparse_step": 2, "mlp_only_layers": [1]},
    },
    base={**_MIXTURE, "shared_expert_intermediate_size": 32},
)
_QWEN3_MOE = variations(
    "Qwen3MoeForCausalLM",
    {
        "qwen3_moe": {},
        "qwen3_moe_not_renormalized_tied": {"norm_topk_prob": False, "tie_word_embeddings": True},
        "qwen3_moe_all_experts_odd_width": {"num_experts": 4, "num_experts_per_tok": 4, "moe_intermediate_size": 15},
        "qwen3_moe_one_expert_dense_first": {
            "num_experts_per_tok": 1,
            "mlp_only_layers": [0],
            "attention_bias": True,
        },
        "qwen3_moe_sliding": {"use_sliding_window": True, "sliding_window": 8},
    },
    base={**_MIXTURE, "head_dim": 16, "norm_topk_prob": True},
)
_HYBRID = {
    **SMALL,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "layer_types": ["linear_attention", "full_attention"],
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
}
_HYBRID_MIXTURE = {
    **_HYBRID,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 24,
}
_QWEN3_NEXT = variations(
    "Qwen3NextForCausalLM",
    {
        "qwen3_next": {},
        "qwen3_next_dense_first_biases": {
            "mlp_only_layers": [0],
            "attention_bias": True,
            "linear_num_key_heads": 4,
            "num_hidden_layers": 3,
            "layer_types": ["full_attention", "linear_attention", "linear_attention"],
        },
    },
    base=_HYBRID_MIXTURE,
    allows_twice_reference_error=True,
    has_float32_parts=True,
)
_VISION = {"hidden_size": 16, "intermediate_size": 16, "depth": 1, "num_heads": 2, "out_hidden_size": 32}
_MROPE = {"rope_parameters": {**_HYBRID["rope_parameters"], "mrope_section": [1, 1, 0]}}
"""M-RoPE, which has sections for time, rows and columns of images; for text it equals the usual rotary embedding."""
_QWEN3_5 = (
    *variations(
        "Qwen3_5ForCausalLM",
        {"qwen3_5": {}, "qwen3_5_tied": {"tie_word_embeddings": True}},
        base=_HYBRID,
        allows_twice_reference_error=True,
        has_float32_parts=True,
    ),
    *variations(
        "Qwen3_5MoeForCausalLM",
        {"qwen3_5_moe": {}},
        base=_HYBRID_MIXTURE,
        allows_twice_reference_error=True,
        has_float32_parts=True,
    ),
    *variations(
        "Qwen3_5ForConditionalGeneration",
        {"qwen3_5_with_images": {}},
        base={"text_config": {**_HYBRID, **_MROPE}, "vision_config": _VISION},
        allows_twice_reference_error=True,
        has_float32_parts=True,
    ),
    *variations(
        "Qwen3_5MoeForConditionalGeneration",
        {"qwen3_5_moe_with_images": {}},
        base={"text_config": {**_HYBRID_MIXTURE, **_MROPE}, "vision_config": _VISION},
        allows_twice_reference_error=True,
        has_float32_parts=True,
    ),
)
CASES = (*_QWEN2, *_TRANSFORMERS_4, _SHARDED, *_QWEN3, *_QWEN2_MOE, *_QWEN3_MOE, *_QWEN3_NEXT, *_QWEN3_5)
