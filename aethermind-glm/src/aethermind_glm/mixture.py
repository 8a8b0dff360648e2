"""GLM-4.5 as a graph: Llama's decoder with partial rotation of each head, and DeepSeek-V3's mixtures of experts.

GLM-4.5 (GLM-4.5 team 2025, arXiv:2508.06471). The layer after the last one predicts further tokens (MTP), which are
drafts for speculative decoding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aethermind.checkpoint import StackedTensors, StoredTensors, expert_stacks
from aethermind.model import MixtureConfig, MTPModule, read_decoder_config, read_deepseek_mixture
from aethermind.model.blocks import DecoderVariant, VariantModel, mixture_mlps
from aethermind.model.known_fields import FieldTable, ignored, used

__all__ = ["GLM4_MOE"]

_DEFAULTS: Mapping[str, Any] = {
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 131072,
    "num_key_value_heads": 8,
    "partial_rotary_factor": 0.5,
    "tie_word_embeddings": False,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 1408,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 1.0,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
}
_FIELDS: FieldTable = {
    **used("is the part of each head that is rotated", "partial_rotary_factor"),
    **used("says whether projections of queries, keys and values have biases", "attention_bias"),
    **used("says whether queries and keys of each head have norms", "use_qk_norm"),
    **used("are sizes of MoE layers", "n_routed_experts", "n_shared_experts", "num_experts_per_tok"),
    **used("are sizes of MoE layers", "moe_intermediate_size"),
    **used("say which layers are MoE layers", "first_k_dense_replace", "moe_layer_freq"),
    **used("say how the router chooses experts", "topk_method", "scoring_func", "n_group", "topk_group"),
    **used("says whether a token's top-k expert weights are normalised", "norm_topk_prob"),
    **used("is the factor of a token's expert weights", "routed_scaling_factor"),
    **ignored("says the number of experts under a name of transformers", "num_experts", "num_local_experts"),
    **used("is the number of layers that draft tokens", "num_nextn_predict_layers", "num_mtp_layers"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GlmMoe(VariantModel):
    """A GLM-4.5 model."""

    mixture: MixtureConfig

    def adapt(self, stored: StoredTensors) -> StoredTensors:
        """Stack the experts of each layer."""
        stacks = expert_stacks(stored, self.mixture.expert_modules, self.mixture.num_experts)
        return StackedTensors(stored, stacks, num_layers=self.config.num_hidden_layers)


class Glm4MoeArchitecture:
    """`Glm4MoeForCausalLM`: GLM-4.5, GLM-4.5-Air, GLM-4.6."""

    ignored_names = ("lm_head.weight", "*.rotary_emb.inv_freq")
    known_fields = _FIELDS

    def create_mtp(self, raw: Mapping[str, Any]) -> MTPModule | None:
        """Create the MTP module from the first of the layers that draft tokens; None if there are none."""
        return MTPModule.behind_layers(self.create, raw)

    def create(self, raw: Mapping[str, Any]) -> GlmMoe:
        """Create the model of a config.json; ConfigError names a bad or unsupported field."""
        config = read_decoder_config(raw, defaults=_DEFAULTS, has_partial_rotary=True)
        fields = {**_DEFAULTS, **{name: value for name, value in raw.items() if value is not None}}
        mixture = read_deepseek_mixture(fields, config.num_hidden_layers)
        variant = DecoderVariant(
            has_qkv_bias=bool(fields.get("attention_bias", False)),
            has_qk_norm=bool(fields.get("use_qk_norm", False)),
            mlp=mixture_mlps(config, mixture),
        )
        return GlmMoe(config, variant, mixture=mixture)


GLM4_MOE = Glm4MoeArchitecture()
