"""Phi-3 and Phi-4 in GGUF files."""

from __future__ import annotations

from aethermind.model.gguf_family import GgufFamily, SplitRule

__all__ = ["PHI3"]

# GPT-4's pre-tokenizer, and GPT-4o's, which Phi-4-mini has: words are split between lower and upper case.
_GPT_4 = SplitRule(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_GPT_4O = SplitRule(
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_ENDING}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_ENDING}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

PHI3 = GgufFamily(
    "Phi3ForCausalLM",
    {"dbrx": _GPT_4, "gpt-4o": _GPT_4O},
    modules={"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
    metadata={"sliding_window": "attention.sliding_window"},
)
