"""Gemma 2 and Gemma 3 as graphs: decoders with norms before and after each block, windows, and soft caps or QK norms.

Gemma 2 (Gemma Team 2024, arXiv:2408.00118) alternates layers with and without a window, and limits scores and logits
smoothly. Gemma 3 (Gemma Team 2025, arXiv:2503.19786) has five layers with a window for each one without, which rotate
by other frequencies, and norms queries and keys instead of limiting scores. Norms multiply by 1 + weight.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from aethermind.checkpoint import AdaptedTensors, StoredTensors, renamed_prefixes
from aethermind.errors import ConfigError
from aethermind.graph import GraphBuilder, Value
from aethermind.hal import DType
from aethermind.model import (
    DecoderConfig,
    StepInputs,
    periodic_layer_types,
    positive_int,
    positive_number,
    read_decoder_config,
    read_rope,
)
from aethermind.model.blocks import DecoderVariant, VariantModel, geglu_mlp, is_gelu_approximate, variant_decoder
from aethermind.model.known_fields import FieldTable, ignored, refused, used

__all__ = ["GEMMA2", "GEMMA3", "GEMMA3_WITH_IMAGES"]

_LOCAL, _FULL = "sliding_attention", "full_attention"
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
_GEMMA2: Mapping[str, Any] = {
    **_COMMON,
    "vocab_size": 256000,
    "max_position_embeddings": 8192,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "layers_per_full_attention": 2,
}
_GEMMA3: Mapping[str, Any] = {
    **_COMMON,
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
    "rope_theta": 1e6,
    "rope_local_base_freq": 10000.0,
    "layers_per_full_attention": 6,
}
_SCALED_BY_WIDTH = (46, 62)
"""Layers of the 27B models, the only ones whose scores are not scaled by head_dim; .gguf files do not say it."""

_KNOWN_FIELDS: FieldTable = {
    **used("is the activation of feed-forward networks, a form of GELU", "hidden_activation"),
    **used("is the number whose inverse root scales scores", "query_pre_attn_scalar"),
    **used("are smooth limits of scores and logits", "attn_logit_softcapping", "final_logit_softcapping"),
    **ignored("layer_types says which layers see a window", "cache_implementation"),
    **refused("attention in both directions is not computed; take another model", use_bidirectional_attention=False),
    **refused("biases in attention are not computed; take another model", attention_bias=False),
}
_GEMMA3_FIELDS: FieldTable = {
    **_KNOWN_FIELDS,
    **used("is the frequency base of layers with a window", "rope_local_base_freq"),
    **used(
        "says which layers see a window, where layer_types does not",
        "sliding_window_pattern",
        "_sliding_window_pattern",
    ),
}
_IMAGE_FIELDS: FieldTable = {
    **_GEMMA3_FIELDS,
    **used("is the configuration of the decoder", "text_config"),
    **ignored("is for pictures, which are not read", "vision_config", "mm_tokens_per_image", "image_token_index"),
    **ignored("is for pictures, which are not read", "boi_token_index", "eoi_token_index", "image_token_id"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma(VariantModel):
    """A Gemma model."""

    name_prefix: str = ""
    """What the stored names of the decoder's tensors begin with, in checkpoints that have other parts, too."""

    def build(self, builder: GraphBuilder, inputs: StepInputs, max_model_len: int) -> Value:
        """Build the logits, float32 [R, vocab_size]."""
        factor = _rounded(math.sqrt(self.config.hidden_size), builder.dtype)
        variant = replace(self.variant, token_factor=factor)
        return variant_decoder(builder, inputs, self.config, max_model_len, variant)

    def adapt(self, stored: StoredTensors) -> StoredTensors:
        """Map tensors of a checkpoint with a vision tower to the decoder's names."""
        if not self.name_prefix:
            return stored
        prefixes = dict.fromkeys(("model.language_model.", "language_model.model."), "model.")
        return AdaptedTensors(stored, renamed_prefixes(stored.names, prefixes))


class Gemma2Architecture:
    """`Gemma2ForCausalLM`."""

    ignored_names = ("lm_head.weight", "*.rotary_emb.inv_freq")
    known_fields = _KNOWN_FIELDS

    def create(self, raw: Mapping[str, Any]) -> Gemma:
        return _read(raw, _GEMMA2, has_qk_norm=False)


class Gemma3Architecture:
    """`Gemma3ForCausalLM`: the models of text alone, 270M and 1B."""

    ignored_names = ("lm_head.weight", "*.rotary_emb.inv_freq")
    known_fields = _GEMMA3_FIELDS

    def create(self, raw: Mapping[str, Any]) -> Gemma:
        return _read(raw, _GEMMA3, has_qk_norm=True)


class Gemma3WithImagesArchitecture:
    """`Gemma3ForConditionalGeneration`: the decoder of models that read pictures, too (4B to 27B); text alone."""

    ignored_names = (
        "*lm_head.weight",
        "*vision_tower.*",
        "*multi_modal_projector.*",
        "*.rotary_emb.inv_freq",
    )
    known_fields = _IMAGE_FIELDS

    def create(self, raw: Mapping[str, Any]) -> Gemma:
        text = raw.get("text_config")
        if not isinstance(text, Mapping):
            raise ConfigError("config.json has no text_config, which describes this model's decoder.")
        beside = {name: raw[name] for name in ("eos_token_id", "dtype", "torch_dtype") if raw.get(name) is not None}
        return _read({**text, **beside}, _GEMMA3, has_qk_norm=True, name_prefix="language_model")


