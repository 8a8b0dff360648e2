"""DeepSeek V2 and V3 as graphs: latent attention, and mixtures of experts with shared experts after dense layers.

DeepSeek-V2 (2024, arXiv:2405.04434) chooses experts by a softmax, in its larger model within groups. DeepSeek-V3 (2024,
arXiv:2412.19437), R1 and Kimi K2 choose them by sigmoids with a bias that balances load. The layers after V3's last one
predict further tokens (MTP), which are drafts for speculative decoding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aethermind.checkpoint import StackedTensors, StoredTensors, expert_stacks
from aethermind.errors import ConfigError
from aethermind.model import (
    LayerCache,
    MixtureConfig,
    MTPModule,
    positive_int,
    read_decoder_config,
    read_deepseek_mixture,
)
from aethermind.model.blocks import (
    DecoderVariant,
    LatentAttention,
    VariantModel,
    mixture_mlps,
    split_latent_projections,
)
from aethermind.model.known_fields import FieldTable, ignored, refused, used

__all__ = ["DEEPSEEK_V2", "DEEPSEEK_V3"]

_COMMON: Mapping[str, Any] = {
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "moe_layer_freq": 1,
}
_V2: Mapping[str, Any] = {
    **_COMMON,
    "max_position_embeddings": 2048,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 1407,
    "first_k_dense_replace": 0,
    "routed_scaling_factor": 1.0,
    "topk_method": "greedy",
    "scoring_func": "softmax",
}
_V3: Mapping[str, Any] = {
    **_COMMON,
    "max_position_embeddings": 4096,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3,
    "n_group": 8,
    "topk_group": 4,
    "routed_scaling_factor": 2.5,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
}

_FIELDS: FieldTable = {
    **used("are ranks of latent attention", "kv_lora_rank", "q_lora_rank"),
    **used("are sizes of heads", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
    **used("are sizes of MoE layers", "n_routed_experts", "n_shared_experts", "num_experts_per_tok"),
    **used("are sizes of MoE layers", "moe_intermediate_size"),
    **used("say which layers are MoE layers", "first_k_dense_replace", "moe_layer_freq"),
    **used("say how the router chooses experts", "topk_method", "scoring_func", "n_group", "topk_group"),
    **used("is the factor of a token's expert weights", "routed_scaling_factor"),
    **ignored("follows from the sizes of heads", "head_dim", "qk_head_dim"),
    **ignored("all heads share the cached latent vectors", "num_key_value_heads"),
    **ignored("says the number of experts under a name of transformers", "num_experts", "num_local_experts"),
    **ignored("matters while a model is trained", "aux_loss_alpha", "seq_aux", "ep_size"),
    **used("is the number of layers that draft tokens", "num_nextn_predict_layers", "num_mtp_layers"),
    **refused("biases of latent attention are not computed; take a model without", attention_bias=False),
    **refused("biases of feed-forward networks are not computed; take a model without", mlp_bias=False),
}
_V2_FIELDS: FieldTable = {
    **_FIELDS,
    **refused("versions of this model disagree about it; take one where it is false", norm_topk_prob=False),
}
_V3_FIELDS: FieldTable = {
    **_FIELDS,
    **used("says whether a token's top-k expert weights are normalised", "norm_topk_prob"),
    **used("says whether rotated pairs are neighbours", "rope_interleave"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSeek(VariantModel):
    """A DeepSeek model."""

    attention: LatentAttention
    mixture: MixtureConfig

    def cache_layout(self) -> tuple[LayerCache, ...]:
        """Every layer caches latent vectors and rotated keys."""
        return (self.attention.cache,) * self.config.num_hidden_layers

    def adapt(self, stored: StoredTensors) -> StoredTensors:
        """Stack the experts of each layer, and divide the projections of latent vectors to keys and values."""
        stacks = expert_stacks(stored, self.mixture.expert_modules, self.mixture.num_experts)
        stacks = {**stacks, **split_latent_projections(self.attention)}
        return StackedTensors(stored, stacks, num_layers=self.config.num_hidden_layers)


@dataclass(frozen=True, slots=True)
class DeepSeekArchitecture:
    """`DeepseekV2ForCausalLM` (V2, V2-Lite) or `DeepseekV3ForCausalLM` (V3, R1, Kimi K2)."""

    defaults: Mapping[str, Any]
    known_fields: FieldTable

    ignored_names = ("lm_head.weight", "*.rotary_emb.inv_freq")

    def create_mtp(self, raw: Mapping[str, Any]) -> MTPModule | None:
        """Create the MTP module from the first of the layers that draft tokens; None if there are none."""
        return MTPModule.behind_layers(self.create, raw)

    def create(self, raw: Mapping[str, Any]) -> DeepSeek:
        """Create the model of a config.json; ConfigError names a bad or unsupported field."""
        fields = {**self.defaults, **{name: value for name, value in raw.items() if value is not None}}
        rope_dim = positive_int(fields, "qk_rope_head_dim")
        sizes = {"head_dim": rope_dim, "num_key_value_heads": fields.get("num_attention_heads")}
        config = read_decoder_config({**raw, **sizes}, defaults=self.defaults)
        if any(config.sliding_windows):
            raise ConfigError(
                "Latent attention with a sliding window (config.json) is not computed; take another model."
            )
        # A q_lora_rank of null means that the projection of queries has full rank; a missing one has the default.
        has_q_lora = raw.get("q_lora_rank", self.defaults["q_lora_rank"]) is not None
        nope_dim = positive_int(fields, "qk_nope_head_dim")
        attention = LatentAttention(
            config,
            q_lora_rank=positive_int(fields, "q_lora_rank") if has_q_lora else 0,
            kv_lora_rank=positive_int(fields, "kv_lora_rank"),
            qk_nope_head_dim=nope_dim,
            qk_rope_head_dim=rope_dim,
            v_head_dim=positive_int(fields, "v_head_dim"),
            scale=(nope_dim + rope_dim) ** -0.5 * config.rope.score_scale,
            is_interleaved=bool(fields.get("rope_interleave", True)),
        )
        mixture = read_deepseek_mixture(fields, config.num_hidden_layers)
        variant = DecoderVariant(attention=attention, mlp=mixture_mlps(config, mixture))
        return DeepSeek(config, variant, attention=attention, mixture=mixture)


DEEPSEEK_V2 = DeepSeekArchitecture(_V2, _V2_FIELDS)
DEEPSEEK_V3 = DeepSeekArchitecture(_V3, _V3_FIELDS)
