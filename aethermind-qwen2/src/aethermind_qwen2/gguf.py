"""Qwen2, Qwen2.5 and Qwen3 in GGUF files."""

from __future__ import annotations

from aethermind.model.gguf_family import GgufFamily, SplitRule

__all__ = ["QWEN2", "QWEN3"]

# Qwen's own: like GPT-4's, but every digit is a piece of its own.
_SPLIT = SplitRule(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    is_nfc=True,
)

QWEN2 = GgufFamily("Qwen2ForCausalLM", {"qwen2": _SPLIT})
QWEN3 = GgufFamily("Qwen3ForCausalLM", {"qwen2": _SPLIT})
