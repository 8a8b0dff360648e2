"""GGUF files of GPT-2, GPT-NeoX, BLOOM and MPT."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aethermind.checkpoint import rows_by_head
from aethermind.model.gguf_family import GgufFamily, GgufTransform, SplitRule, inverse_order
from aethermind.text.split_patterns import GPT_2

__all__ = ["BLOOM", "GPT2", "GPT_NEOX", "MPT"]

Fields = Mapping[str, Any]

_EPSILON = "attention.layer_norm_epsilon"
_NEOX = SplitRule(GPT_2, is_nfc=True)


GPT2 = GgufFamily(
    "GPT2LMHeadModel",
    {"gpt-2": SplitRule(GPT_2)},
    modules={
        "attn_norm": "ln_1",
        "attn_qkv": "attn.c_attn",
        "attn_output": "attn.c_proj",
        "ffn_norm": "ln_2",
        "ffn_up": "mlp.c_fc",
        "ffn_down": "mlp.c_proj",
    },
    outside={
        "token_embd": "transformer.wte",
        "position_embd": "transformer.wpe",
        "output_norm": "transformer.ln_f",
    },
    layers="transformer.h",
    metadata={
        "rms_norm_eps": _EPSILON,
        "layer_norm_epsilon": _EPSILON,
        "n_embd": "embedding_length",
        "n_layer": "block_count",
        "n_head": "attention.head_count",
        "n_positions": "context_length",
        "n_inner": "feed_forward_length",
    },
    fields={"has_transposed_matrices": False},
)


def _by_head(fields: Fields) -> dict[str, GgufTransform]:
    """Return transforms that order the rows of fused projections head by head, as in Hugging Face's checkpoints.

    GGUF files have all queries, then all keys, then all values.
    """
    queries, keys, values = rows_by_head(fields["num_attention_heads"], (fields["head_dim"],) * 3)
    by_head = GgufTransform(rows=inverse_order((*queries, *keys, *values)))
    return {"attn_qkv.weight": by_head, "attn_qkv.bias": by_head}


GPT_NEOX = GgufFamily(
    "GPTNeoXForCausalLM",
    dict.fromkeys(("olmo", "mpt", "gpt-2"), _NEOX),
    modules={
        "attn_qkv": "attention.query_key_value",
        "attn_output": "attention.dense",
        "ffn_up": "mlp.dense_h_to_4h",
        "ffn_down": "mlp.dense_4h_to_h",
    },
    outside={"token_embd": "gpt_neox.embed_in", "output_norm": "gpt_neox.final_layer_norm", "output": "embed_out"},
    layers="gpt_neox.layers",
    transforms=_by_head,
    metadata={
        "rms_norm_eps": _EPSILON,
        "layer_norm_eps": _EPSILON,
        "use_parallel_residual": "use_parallel_residual",
    },
)
BLOOM = GgufFamily(
    "BloomForCausalLM",
    {"bloom": SplitRule(r" ?[^(\s|.,!?…。，、।۔،)]+")},
    modules={
        "attn_qkv": "self_attention.query_key_value",
        "attn_output": "self_attention.dense",
        "ffn_up": "mlp.dense_h_to_4h",
        "ffn_down": "mlp.dense_4h_to_h",
    },
    outside={
        "token_embd": "transformer.word_embeddings",
        "token_embd_norm": "transformer.word_embeddings_layernorm",
        "output_norm": "transformer.ln_f",
    },
    layers="transformer.h",
    transforms=_by_head,
    metadata={"rms_norm_eps": _EPSILON, "layer_norm_epsilon": _EPSILON, "seq_length": "context_length"},
)


def _derive_mpt(fields: Fields) -> dict[str, Any]:
    """Return `attn_config` of config.json. Files have no `softmax_scale`, so it has the default."""
    max_bias = fields["alibi_bias_max"]
    attn_config = {"alibi": max_bias > 0, "alibi_bias_max": max_bias}
    attn_config |= {name: fields.get(name) for name in ("clip_qkv", "qk_ln")}
    return {"attn_config": attn_config, "alibi_bias_max": None, "clip_qkv": None, "qk_ln": None}


MPT = GgufFamily(
    "MptForCausalLM",
    dict.fromkeys(("mpt", "olmo", "gpt-2"), _NEOX),
    modules={
        "attn_norm": "norm_1",
        "attn_qkv": "attn.Wqkv",
        "attn_output": "attn.out_proj",
        "ffn_norm": "norm_2",
        "ffn_up": "ffn.up_proj",
        "ffn_down": "ffn.down_proj",
    },
    outside={"token_embd": "transformer.wte", "output_norm": "transformer.norm_f"},
    layers="transformer.blocks",
    metadata={
        "rms_norm_eps": _EPSILON,
        "layer_norm_epsilon": _EPSILON,
        "d_model": "embedding_length",
        "n_layers": "block_count",
        "n_heads": "attention.head_count",
        "max_seq_len": "context_length",
        "alibi_bias_max": "attention.max_alibi_bias",
        "clip_qkv": "attention.clamp_kqv",
    },
    fields={"alibi_bias_max": 0.0},
    present={"qk_ln": "attn_q_norm.weight"},
    derive=_derive_mpt,
)
