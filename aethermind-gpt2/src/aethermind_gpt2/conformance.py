"""Test models of this family for the conformance kit, compared with transformers."""

from __future__ import annotations

from aethermind.testing.families import variations

__all__ = ["CASES"]

_GPT2 = variations(
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
_SMALL = {"vocab_size": 131, "hidden_size": 32, "pad_token_id": None, "eos_token_id": 2}
_MPT = {"vocab_size": 131, "d_model": 32, "n_layers": 2, "max_seq_len": 128, "eos_token_id": 2}

CASES = (
    *_GPT2,
    *variations(
        "BloomForCausalLM",
        {
            "bloom": {"n_head": 4},
            "bloom_six_heads_untied": {"n_head": 6, "hidden_size": 48, "tie_word_embeddings": False},
        },
        base={**_SMALL, "n_layer": 2, "seq_length": 128},
    ),
    *variations(
        "MptForCausalLM",
        {
            "mpt": {"n_heads": 4},
            "mpt_clipped": {"n_heads": 4, "attn_config": {"clip_qkv": 0.75}},
            "mpt_six_heads_scaled": {
                "n_heads": 6,
                "d_model": 48,
                "attn_config": {"softmax_scale": 0.2},
            },
        },
        base=_MPT,
    ),
    *variations(
        "GPTNeoXForCausalLM",
        {
            "gpt_neox": {},
            "gpt_neox_sequential_tied": {
                "use_parallel_residual": False,
                "attention_bias": False,
                "hidden_act": "gelu_fast",
                "tie_word_embeddings": True,
                "hidden_size": 64,
                "rope_parameters": {"rope_type": "default", "rope_theta": 30000.0, "partial_rotary_factor": 0.5},
            },
        },
        base={
            **_SMALL,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 48,
            "max_position_embeddings": 128,
        },
    ),
)