def _read(raw: Mapping[str, Any], defaults: Mapping[str, Any], *, has_qk_norm: bool, name_prefix: str = "") -> Gemma:
    fields = {**defaults, **{name: value for name, value in raw.items() if value is not None}}
    for name in ("attn_logit_softcapping", "final_logit_softcapping"):
        if name in raw and raw[name] is None:
            fields[name] = None
    if fields.get("use_bidirectional_attention"):
        raise ConfigError("use_bidirectional_attention is true in config.json; this package computes causal attention.")
    if fields.get("attention_bias"):
        raise ConfigError("attention_bias is true in config.json; this package has no biases in attention.")
    activation = fields.get("hidden_activation", fields.get("hidden_act", "gelu_pytorch_tanh"))
    fields.pop("hidden_act", None)
    fields["layer_types"] = _layer_types(fields)
    if raw.get("sliding_window", 0) is None:
        fields["sliding_window"], layer_types = None, [_FULL] * len(fields["layer_types"])
    else:
        layer_types = fields["layer_types"]
    full, local = _rope_fields(fields)
    others = {name: value for name, value in fields.items() if not name.startswith("rope_")}
    config = read_decoder_config({**others, **full, "layer_types": layer_types}, defaults={})
    is_gguf = "norm_weight_offset" in fields
    scalar = positive_number(fields, "query_pre_attn_scalar", default=_query_scalar_of_gguf(config) if is_gguf else 256)
    local_rope = read_rope(local, head_dim=config.head_dim, max_position_embeddings=config.max_position_embeddings)
    ropes = tuple(local_rope if kind == _LOCAL else config.rope for kind in fields["layer_types"])
    config = replace(config, layer_ropes=ropes)
    is_approximate = is_gelu_approximate("hidden_activation", activation)
    variant = DecoderVariant(
        after_attention="post_attention_layernorm",
        before_mlp="pre_feedforward_layernorm",
        after_mlp="post_feedforward_layernorm",
        has_qk_norm=has_qk_norm,
        norm_offset=float(fields.get("norm_weight_offset", 1.0)),
        attention_scale=scalar**-0.5,
        attention_softcap=_softcap(fields, "attn_logit_softcapping"),
        logits_softcap=_softcap(fields, "final_logit_softcapping"),
        mlp=_GegluMlps(config, is_approximate),
    )
    return Gemma(config, variant, name_prefix=name_prefix)


@dataclass(frozen=True, slots=True)
class _GegluMlps:
    """Writes the feed-forward networks of the layers."""

    config: DecoderConfig
    is_approximate: bool

    def __call__(self, builder: GraphBuilder, x_TD: Value, layer: int) -> Value:
        name = f"model.layers.{layer}.mlp"
        return geglu_mlp(builder, x_TD, self.config, name, is_approximate=self.is_approximate)


def _softcap(fields: Mapping[str, Any], name: str) -> float:
    """A smooth limit; 0 for none."""
    return positive_number(fields, name) if fields.get(name) else 0.0


def _layer_types(fields: Mapping[str, Any]) -> list[str]:
    """The kind of each layer: as listed, or every so many layers one that sees all tokens."""
    if (given := fields.get("layer_types")) is not None:
        if not isinstance(given, list):
            raise ConfigError(f"layer_types in config.json should be a list, got {given!r:.80}.")
        return given
    names = ("sliding_window_pattern", "_sliding_window_pattern", "layers_per_full_attention")
    return periodic_layer_types(fields, positive_int(fields, next(name for name in names if name in fields)))


def _rope_fields(fields: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of the rotary embedding of layers that see all tokens, and of those with a window.

    Today's config.json has an object for each kind in rope_parameters; older ones have rope_theta and rope_scaling, and
    rope_local_base_freq, which is not scaled.
    """
    names = ("rope_parameters", "rope_scaling", "rope_theta", "rope_local_base_freq")
    given = {name: fields[name] for name in names if fields.get(name) is not None}
    local_theta = positive_number(given, "rope_local_base_freq") if "rope_local_base_freq" in given else None
    given.pop("rope_local_base_freq", None)
    nested = given.get("rope_parameters")
    if isinstance(nested, Mapping) and any(isinstance(value, Mapping) for value in nested.values()):
        full, local = (dict(nested.get(kind) or {}) for kind in (_FULL, _LOCAL))
        full.setdefault("rope_theta", given.get("rope_theta", 10000.0))
        local.setdefault("rope_theta", local_theta or 10000.0)
        return {"rope_parameters": full}, {"rope_parameters": local}
    return given, given if local_theta is None else {"rope_theta": local_theta}


def _query_scalar_of_gguf(config: DecoderConfig) -> int:
    """The number whose inverse root scales scores, which .gguf files do not have."""
    is_by_width = config.num_hidden_layers in _SCALED_BY_WIDTH
    return config.hidden_size // config.num_attention_heads if is_by_width else config.head_dim


def _rounded(value: float, dtype: DType) -> float:
    """A number in the precision of the model, in which transformers multiplies embeddings by it."""
    import numpy as np

    return float(np.asarray(value, dtype.numpy))


GEMMA2 = Gemma2Architecture()
GEMMA3 = Gemma3Architecture()
GEMMA3_WITH_IMAGES = Gemma3WithImagesArchitecture()
