"""Qwen2, Qwen2.5 and Qwen3, dense and with experts, in GGUF files."""

from __future__ import annotations

from aethermind.model.gguf_family import GgufFamily, SplitRule

__all__ = ["QWEN2", "QWEN2_MOE", "QWEN3", "QWEN3_MOE"]

# Qwen's pre-tokenizer: GPT-4's with single digits.
_SPLIT = SplitRule(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    is_nfc=True,
)

# DeepSeek's distilled models use Qwen's vocabulary with other special tokens, under another name.
_SPLITS = {"qwen2": _SPLIT, "deepseek-r1-qwen": _SPLIT}

QWEN2 = GgufFamily("Qwen2ForCausalLM", _SPLITS)
QWEN3 = GgufFamily("Qwen3ForCausalLM", _SPLITS)
QWEN2_MOE = GgufFamily("Qwen2MoeForCausalLM", _SPLITS)
QWEN3_MOE = GgufFamily("Qwen3MoeForCausalLM", _SPLITS, fields={"norm_topk_prob": True})
"""Files of Qwen3-MoE do not say that weights of a token's experts sum to one; those of all its models do."""
