"""Llama and Mistral in GGUF files, which call both `llama`."""

from __future__ import annotations

from aethermind.model.gguf_family import GgufFamily, SplitRule

__all__ = ["LLAMA"]

# GPT-4's: three digits at most are a piece.
_LLAMA_3 = SplitRule(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    keeps_whole_words=True,
    adds_bos=True,
)
# Mistral's Tekken: words end where lower case turns into upper case, and every digit is a piece.
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = SplitRule(
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    keeps_whole_words=True,
    adds_bos=True,
)

LLAMA = GgufFamily(
    "LlamaForCausalLM",
    {"llama-bpe": _LLAMA_3, "llama3": _LLAMA_3, "llama-v3": _LLAMA_3, "tekken": _TEKKEN},
    interleaved=("attn_q", "attn_k"),
)
