"""Fields of Gemma's config.json: their defaults, what each does, and how several are read together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aethermind.errors import ConfigError
from aethermind.model import DecoderConfig, periodic_layer_types, positive_int, positive_number
from aethermind.model.known_fields import FieldTable, ignored, refused, used

__all__ = [
    "FULL",
    "GEMMA2_DEFAULTS",
    "GEMMA2_FIELDS",
    "GEMMA3_DEFAULTS",
    "GEMMA3_FIELDS",
    "IMAGE_FIELDS",
    "LOCAL",
    "layer_types_of",
    "query_scalar_of_gguf",
    "rope_fields",
    "softcap",
]

LOCAL, FULL = "sliding_attention", "full_attention"
_COMMON: Mapping[str, Any] = {
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "rms_norm_eps": 1e-6,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
    "eos_token_id": 1,
}
GEMMA2_DEFAULTS: Mapping[str, Any] = {
    **_COMMON,
    "vocab_size": 256000,
    "max_position_embeddings": 8192,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "layers_per_full_attention": 2,
}
GEMMA3_DEFAULTS: Mapping[str, Any] = {
    **_COMMON,
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
    "rope_theta": 1e6,
    "rope_local_base_freq": 10000.0,
    "layers_per_full_attention": 6,
}
_LAYERS_OF_27B = (46, 62)
"""Numbers of layers of the 27B models, the only models whose attention scores are not scaled by head_dim."""

GEMMA2_FIELDS: FieldTable = {
    **used("is the activation of feed-forward networks, a form of GELU", "hidden_activation"),
    **used("is the number whose inverse root scales scores", "query_pre_attn_scalar"),
    **used("are soft caps of scores and logits", "attn_logit_softcapping", "final_logit_softcapping"),
    **ignored("layer_types says which layers see a window", "cache_implementation"),
    **refused("attention in both directions is not computed; take another model", use_bidirectional_attention=False),
    **refused("biases in attention are not computed; take another model", attention_bias=False),
}
GEMMA3_FIELDS: FieldTable = {
    **GEMMA2_FIELDS,
    **used("is the frequency base of layers with a window", "rope_local_base_freq"),
    **used(
        "says which layers see a window, where layer_types does not",
        "sliding_window_pattern",
        "_sliding_window_pattern",
    ),
}
IMAGE_FIELDS: FieldTable = {
    **GEMMA3_FIELDS,
    **used("is the configuration of the decoder", "text_config"),
    **ignored("is for images, which are not read", "vision_config", "mm_tokens_per_image", "image_token_index"),
    **ignored("is for images, which are not read", "boi_token_index", "eoi_token_index", "image_token_id"),
}


def softcap(fields: Mapping[str, Any], name: str) -> float:
    """Read a soft cap, cap · tanh(x / cap); 0 for none."""
    return positive_number(fields, name) if fields.get(name) else 0.0


def layer_types_of(fields: Mapping[str, Any]) -> list[str]:
    """Return the kind of each layer: as `layer_types` lists them, or with full attention in every n-th layer."""
    if (given := fields.get("layer_types")) is not None:
        if not isinstance(given, list):
            raise ConfigError(f"layer_types in config.json should be a list, got {given!r:.80}.")
        return given
    names = ("sliding_window_pattern", "_sliding_window_pattern", "layers_per_full_attention")
    return periodic_layer_types(fields, positive_int(fields, next(name for name in names if name in fields)))


def rope_fields(fields: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields of the rotary embedding of layers with full attention, and of layers with a window.

    A config.json of transformers 5 has an object for each kind in rope_parameters; older ones have rope_theta and
    rope_scaling, and rope_local_base_freq, which is not scaled.
    """
    names = ("rope_parameters", "rope_scaling", "rope_theta", "rope_local_base_freq")
    given = {name: fields[name] for name in names if fields.get(name) is not None}
    local_theta = positive_number(given, "rope_local_base_freq") if "rope_local_base_freq" in given else None
    given.pop("rope_local_base_freq", None)
    nested = given.get("rope_parameters")
    if isinstance(nested, Mapping) and any(isinstance(value, Mapping) for value in nested.values()):
        full, local = (dict(nested.get(kind) or {}) for kind in (FULL, LOCAL))
        full.setdefault("rope_theta", given.get("rope_theta", 10000.0))
        local.setdefault("rope_theta", local_theta or 10000.0)
        return {"rope_parameters": full}, {"rope_parameters": local}
    return given, given if local_theta is None else {"rope_theta": local_theta}


def query_scalar_of_gguf(config: DecoderConfig) -> int:
    """Return query_pre_attn_scalar, the number whose inverse root scales scores, which .gguf files do not have."""
    is_27b = config.num_hidden_layers in _LAYERS_OF_27B
    return config.hidden_size // config.num_attention_heads if is_27b else config.head_dim
