"""Qwen3-Next and Qwen3.5 (text) as graphs: gated delta nets in most layers, gated attention in the others.

A gated delta net (Yang et al. 2024, arXiv:2412.06464) has a state of each sequence instead of keys and values.
Attention has norms of queries and keys, rotates a part of each head, and multiplies its output by a sigmoid gate (Qiu
et al. 2025, arXiv:2505.06708). Checkpoints store the weights of norms minus 1, except GGUF files. Feed-forward networks
are dense, or mixtures with a shared expert.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aethermind.errors import ConfigError
from aethermind.model import MTPModule, positive_int, read_decoder_config, read_mixture_config
from aethermind.model.blocks import DecoderVariant, mixture_mlps
from aethermind.model.known_fields import FieldTable, ignored, used
from aethermind_qwen2.hybrid_layers import HybridMixer, QwenHybrid, attention_layers, read_delta_net

__all__ = ["QWEN3_5", "QWEN3_5_MOE", "QWEN3_5_MOE_WITH_IMAGES", "QWEN3_5_WITH_IMAGES", "QWEN3_NEXT"]

_SHARED_WIDTH = "shared_expert_intermediate_size"
_COMMON: Mapping[str, Any] = {
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
    "head_dim": 256,
    "partial_rotary_factor": 0.25,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}
_MIXTURE: Mapping[str, Any] = {
    **_COMMON,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "moe_intermediate_size": 512,
    _SHARED_WIDTH: 512,
    "num_experts_per_tok": 10,
    "num_experts": 512,
}
_MIXTURE_3_5: Mapping[str, Any] = {**_MIXTURE, "num_experts_per_tok": 8, "num_experts": 256, "intermediate_size": 1}
"""All layers are mixtures, and config.json has no `intermediate_size` of dense layers; the 1 here is not used."""

_MTP_PREFIXES = {
    "mtp.pre_fc_norm_embedding.": "mtp.enorm.",
    "mtp.pre_fc_norm_hidden.": "mtp.hnorm.",
    "mtp.fc.": "mtp.eh_proj.",
}

_FIELDS: FieldTable = {
    **used("are sizes of gated delta nets", "linear_conv_kernel_dim", "linear_key_head_dim", "linear_value_head_dim"),
    **used("are sizes of gated delta nets", "linear_num_key_heads", "linear_num_value_heads"),
    **used("say which layers have attention", "layer_types", "full_attention_interval"),
    **used("is the part of each head that is rotated", "partial_rotary_factor"),
    **used("says whether projections of attention have biases", "attention_bias"),
    **ignored("attention's output always has a gate", "attn_output_gate"),
    **ignored("states are always float32", "mamba_ssm_dtype"),
    **used("are about layers that draft tokens", "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings"),
}
_MIXTURE_FIELDS: FieldTable = {
    **_FIELDS,
    **used("are sizes of MoE layers", "num_experts", "num_local_experts", "num_experts_per_tok"),
    **used("are sizes of MoE layers", "moe_intermediate_size", _SHARED_WIDTH),
    **used("says whether a token's top-k expert weights are normalised", "norm_topk_prob"),
    **used("say which layers are MoE layers", "decoder_sparse_step", "mlp_only_layers"),
}
_IMAGE_FIELDS: FieldTable = {
    **used("is the configuration of the decoder", "text_config"),
    **ignored("is for images, which are not read", "vision_config", "image_token_id", "video_token_id"),
    **ignored("is for images, which are not read", "vision_start_token_id", "vision_end_token_id"),
}


@dataclass(frozen=True, slots=True)
class QwenHybridArchitecture:
    """An architecture with gated delta nets.

    If `has_images`, checkpoints are those of models with a vision encoder, and only the decoder is computed.
    """

    defaults: Mapping[str, Any]
    known_fields: FieldTable
    has_mixture: bool
    has_fused_projections: bool
    has_images: bool
    ignored_names: tuple[str, ...] = ("*lm_head.weight", "*.rotary_emb.inv_freq", "mtp.*", "model.visual.*")

    def create(self, raw: Mapping[str, Any]) -> QwenHybrid:
        """Create the model of a config.json; ConfigError names a bad field."""
        return self._create(self._decoder_fields(raw))

    def create_mtp(self, raw: Mapping[str, Any]) -> MTPModule | None:
        """Make the first MTP module, whose layer has attention and, in a mixture, experts."""
        raw = self._decoder_fields(raw)
        if not raw.get("mtp_num_hidden_layers", 1):
            return None
        if raw.get("mtp_use_dedicated_embeddings"):
            raise ConfigError(
                "mtp_use_dedicated_embeddings is true in config.json: layers that draft tokens with embeddings of "
                "their own are not read. Choose another speculative_method."
            )
        layer = {"num_hidden_layers": 1, "layer_types": ["full_attention"], "mlp_only_layers": []}
        model = self._create({**raw, **layer, "decoder_sparse_step": 1})
        embeddings = "model.language_model.embed_tokens." if self.has_images else "model.embed_tokens."
        return MTPModule(model, _MTP_PREFIXES, {embeddings: "model.embed_tokens.", "lm_head.": "lm_head."})

    def _decoder_fields(self, raw: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the fields of the decoder: those of text_config, and some outside it, if the model has images."""
        if not self.has_images:
            return raw
        text = raw.get("text_config")
        if not isinstance(text, Mapping):
            raise ConfigError("config.json has no text_config, which describes this model's decoder.")
        outside = ("eos_token_id", "dtype", "torch_dtype", "tie_word_embeddings")
        return {**text, **{name: raw[name] for name in outside if raw.get(name) is not None}}

    def _create(self, raw: Mapping[str, Any]) -> QwenHybrid:
        fields = {**self.defaults, **{name: value for name, value in raw.items() if value is not None}}
        layer_types, *_ = (fields.pop(name, None) for name in ("layer_types", "sliding_window", "use_sliding_window"))
        config = read_decoder_config(fields, defaults={}, has_partial_rotary=True)
        interval, num_layers = positive_int(fields, "full_attention_interval"), config.num_hidden_layers
        has_attention = attention_layers(layer_types, interval, num_layers)
        mixture = None
        if self.has_mixture:
            mixture = read_mixture_config(raw, num_layers, defaults=self.defaults, shared_width=_SHARED_WIDTH)
        delta_net = read_delta_net(fields, config)
        norm_offset = float(fields.get("norm_weight_offset", 1.0))
        mixer = HybridMixer(config, delta_net, has_attention, bool(fields.get("attention_bias", False)), norm_offset)
        variant = DecoderVariant(
            norm_offset=norm_offset, attention=mixer, mlp=None if mixture is None else mixture_mlps(config, mixture)
        )
        return QwenHybrid(
            config,
            variant,
            delta_net=delta_net,
            has_attention=has_attention,
            mixture=mixture,
            has_fused_projections=self.has_fused_projections,
            has_vision_encoder=self.has_images,
        )


