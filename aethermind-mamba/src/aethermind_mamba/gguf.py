"""GGUF files of Mamba 2, Falcon-H1 and LFM2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aethermind.model.gguf_family import GgufFamily, GgufTransform, SplitRule
from aethermind.text.split_patterns import GPT_2, GPT_4

__all__ = ["FALCON_H1", "LFM2", "MAMBA2"]

Fields = Mapping[str, Any]

_LLAMA_3 = SplitRule(GPT_4, ignore_merges=True, adds_bos=True)


def _mixer(name: str) -> dict[str, str]:
    """Map GGUF's names of the tensors of a Mamba 2 mixer to Hugging Face's, where the mixer is called `name`."""
    return {
        "ssm_in": f"{name}.in_proj",
        "ssm_conv1d": f"{name}.conv1d",
        "ssm_dt.bias": f"{name}.dt_bias",
        "ssm_a": f"{name}.A_log",
        "ssm_d": f"{name}.D",
        "ssm_norm": f"{name}.norm",
        "ssm_out": f"{name}.out_proj",
    }


_FLAT = GgufTransform(is_flat=True)
_TRANSFORMS = {
    "ssm_a": GgufTransform(is_flat=True, is_negative_exponential=True),
    "ssm_d": _FLAT,
    "ssm_norm.weight": _FLAT,
}
"""GGUF files have A instead of A_log. A and D are matrices with one column; norms are matrices with a row per group."""


def _derive_mamba2(fields: Fields) -> dict[str, Any]:
    """Return fields that follow from the size of all heads together; drop the context length, which is arbitrary."""
    inner_size = fields["intermediate_size"]
    return {
        "head_dim": inner_size // fields["num_heads"],
        "expand": inner_size / fields["hidden_size"],
        "num_attention_heads": fields["num_heads"],
        "max_position_embeddings": None,
    }


MAMBA2 = GgufFamily(
    "Mamba2ForCausalLM",
    dict.fromkeys(("olmo", "mpt", "gpt-2"), SplitRule(GPT_2, is_nfc=True)),
    modules={"attn_norm": "norm", **_mixer("mixer")},
    outside={"token_embd": "backbone.embeddings", "output_norm": "backbone.norm_f"},
    layers="backbone.layers",
    transforms=_TRANSFORMS,
    metadata={
        "intermediate_size": "ssm.inner_size",
        "num_heads": "ssm.time_step_rank",
        "state_size": "ssm.state_size",
        "n_groups": "ssm.group_count",
        "conv_kernel": "ssm.conv_kernel",
        "layer_norm_epsilon": "attention.layer_norm_rms_epsilon",
    },
    present={"use_bias": "ssm_in.bias", "use_conv_bias": "ssm_conv1d.bias"},
    derive=_derive_mamba2,
)
FALCON_H1 = GgufFamily(
    "FalconH1ForCausalLM",
    {"falcon-h1": _LLAMA_3},
    modules={
        "ffn_norm": "pre_ff_layernorm.weight",  # some files have no suffix `.weight` here
        "ffn_norm.weight": "pre_ff_layernorm.weight",
        **{f"ffn_{name}": f"feed_forward.{name}_proj" for name in ("gate", "up", "down")},
        **_mixer("mamba"),
    },
    outside={"output_norm": "model.final_layernorm"},
    transforms=_TRANSFORMS,
    metadata={
        "mamba_d_ssm": "ssm.inner_size",
        "mamba_n_heads": "ssm.time_step_rank",
        "mamba_d_state": "ssm.state_size",
        "mamba_n_groups": "ssm.group_count",
        "mamba_d_conv": "ssm.conv_kernel",
    },
    fields={"mamba_norm_before_gate": False},
    present={
        "mamba_rms_norm": "ssm_norm.weight",
        "mamba_conv_bias": "ssm_conv1d.bias",
        "mamba_proj_bias": "ssm_in.bias",
        "projectors_bias": "ssm_out.bias",
    },
)
"""The files have no multipliers: the converter multiplies the weights by them."""


def _derive_lfm2(fields: Fields) -> dict[str, Any]:
    """Return fields that follow from the number of key-value heads of each layer, 0 in layers with a convolution."""
    num_kv_heads = [int(count) for count in fields["num_key_value_heads"]]
    return {
        "num_key_value_heads": max(num_kv_heads),
        "layer_types": ["full_attention" if count else "conv" for count in num_kv_heads],
    }


LFM2 = GgufFamily(
    "Lfm2ForCausalLM",
    {"lfm2": _LLAMA_3},
    modules={
        "attn_norm": "operator_norm",
        "attn_q_norm": "self_attn.q_layernorm",
        "attn_k_norm": "self_attn.k_layernorm",
        "attn_output": "self_attn.out_proj",
        "shortconv.conv": "conv.conv",
        "shortconv.in_proj": "conv.in_proj",
        "shortconv.out_proj": "conv.out_proj",
        "ffn_norm": "ffn_norm",
        "ffn_gate": "feed_forward.w1",
        "ffn_down": "feed_forward.w2",
        "ffn_up": "feed_forward.w3",
    },
    outside={"token_embd_norm": "model.embedding_norm", "output_norm": "model.embedding_norm"},
    metadata={"conv_L_cache": "shortconv.l_cache", "norm_eps": "attention.layer_norm_rms_epsilon"},
    fields={"block_auto_adjust_ff_dim": False},
    present={"conv_bias": "shortconv.conv.bias"},
    derive=_derive_lfm2,
)
