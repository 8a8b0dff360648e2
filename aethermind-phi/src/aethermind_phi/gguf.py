"""GGUF files of Phi-2, Phi-3 and Phi-4."""

from __future__ import annotations

from aethermind.model.gguf_family import GgufFamily, SplitRule
from aethermind.text.split_patterns import GPT_2, GPT_4, GPT_4O

__all__ = ["PHI2", "PHI3"]

_EPSILON = "attention.layer_norm_epsilon"

PHI2 = GgufFamily(
    "PhiForCausalLM",
    dict.fromkeys(("phi-2", "gpt-2"), SplitRule(GPT_2)),
    modules={"attn_output": "self_attn.dense", "ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2"},
    outside={"output_norm": "model.final_layernorm"},
    metadata={"rms_norm_eps": _EPSILON, "layer_norm_eps": _EPSILON},
)
PHI3 = GgufFamily(
    "Phi3ForCausalLM",
    {"dbrx": SplitRule(GPT_4), "gpt-4o": SplitRule(GPT_4O)},
    modules={"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
    metadata={"sliding_window": "attention.sliding_window"},
    is_writable=True,
)
