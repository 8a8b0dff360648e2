"""GLM-4-0414 and GLM-4.5 in GGUF files."""

from __future__ import annotations

from aethermind.model.gguf_family import DEEPSEEK_MIXTURE, GgufFamily, SplitRule
from aethermind.text.split_patterns import GPT_4

__all__ = ["GLM4", "GLM4_MOE"]

_SPLITS = dict.fromkeys(("glm4", "chatglm-bpe"), SplitRule(GPT_4))

GLM4 = GgufFamily(
    "Glm4ForCausalLM",
    _SPLITS,
    modules={
        "ffn_up": "mlp.gate_up_proj",
        "post_attention_norm": "post_self_attn_layernorm",
        "post_ffw_norm": "post_mlp_layernorm",
    },
    is_writable=True,
)
GLM4_MOE = GgufFamily(
    "Glm4MoeForCausalLM",
    _SPLITS,
    modules={
        "post_attention_norm": "post_attention_layernorm",
        "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
        **{f"ffn_{name}_shexp": f"mlp.shared_experts.{name}_proj" for name in ("gate", "up", "down")},
    },
    metadata=DEEPSEEK_MIXTURE,
    present={"attention_bias": "attn_q.bias", "use_qk_norm": "attn_q_norm.weight"},
)
