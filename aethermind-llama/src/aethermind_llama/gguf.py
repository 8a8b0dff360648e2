"""GGUF files: Llama, Mistral and Mixtral, which these call `llama`, and the families that differ from them."""

from __future__ import annotations

from aethermind.model.gguf_family import GgufFamily, SplitRule

__all__ = [
    "COHERE",
    "ERNIE4_5",
    "GRANITE",
    "LLAMA",
    "OLMO2",
    "OLMOE",
    "SMOLLM3",
    "STABLELM",
    "STARCODER2",
]

# GPT-4's pre-tokenizer: pieces of at most three digits.
_LLAMA_3 = SplitRule(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    ignore_merges=True,
    adds_bos=True,
)
# Mistral's Tekken: words are split between lower and upper case, and every digit is a piece.
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = SplitRule(
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ignore_merges=True,
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

# Qwen's pre-tokenizer: GPT-4's with single digits.
_SINGLE_DIGITS = SplitRule(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_INTERLEAVED = ("attn_q", "attn_k")
_LAYER_NORM = {"rms_norm_eps": "attention.layer_norm_epsilon"}

SMOLLM3 = GgufFamily(
    "SmolLM3ForCausalLM", dict.fromkeys(("smollm3", "llama-bpe", "smaug-bpe"), _LLAMA_3), interleaved=_INTERLEAVED
)
GRANITE = GgufFamily(
    "GraniteForCausalLM",
    {"refact": _SMOLLM},
    interleaved=_INTERLEAVED,
    metadata={
        "embedding_multiplier": "embedding_scale",
        "residual_multiplier": "residual_scale",
        "attention_multiplier": "attention.scale",
        "logits_scaling": "logit_scale",
    },
)
OLMO2 = GgufFamily(
    "Olmo2ForCausalLM",
    {"dbrx": _LLAMA_3},
    modules={"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"},
    metadata={"sliding_window": "attention.sliding_window"},
)
ERNIE4_5 = GgufFamily("Ernie4_5ForCausalLM", {})
STABLELM = GgufFamily(
    "StableLmForCausalLM",
    {"stablelm2": _SINGLE_DIGITS},
    metadata={**_LAYER_NORM, "use_parallel_residual": "use_parallel_residual"},
)
COHERE = GgufFamily("CohereForCausalLM", {"command-r": _SMOLLM}, metadata={**_LAYER_NORM, "logit_scale": "logit_scale"})
STARCODER2 = GgufFamily(
    "Starcoder2ForCausalLM",
    {"starcoder": _SMOLLM},
    modules={"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
    metadata={**_LAYER_NORM, "sliding_window": "attention.sliding_window"},
)
