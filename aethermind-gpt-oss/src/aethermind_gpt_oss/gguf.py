"""gpt-oss in GGUF files."""

from __future__ import annotations

from aethermind.model.gguf_family import GgufFamily, SplitRule

__all__ = ["GPT_OSS"]

# GPT-4o's pre-tokenizer: words are split between lower and upper case.
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_GPT_4O = SplitRule(
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_ENDING}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_ENDING}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

GPT_OSS = GgufFamily(
    "GptOssForCausalLM",
    {"gpt-4o": _GPT_4O},
    modules={
        "attn_sinks": "self_attn.sinks",
        "ffn_gate_inp": "mlp.router",
        "post_attention_norm": "post_attention_layernorm",
    },
    metadata={"sliding_window": "attention.sliding_window"},
    fields={"yarn_truncate": False},
)
"""The files do not say that bounds of YaRN's ramp are not rounded, as in all models of the family."""
