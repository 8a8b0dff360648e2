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

from aethermind.checkpoint import AdaptedTensors, StoredTensors, TensorSlice
from aethermind.errors import ConfigError
from aethermind.graph import GraphBuilder, Value
from aethermind.hal import DType
from aethermind.model import DecoderConfig, LayerCache, StepInputs, read_decoder_config, read_rope, windowed_layout
from aethermind.model.blocks import attention, embedding, geglu_mlp, is_gelu_approximate, lm_head, rope_tables
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
    **used("says which layers see a window, where layer_types does not", "sliding_window_pattern"),
    **ignored("is the older name of sliding_window_pattern", "_sliding_window_pattern"),
}
_IMAGE_FIELDS: FieldTable = {
    **_GEMMA3_FIELDS,
    **used("is the configuration of the decoder", "text_config"),
    **ignored("is for pictures, which are not read", "vision_config", "mm_tokens_per_image", "image_token_index"),
    **ignored("is for pictures, which are not read", "boi_token_index", "eoi_token_index", "image_token_id"),
}


@dataclass(frozen=True, slots=True)
class Gemma:
    """A Gemma model: its configuration, and what distinguishes the generations."""

    config: DecoderConfig
    has_qk_norm: bool
    is_gelu_approximate: bool
    scale: float
    """The factor of attention scores."""
    score_cap: float
    logit_cap: float
    """Smooth limits of attention scores and of logits; 0 for none."""
    norm_offset: float
    """What is added to the weights of norms."""
    name_prefix: str = ""
    """What the stored names of the decoder's tensors begin with, in checkpoints that have other parts, too."""

    def cache_layout(self) -> tuple[LayerCache, ...]:
        """Keys and values of all tokens, or of those in the window."""
        return windowed_layout(self.config)

    def build(self, builder: GraphBuilder, inputs: StepInputs, max_model_len: int) -> Value:
        """Build the logits, float32 [R, vocab_size]."""
        config = self.config
        tables = rope_tables(builder, inputs, config, max_model_len)
        factor = _rounded(math.sqrt(config.hidden_size), builder.dtype)
        residual_TD = embedding(builder, inputs, config, "model.embed_tokens.weight", factor=factor)
        x_TD = self._norm(builder, residual_TD, "model.layers.0.input_layernorm")
        for layer in range(config.num_hidden_layers):
            base = f"model.layers.{layer}"
            x_TD = attention(
                builder,
                x_TD,
                tables[layer],
                inputs,
                config,
                layer,
                f"{base}.self_attn",
                has_qkv_bias=False,
                has_qk_norm=self.has_qk_norm,
                norm_offset=self.norm_offset if self.has_qk_norm else 0.0,
                scale=self.scale,
                softcap=self.score_cap,
            )
            is_last = layer == config.num_hidden_layers - 1
            if is_last:  # no operator after the last attention mixes tokens
                x_TD, residual_TD = (
                    builder.op("gather_rows", rows, inputs.logits_rows) for rows in (x_TD, residual_TD)
                )
            x_TD = self._norm(builder, x_TD, f"{base}.post_attention_layernorm")
            x_TD, residual_TD = self._add_norm(builder, x_TD, residual_TD, f"{base}.pre_feedforward_layernorm")
            x_TD = geglu_mlp(builder, x_TD, config, f"{base}.mlp", is_approximate=self.is_gelu_approximate)
            x_TD = self._norm(builder, x_TD, f"{base}.post_feedforward_layernorm")
            next_norm = "model.norm" if is_last else f"model.layers.{layer + 1}.input_layernorm"
            x_TD, residual_TD = self._add_norm(builder, x_TD, residual_TD, next_norm)
        head = "model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"
        logits_RV = lm_head(builder, x_TD, config, head)
        if self.logit_cap:
            logits_RV = builder.op("softcap", logits_RV, cap=self.logit_cap)
        return logits_RV

    def adapt(self, stored: StoredTensors) -> StoredTensors:
        """Map tensors of a checkpoint with a vision tower to the decoder's names."""
        if not self.name_prefix:
            return stored
        renamed = {}
        for name in stored.names:
            for prefix in ("model.language_model.", "language_model.model."):
                if name.startswith(prefix):
                    renamed["model." + name.removeprefix(prefix)] = TensorSlice(name)
        return AdaptedTensors(stored, renamed)

    def _norm(self, builder: GraphBuilder, x_TD: Value, name: str) -> Value:
        weight_D = builder.parameter(f"{name}.weight", (self.config.hidden_size,))
        attributes = {"eps": self.config.rms_norm_eps, "weight_offset": self.norm_offset}
        with builder.scope(name):
            out_TD: Value = builder.op("rms_norm", x_TD, weight_D, **attributes)
        return out_TD

    def _add_norm(self, builder: GraphBuilder, x_TD: Value, residual_TD: Value, name: str) -> tuple[Value, Value]:
        """Add a block's normed output to the residual, and norm the sum for the next block."""
        weight_D = builder.parameter(f"{name}.weight", (self.config.hidden_size,))
        attributes = {"eps": self.config.rms_norm_eps, "weight_offset": self.norm_offset}
        with builder.scope(name):
            out_TD, total_TD = builder.op("add_rms_norm", x_TD, residual_TD, weight_D, **attributes)
        return out_TD, total_TD


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
    scalar = fields.get("query_pre_attn_scalar") or (_query_scalar_of_gguf(config) if is_gguf else 256)
    local_rope = read_rope(local, head_dim=config.head_dim, max_position_embeddings=config.max_position_embeddings)
    ropes = tuple(local_rope if kind == _LOCAL else config.rope for kind in fields["layer_types"])
    return Gemma(
        replace(config, layer_ropes=ropes),
        has_qk_norm,
        is_gelu_approximate("hidden_activation", activation),
        float(scalar) ** -0.5,
        float(fields.get("attn_logit_softcapping") or 0.0),
        float(fields.get("final_logit_softcapping") or 0.0),
        float(fields.get("norm_weight_offset", 1.0)),
        name_prefix,
    )


def _layer_types(fields: Mapping[str, Any]) -> list[str]:
    """The kind of each layer: as listed, or every so many layers one that sees all tokens."""
    if (given := fields.get("layer_types")) is not None:
        return list(given)
    pattern = fields.get("sliding_window_pattern", fields.get("_sliding_window_pattern"))
    pattern = fields["layers_per_full_attention"] if pattern is None else pattern
    return [_LOCAL if (layer + 1) % pattern else _FULL for layer in range(fields["num_hidden_layers"])]


def _rope_fields(fields: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of the rotary embedding of layers that see all tokens, and of those with a window.

    Today's config.json has an object for each kind in rope_parameters; older ones have rope_theta and rope_scaling, and
    rope_local_base_freq, which is not scaled.
    """
    names = ("rope_parameters", "rope_scaling", "rope_theta", "rope_local_base_freq")
    given = {name: fields[name] for name in names if fields.get(name) is not None}
    local_theta = given.pop("rope_local_base_freq", None)
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
