"""DeepSeek V2, V3 and R1 in GGUF files, and models of other makers that are converted to the same architecture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aethermind.errors import ConfigError
from aethermind.model.gguf_family import DEEPSEEK_MIXTURE, GgufFamily, SplitRule
from aethermind.text.split_patterns import GPT_4, LOWER, UPPER

__all__ = ["DEEPSEEK2"]

# Letters with upper and lower case, as the tokenizer of DeepSeek LLM and V2 lists them.
_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376"
    "\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d"
    "\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4"
    "\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d"
    "\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a"
    "\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"
    "\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_LLM = SplitRule(
    (
        r"[\r\n]",
        rf"\s?[{_LETTERS}]+",
        "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
        r"\s+$",
        "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
        r"\p{N}+",
    )
)
_CODER = SplitRule((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", r"\p{N}"))
_V3 = SplitRule(
    (
        r"\p{N}{1,3}",
        "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
        r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    )
)
# Kimi's: words are split between lower and upper case, and Chinese text from other letters.
_UPPER, _LOWER = (rf"[{letters[1:-1]}&&[^\p{{Han}}]]" for letters in (UPPER, LOWER))
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_KIMI = SplitRule(
    rf"\p{{Han}}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_ENDING}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_ENDING}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SCORINGS = {1: "softmax", 2: "sigmoid"}


def _derive(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The sizes of heads, the router's kind, and the factor of scores that YaRN has in this family.

    Files since latent attention is computed as such say the sizes of heads under keys of their own; `key_length` is
    then that of a cached vector. The router of version 3 has a correction bias, and sigmoids unless the file says
    otherwise.
    """
    is_v3 = fields["has_correction_bias"]
    scoring = fields.get("scoring_func", 2 if is_v3 else 1)
    if scoring not in _SCORINGS:
        raise ConfigError(f"deepseek2.expert_gating_func is {scoring!r:.40}; 1 (softmax) and 2 (sigmoid) are computed.")
    has_groups = fields.get("n_group", 1) > 1
    scaling = fields.get("rope_scaling")
    if scaling and "mscale_all_dim" in fields:
        # Stored is a tenth of it. `mscale` is the same in all published models, so that it is not stored.
        factor = round(10 * fields["mscale_all_dim"], 6)
        scaling = {**scaling, "mscale": factor, "mscale_all_dim": factor}
    return {
        "architectures": [f"DeepseekV{3 if is_v3 else 2}ForCausalLM"],
        "scoring_func": _SCORINGS[scoring],
        "topk_method": "noaux_tc" if is_v3 else "group_limited_greedy" if has_groups else "greedy",
        "qk_nope_head_dim": fields.get("qk_head_dim", fields["head_dim"]) - fields["qk_rope_head_dim"],
        "v_head_dim": fields.get("v_head_dim", fields["value_length"]),
        "rope_scaling": scaling,
        **dict.fromkeys(("partial_rotary_factor", "value_length", "mscale_all_dim", "has_correction_bias")),
    }


DEEPSEEK2 = GgufFamily(
    "DeepseekV2ForCausalLM",
    {
        "deepseek-llm": _LLM,
        "deepseek-coder": _CODER,
        **dict.fromkeys(("deepseek-v3", "joyai-llm"), _V3),
        "kimi-k2": _KIMI,
        "glm4": SplitRule(GPT_4),  # GLM-4.7-Flash
    },
    modules={
        "attn_q_a": "self_attn.q_a_proj",
        "attn_q_a_norm": "self_attn.q_a_layernorm",
        "attn_q_b": "self_attn.q_b_proj",
        "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
        "attn_kv_a_norm": "self_attn.kv_a_layernorm",
        "attn_kv_b": "self_attn.kv_b_proj",
        "attn_k_b": "self_attn.k_b_proj",
        "attn_v_b": "self_attn.v_b_proj",
        "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
        **{f"ffn_{name}_shexp": f"mlp.shared_experts.{name}_proj" for name in ("gate", "up", "down")},
    },
    metadata={
        **DEEPSEEK_MIXTURE,
        "scoring_func": "expert_gating_func",
        "q_lora_rank": "attention.q_lora_rank",
        "kv_lora_rank": "attention.kv_lora_rank",
        "qk_rope_head_dim": "rope.dimension_count",
        "qk_head_dim": "attention.key_length_mla",
        "v_head_dim": "attention.value_length_mla",
        "value_length": "attention.value_length",
        "mscale_all_dim": "rope.scaling.yarn_log_multiplier",
    },
    fields={"norm_topk_prob": False, "q_lora_rank": None},
    present={"has_correction_bias": "exp_probs_b.bias"},
    derive=_derive,
)
