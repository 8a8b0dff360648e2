"""GGUF files of Llama, Mistral and Mixtral, whose `general.architecture` is `llama`, and of similar families."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aethermind.model.gguf_family import GgufFamily, SplitRule
from aethermind.text.split_patterns import DIGITS_THEN_GPT_2, GPT_2, GPT_4, GPT_4_SINGLE_DIGITS, TEKKEN

__all__ = [
    "COHERE",
    "COHERE2",
    "ERNIE4_5",
    "GRANITE",
    "LLAMA",
    "OLMO2",
    "OLMOE",
    "SMOLLM3",
    "STABLELM",
    "STARCODER2",
]

Fields = Mapping[str, Any]

_LLAMA_3 = SplitRule(GPT_4, ignore_merges=True, adds_bos=True)
_TEKKEN = SplitRule(TEKKEN, ignore_merges=True, adds_bos=True)
_SMOLLM = SplitRule(DIGITS_THEN_GPT_2)
_INTERLEAVED = ("attn_q", "attn_k")

LLAMA = GgufFamily(
    "LlamaForCausalLM",
    {
        **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"), _LLAMA_3),
        "smollm": _SMOLLM,
        "tekken": _TEKKEN,
    },
    interleaved=_INTERLEAVED,
    mixture="MixtralForCausalLM",
    is_writable=True,
    stored_modules={
        "ffn_gate_inp": "block_sparse_moe.gate",
        "ffn_gate_exps": "block_sparse_moe.experts.w1",
        "ffn_down_exps": "block_sparse_moe.experts.w2",
        "ffn_up_exps": "block_sparse_moe.experts.w3",
    },
)
OLMOE = GgufFamily("OlmoeForCausalLM", {"olmo": SplitRule(GPT_2, is_nfc=True)}, is_writable=True)
_WINDOWS = {"sliding_window": "attention.sliding_window", "layer_types": "attention.sliding_window_pattern"}
_LAYER_NORM = {"rms_norm_eps": "attention.layer_norm_epsilon"}

SMOLLM3 = GgufFamily(
    "SmolLM3ForCausalLM",
    dict.fromkeys(("smollm3", "llama-bpe", "smaug-bpe"), _LLAMA_3),
    interleaved=_INTERLEAVED,
    is_writable=True,
)
GRANITE = GgufFamily(
    "GraniteForCausalLM",
    {"refact": _SMOLLM},
    interleaved=_INTERLEAVED,
    metadata={
        "embedding_multiplier": "embedding_scale",
        "residual_multiplier": "residual_scale",
        "attention_multiplier": "attention.scale",
        "logits_scaling": "logit_scale",
    },
    is_writable=True,
)


def _windows(fields: Fields) -> list[str] | None:
    """Return `layer_types` of config.json; None if the file does not say which layers have a window."""
    has_window = fields.get("layer_types")
    if has_window is None:
        return None
    return ["sliding_attention" if is_windowed else "full_attention" for is_windowed in has_window]


def _derive_olmo(fields: Fields) -> dict[str, Any]:
    """Return the fields of OLMo 2, or of OLMo 3 if the file has a sliding window.

    Layers of OLMo 3 with a window have a rotary embedding of their own, whose frequencies are not scaled.
    """
    removed = {"rope_theta_local": None, "layer_types": None}
    if fields.get("sliding_window") is None:
        return removed
    ropes = {}
    if fields.get("rope_theta_local") is not None:
        full = {"rope_theta": fields["rope_theta"], "rope_type": "default", **fields.get("rope_scaling", {})}
        windowed = {"rope_theta": fields["rope_theta_local"], "rope_type": "default"}
        ropes = {"rope_parameters": {"full_attention": full, "sliding_attention": windowed}, "rope_scaling": None}
    return {**removed, **ropes, "architectures": ["Olmo3ForCausalLM"], "layer_types": _windows(fields)}


OLMO2 = GgufFamily(
    "Olmo2ForCausalLM",
    {"dbrx": _LLAMA_3},
    modules={"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"},
    metadata={**_WINDOWS, "rope_theta_local": "rope.freq_base_swa"},
    derive=_derive_olmo,
    is_writable=True,
)
ERNIE4_5 = GgufFamily("Ernie4_5ForCausalLM", {}, is_writable=True)
STABLELM = GgufFamily(
    "StableLmForCausalLM",
    {"stablelm2": SplitRule(GPT_4_SINGLE_DIGITS)},
    metadata={**_LAYER_NORM, "use_parallel_residual": "use_parallel_residual"},
    is_writable=True,
)
COHERE = GgufFamily(
    "CohereForCausalLM",
    {"command-r": _SMOLLM},
    metadata={**_LAYER_NORM, "logit_scale": "logit_scale"},
    is_writable=True,
)
COHERE2 = GgufFamily(
    "Cohere2ForCausalLM",
    {"command-r": _SMOLLM},
    metadata={**_LAYER_NORM, **_WINDOWS, "logit_scale": "logit_scale"},
    derive=lambda fields: {"layer_types": _windows(fields)},
    is_writable=True,
)
STARCODER2 = GgufFamily(
    "Starcoder2ForCausalLM",
    {"starcoder": _SMOLLM},
    modules={"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
    metadata={**_LAYER_NORM, "sliding_window": "attention.sliding_window"},
    is_writable=True,
)
