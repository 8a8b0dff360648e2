"""Mixtral and OLMoE as graphs: the common decoder with mixtures of experts in all layers.

Mixtral (Jiang et al. 2024, arXiv:2401.04088) renormalises the weights of a token's experts. OLMoE (Muennighoff et al.
2024, arXiv:2409.02060) does so only if its configuration says so, and norms queries and keys over all heads of a token
at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from aethermind.checkpoint import StackedTensors, StoredTensors, TensorStack, expert_stacks
from aethermind.model import (
    DecoderConfig,
    MixtureConfig,
    positive_number,
    read_decoder_config,
    read_mixture_config,
)
from aethermind.model.blocks import DecoderVariant, VariantModel, mixture_mlps
from aethermind.model.known_fields import FieldTable, ignored, used

__all__ = ["MIXTRAL", "OLMOE"]

_MIXTRAL: Mapping[str, Any] = {
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 131072,
    "num_key_value_heads": 8,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
}
_OLMOE: Mapping[str, Any] = {
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 4096,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "norm_topk_prob": False,
}

_MIXTRAL_FIELDS: FieldTable = {
    **used("are sizes of MoE layers", "num_experts", "num_local_experts", "num_experts_per_tok"),
    **ignored("matters while a model is trained", "router_jitter_noise"),
    **ignored("the tensors say it: Mixtral has no biases", "attention_bias"),
}
_OLMOE_FIELDS: FieldTable = {
    **used("are sizes of MoE layers", "num_experts", "num_local_experts", "num_experts_per_tok"),
    **used("says whether a token's top-k expert weights are normalised", "norm_topk_prob"),
    **used("says whether projections of attention have biases", "attention_bias"),
    **used("is the limit of queries, keys and values", "clip_qkv"),
}

_STORED_MLP = "block_sparse_moe"
"""The name of Mixtral's feed-forward networks in Hugging Face's checkpoints. GGUF files have the usual names."""
_STORED_PROJECTIONS = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseLlama(VariantModel):
    """A decoder whose layers are all mixtures of experts."""

    mixture: MixtureConfig

    def adapt(self, stored: StoredTensors) -> StoredTensors:
        """Stack the experts of each layer, and rename Mixtral's networks and projections."""
        layers = [f"model.layers.{layer}" for layer in self.mixture.sparse_layers]
        routers = {f"{base}.mlp.gate.weight": f"{base}.{_STORED_MLP}.gate.weight" for base in layers}
        if not set(routers.values()) <= set(stored.names):
            stacks = expert_stacks(stored, self.mixture.expert_modules, self.mixture.num_experts)
            return StackedTensors(stored, stacks)
        modules = {f"{base}.mlp.experts": f"{base}.{_STORED_MLP}.experts" for base in layers}
        stacks = expert_stacks(stored, modules, self.mixture.num_experts, _STORED_PROJECTIONS)
        return StackedTensors(stored, {**stacks, **{name: TensorStack((old,)) for name, old in routers.items()}})


class MixtralArchitecture:
    """`MixtralForCausalLM`: Mixtral 8x7B and 8x22B. A sliding window applies to all layers."""

    ignored_names = ("lm_head.weight", "*.rotary_emb.inv_freq")
    known_fields = _MIXTRAL_FIELDS

    def create(self, raw: Mapping[str, Any]) -> SparseLlama:
        has_window = raw.get("sliding_window") is not None and raw.get("layer_types") is None
        windows = {"use_sliding_window": True, "max_window_layers": 0} if has_window else {}
        config = read_decoder_config({**raw, **windows}, defaults=_MIXTRAL)
        return _sparse(raw, config, _MIXTRAL, DecoderVariant())


class OlmoeArchitecture:
    """`OlmoeForCausalLM`: OLMoE-1B-7B."""

    ignored_names = ("lm_head.weight", "*.rotary_emb.inv_freq")
    known_fields = _OLMOE_FIELDS

    def create(self, raw: Mapping[str, Any]) -> SparseLlama:
        config = read_decoder_config(raw, defaults=_OLMOE)
        has_bias = bool(raw.get("attention_bias", False))
        variant = DecoderVariant(
            has_qkv_bias=has_bias,
            has_output_bias=has_bias,
            has_qk_norm=True,
            is_qk_norm_whole=True,
            qkv_limit=0.0 if raw.get("clip_qkv") is None else positive_number(raw, "clip_qkv"),
        )
        return _sparse(raw, config, _OLMOE, variant)


def _sparse(
    raw: Mapping[str, Any],
    config: DecoderConfig,
    defaults: Mapping[str, Any],
    variant: DecoderVariant,
) -> SparseLlama:
    """Return a model whose layers are all mixtures; `intermediate_size` in config.json is that of an expert."""
    mixture = read_mixture_config(raw, config.num_hidden_layers, defaults=defaults, width="intermediate_size")
    return SparseLlama(config, replace(variant, mlp=mixture_mlps(config, mixture)), mixture=mixture)


MIXTRAL = MixtralArchitecture()
OLMOE = OlmoeArchitecture()
