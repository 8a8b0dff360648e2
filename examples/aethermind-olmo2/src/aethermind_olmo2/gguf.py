"""OLMo 2 in GGUF files."""

from __future__ import annotations

from aethermind.model.gguf_family import GgufFamily, SplitRule

__all__ = ["OLMO2"]

# GPT-4's pre-tokenizer: pieces of at most three digits.
_SPLIT = SplitRule(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

OLMO2 = GgufFamily(
    "Olmo2ForCausalLM",
    {"dbrx": _SPLIT},
    modules={"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"},
)
