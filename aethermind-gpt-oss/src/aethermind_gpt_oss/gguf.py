"""gpt-oss in GGUF files."""

from __future__ import annotations

from aethermind.model.gguf_family import GgufFamily, SplitRule
from aethermind.text.split_patterns import GPT_4O

__all__ = ["GPT_OSS"]

GPT_OSS = GgufFamily(
    "GptOssForCausalLM",
    {"gpt-4o": SplitRule(GPT_4O)},
    modules={
        "attn_sinks": "self_attn.sinks",
        "ffn_gate_inp": "mlp.router",
        "post_attention_norm": "post_attention_layernorm",
    },
    metadata={"sliding_window": "attention.sliding_window"},
    fields={"yarn_truncate": False},
)
"""The files do not say that bounds of YaRN's ramp are not rounded, as in all models of the family."""
