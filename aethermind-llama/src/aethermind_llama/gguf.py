"""Llama, Mistral and Mixtral in GGUF files, which call all of them `llama`, and OLMoE."""

from __future__ import annotations

from aethermind.model.gguf_family import GgufFamily, SplitRule

__all__ = ["LLAMA", "OLMOE"]

# GPT-4's pre-tokenizer: pieces of at most three digits.
_LLAMA_3 = SplitRule(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    keeps_whole_words=True,
    adds_bos=True,
)
# Mistral's Tekken: words are split between lower and upper case, and every digit is a piece.
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = SplitRule(
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    keeps_whole_words=True,
    adds_bos=True,
)
# SmolLM's: single digits are split off first, then GPT-2's pre-tokenizer splits the text between them.
_SMOLLM = SplitRule(r"\p{N}|'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?![^\s\p{N}])|\s+")

LLAMA = GgufFamily(
    "LlamaForCausalLM",
    {
        **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"), _LLAMA_3),
        "smollm": _SMOLLM,
        "tekken": _TEKKEN,
    },
    interleaved=("attn_q", "attn_k"),
    mixture="MixtralForCausalLM",
)

# GPT-2's pre-tokenizer.
_OLMO = SplitRule(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+", is_nfc=True)

OLMOE = GgufFamily("OlmoeForCausalLM", {"olmo": _OLMO})
