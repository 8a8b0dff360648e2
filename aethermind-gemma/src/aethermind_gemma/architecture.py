"""Gemma 2 and Gemma 3 as graphs: decoders with norms before and after each block, windows, and soft caps or QK norms.

Gemma 2 (Gemma Team 2024, arXiv:2408.00118) alternates layers with and without a window, and has soft caps of attention
scores and logits. Gemma 3 (Gemma Team 2025, arXiv:2503.19786) has five layers with a window for each one without, which
have other rotary frequencies, and QK norms instead of soft caps. RMS norms multiply by 1 + weight.

Dims: T tokens, D hidden_size.
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
from aethermind.model import DecoderConfig, StepInputs, positive_number, read_decoder_config, read_rope
from aethermind.model.blocks import DecoderVariant, VariantModel, geglu_mlp, is_gelu_approximate, variant_decoder
from aethermind_gemma.fields import (
    FULL,
    GEMMA2_DEFAULTS,
    GEMMA2_FIELDS,
    GEMMA3_DEFAULTS,
    GEMMA3_FIELDS,
    IMAGE_FIELDS,
    LOCAL,
    layer_types_of,
    query_scalar_of_gguf,
    rope_fields,
    softcap,
)

__all__ = ["GEMMA2", "GEMMA3", "GEMMA3_WITH_IMAGES"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma(VariantModel):
    """A Gemma model."""

    name_prefix: str = ""
    """The prefix of the decoder's tensors in checkpoints that also have a vision tower; empty for others."""

    def build(self, builder: GraphBuilder, inputs: StepInputs, max_model_len: int) -> Value:
        """Build the logits, float32 [R, vocab_size]."""
        factor = _round_to(math.sqrt(self.config.hidden_size), builder.dtype)
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
    known_fields = GEMMA2_FIELDS

    def create(self, raw: Mapping[str, Any]) -> Gemma:
        return _read(raw, GEMMA2_DEFAULTS, has_qk_norm=False)


class Gemma3Architecture:
    """`Gemma3ForCausalLM`: the models of text alone, 270M and 1B."""

    ignored_names = ("lm_head.weight", "*.rotary_emb.inv_freq")
    known_fields = GEMMA3_FIELDS

    def create(self, raw: Mapping[str, Any]) -> Gemma:
        return _read(raw, GEMMA3_DEFAULTS, has_qk_norm=True)


class Gemma3WithImagesArchitecture:
    """`Gemma3ForConditionalGeneration`: the decoder of models that read images, too (4B to 27B); text alone."""

    ignored_names = (
        "*lm_head.weight",
        "*vision_tower.*",
        "*multi_modal_projector.*",
        "*.rotary_emb.inv_freq",
    )
    known_fields = IMAGE_FIELDS

    def create(self, raw: Mapping[str, Any]) -> Gemma:
        text = raw.get("text_config")
        if not isinstance(text, Mapping):
            raise ConfigError("config.json has no text_config, which describes this model's decoder.")
        shared_fields = {
            name: raw[name] for name in ("eos_token_id", "dtype", "torch_dtype") if raw.get(name) is not None
        }
        return _read({**text, **shared_fields}, GEMMA3_DEFAULTS, has_qk_norm=True, name_prefix="language_model")


def _read(raw: Mapping[str, Any], defaults: Mapping[str, Any], *, has_qk_norm: bool, name_prefix: str = "") -> Gemma:
    """Create the model of a config.json; ConfigError names a bad or unsupported field."""
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
    fields["layer_types"] = layer_types_of(fields)
    if raw.get("sliding_window", 0) is None:
        fields["sliding_window"], layer_types = None, [FULL] * len(fields["layer_types"])
    else:
        layer_types = fields["layer_types"]
    full, local = rope_fields(fields)
    others = {name: value for name, value in fields.items() if not name.startswith("rope_")}
    config = read_decoder_config({**others, **full, "layer_types": layer_types}, defaults={})
    is_gguf = "norm_weight_offset" in fields
    scalar = positive_number(fields, "query_pre_attn_scalar", default=query_scalar_of_gguf(config) if is_gguf else 256)
    local_rope = read_rope(local, head_dim=config.head_dim, max_position_embeddings=config.max_position_embeddings)
    ropes = tuple(local_rope if kind == LOCAL else config.rope for kind in fields["layer_types"])
    config = replace(config, layer_ropes=ropes)
    is_approximate = is_gelu_approximate("hidden_activation", activation)
    variant = DecoderVariant(
        after_attention="post_attention_layernorm",
        before_mlp="pre_feedforward_layernorm",
        after_mlp="post_feedforward_layernorm",
        has_qk_norm=has_qk_norm,
        norm_offset=float(fields.get("norm_weight_offset", 1.0)),
        attention_scale=scalar**-0.5,
        attention_softcap=softcap(fields, "attn_logit_softcapping"),
        logits_softcap=softcap(fields, "final_logit_softcapping"),
        mlp=_GegluMlps(config, is_approximate),
    )
    return Gemma(config, variant, name_prefix=name_prefix)


@dataclass(frozen=True, slots=True)
class _GegluMlps:
    """Builds the feed-forward networks of the layers (GeGLU)."""

    config: DecoderConfig
    is_approximate: bool

    def __call__(self, builder: GraphBuilder, x_TD: Value, layer: int) -> Value:
        name = f"model.layers.{layer}.mlp"
        return geglu_mlp(builder, x_TD, self.config, name, is_approximate=self.is_approximate)


def _round_to(value: float, dtype: DType) -> float:
    """Round a factor of embeddings to the dtype of the model, as transformers does."""
    import numpy as np

    return float(np.asarray(value, dtype.numpy))


GEMMA2 = Gemma2Architecture()
GEMMA3 = Gemma3Architecture()
GEMMA3_WITH_IMAGES = Gemma3WithImagesArchitecture()
