"""Qwen2-MoE (Qwen1.5-MoE, Qwen2-57B-A14B) and Qwen3-MoE as graphs: Qwen's decoders with mixture-of-experts layers.

Qwen2-MoE has a shared expert in addition to the routed experts (Yang et al. 2024, arXiv:2407.10671); Qwen3-MoE has no
shared expert (Yang et al. 2025, arXiv:2505.09388).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aethermind.checkpoint import StackedTensors, StoredTensors, expert_stacks
from aethermind.errors import ConfigError
from aethermind.model import MixtureConfig, read_decoder_config, read_mixture_config
from aethermind.model.blocks import DecoderVariant, VariantModel, mixture_mlps
from aethermind.model.known_fields import FieldTable, used

__all__ = ["QWEN2_MOE", "QWEN3_MOE"]

_COMMON: Mapping[str, Any] = {
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 32768,
    "sliding_window": 4096,
    "norm_topk_prob": False,
    "decoder_sparse_step": 1,
}
_QWEN2_MOE: Mapping[str, Any] = {
    **_COMMON,
    "num_experts": 60,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
}
_QWEN3_MOE: Mapping[str, Any] = {
    **_COMMON,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
}

_MIXTURE_FIELDS: FieldTable = {
    **used("are sizes of MoE layers", "num_experts", "num_local_experts", "num_experts_per_tok"),
    **used("are sizes of MoE layers", "moe_intermediate_size"),
    **used("says whether a token's top-k expert weights are normalised", "norm_topk_prob"),
    **used("say which layers are MoE layers", "decoder_sparse_step", "mlp_only_layers"),
}
_QWEN2_MOE_FIELDS: FieldTable = {
    **_MIXTURE_FIELDS,
    **used("is the size of the shared expert", "shared_expert_intermediate_size"),
    **used("says whether Q, K and V have biases", "qkv_bias"),
}
_QWEN3_MOE_FIELDS: FieldTable = {
    **_MIXTURE_FIELDS,
    **used("says whether projections of attention have biases", "attention_bias"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class QwenMoe(VariantModel):
    """A Qwen model with MoE layers."""

    mixture: MixtureConfig

    def adapt(self, stored: StoredTensors) -> StoredTensors:
        """Stack the experts of each layer."""
        stacks = expert_stacks(stored, self.mixture.expert_modules, self.mixture.num_experts)
        return StackedTensors(stored, stacks)


class Qwen2MoeArchitecture:
    """`Qwen2MoeForCausalLM`: Qwen1.5-MoE and Qwen2-57B-A14B."""

    ignored_names = ("lm_head.weight", "*.rotary_emb.inv_freq")
    known_fields = _QWEN2_MOE_FIELDS

    def create(self, raw: Mapping[str, Any]) -> QwenMoe:
        if raw.get("use_sliding_window") and raw.get("layer_types") is None:
            raise ConfigError(
                "use_sliding_window is true in config.json, which transformers versions interpret differently for this "
                "architecture. Add layer_types, which gives the attention type of each layer."
            )
        config = read_decoder_config(raw, defaults=_QWEN2_MOE)
        shared_width = "shared_expert_intermediate_size"
        mixture = read_mixture_config(raw, config.num_hidden_layers, defaults=_QWEN2_MOE, shared_width=shared_width)
        variant = DecoderVariant(has_qkv_bias=bool(raw.get("qkv_bias", True)), mlp=mixture_mlps(config, mixture))
        return QwenMoe(config, variant, mixture=mixture)


class Qwen3MoeArchitecture:
    """`Qwen3MoeForCausalLM`: Qwen3-30B-A3B and Qwen3-235B-A22B. A sliding window applies to all layers."""

    ignored_names = ("lm_head.weight", "*.rotary_emb.inv_freq")
    known_fields = _QWEN3_MOE_FIELDS

    def create(self, raw: Mapping[str, Any]) -> QwenMoe:
        has_bias = bool(raw.get("attention_bias", False))
        config = read_decoder_config({**raw, "max_window_layers": 0}, defaults=_QWEN3_MOE)
        mixture = read_mixture_config(raw, config.num_hidden_layers, defaults=_QWEN3_MOE)
        variant = DecoderVariant(
            has_qkv_bias=has_bias, has_output_bias=has_bias, has_qk_norm=True, mlp=mixture_mlps(config, mixture)
        )
        return QwenMoe(config, variant, mixture=mixture)


QWEN2_MOE = Qwen2MoeArchitecture()
QWEN3_MOE = Qwen3MoeArchitecture()
