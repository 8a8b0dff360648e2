"""GLM-4-0414 in GGUF files."""

from __future__ import annotations

from aethermind.model.gguf_family import GgufFamily, SplitRule

__all__ = ["GLM4"]

# GPT-4's pre-tokenizer: pieces of at most three digits.
_GPT_4 = SplitRule(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

GLM4 = GgufFamily(
    "Glm4ForCausalLM",
    {"glm4": _GPT_4, "chatglm-bpe": _GPT_4},
    modules={
        "ffn_up": "mlp.gate_up_proj",
        "post_attention_norm": "post_self_attn_layernorm",
        "post_ffw_norm": "post_mlp_layernorm",
    },
)
