"""Test models of these families for the conformance kit, compared with transformers."""

from __future__ import annotations

from aethermind.testing.families import SMALL, variations

__all__ = ["CASES"]

_MAMBA2 = {
    "vocab_size": 131,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "expand": 2,
    "num_heads": 8,
    "head_dim": 8,
    "state_size": 12,
    "n_groups": 2,
    "chunk_size": 16,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
}
_FALCON = {
    **SMALL,
    "mamba_d_ssm": 48,
    "mamba_n_heads": 6,
    "mamba_n_groups": 2,
    "mamba_d_state": 12,
    "mamba_chunk_size": 16,
    "mamba_rms_norm": True,
    "mamba_norm_before_gate": False,
}
_MULTIPLIERS = {
    "lm_head_multiplier": 0.5,
    "embedding_multiplier": 1.5,
    "key_multiplier": 0.7,
    "attention_in_multiplier": 0.8,
    "attention_out_multiplier": 0.9,
    "ssm_in_multiplier": 1.25,
    "ssm_out_multiplier": 0.6,
    "ssm_multipliers": [0.9, 1.1, 1.2, 0.8, 1.3],
    "mlp_multipliers": [0.85, 1.15],
}

CASES = (
    *variations(
        "Mamba2ForCausalLM",
        {
            "mamba2": {},
            "mamba2_tied_one_group": {"tie_word_embeddings": True, "n_groups": 1, "conv_kernel": 3},
            "mamba2_biases": {"use_bias": True, "use_conv_bias": False, "num_heads": 4, "head_dim": 16},
        },
        base=_MAMBA2,
    ),
    *variations(
        "FalconH1ForCausalLM",
        {
            "falcon_h1": _MULTIPLIERS,
            "falcon_h1_gated_only_tied": {"mamba_rms_norm": False, "tie_word_embeddings": True, "mamba_d_head": 8},
            "falcon_h1_norm_first_biases": {
                "mamba_norm_before_gate": True,
                "mamba_proj_bias": True,
                "projectors_bias": True,
                "attention_bias": True,
                "mamba_n_groups": 1,
            },
        },
        base=_FALCON,
    ),
    *variations(
        "Lfm2ForCausalLM",
        {
            "lfm2": {},
            "lfm2_biases_untied": {
                "conv_bias": True,
                "conv_L_cache": 4,
                "tie_embedding": False,
                "block_auto_adjust_ff_dim": True,
            },
        },
        base={
            **SMALL,
            "num_hidden_layers": 3,
            "layer_types": ["conv", "full_attention", "conv"],
            "block_auto_adjust_ff_dim": False,
            "block_multiple_of": 16,
            "tie_word_embeddings": True,
        },
    ),
)