def _architecture(
    defaults: Mapping[str, Any], *, has_mixture: bool, has_fused_projections: bool = False, has_images: bool = False
) -> QwenHybridArchitecture:
    known_fields = _MIXTURE_FIELDS if has_mixture else _FIELDS
    known_fields = {**known_fields, **_IMAGE_FIELDS} if has_images else known_fields
    return QwenHybridArchitecture(defaults, known_fields, has_mixture, has_fused_projections, has_images)


QWEN3_NEXT = _architecture(_MIXTURE, has_mixture=True, has_fused_projections=True)
"""`Qwen3NextForCausalLM`: Qwen3-Next-80B-A3B."""
QWEN3_5 = _architecture(_COMMON, has_mixture=False)
"""`Qwen3_5ForCausalLM`."""
QWEN3_5_MOE = _architecture(_MIXTURE_3_5, has_mixture=True)
"""`Qwen3_5MoeForCausalLM`."""
QWEN3_5_WITH_IMAGES = _architecture(_COMMON, has_mixture=False, has_images=True)
"""`Qwen3_5ForConditionalGeneration`: the decoder of the published dense models, which read images too."""
QWEN3_5_MOE_WITH_IMAGES = _architecture(_MIXTURE_3_5, has_mixture=True, has_images=True)
"""`Qwen3_5MoeForConditionalGeneration`: the decoder of the published mixtures of experts, which read images too."""
