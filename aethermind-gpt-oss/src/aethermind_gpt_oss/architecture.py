"""gpt-oss (OpenAI 2025, arXiv:2508.10925) as a graph: mixtures of experts after attention with sinks.

Every second layer sees a window of 128 tokens. Each head has a sink, a learned score in the denominator of its softmax.
All projections have biases, also those of experts, whose SwiGLU is clamped and adds 1 to the up projection.

Shapes: T tokens, D hidden_size, E experts, A experts of a token, I the intermediate size of an expert.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aethermind.checkpoint import FusedSlice, StackedTensors, StoredTensors, TensorStack
from aethermind.graph import GraphBuilder, Value
from aethermind.model import (
    MixtureConfig,
    periodic_layer_types,
    positive_number,
    read_decoder_config,
    read_mixture_config,
)
from aethermind.model.blocks import DecoderVariant, VariantModel
from aethermind.model.known_fields import FieldTable, ignored, used

__all__ = ["GPT_OSS"]

_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 201088,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 36,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 150000.0,
    "sliding_window": 128,
    "num_experts": 128,
    "num_experts_per_tok": 4,
    "norm_topk_prob": True,
}
_YARN: Mapping[str, Any] = {
    "rope_type": "yarn",
    "factor": 32.0,
    "original_max_position_embeddings": 4096,
    "truncate": False,
}
"""The scaling of the rotary embedding if the configuration has none."""

_KNOWN_FIELDS: FieldTable = {
    **used("are sizes of MoE layers", "num_experts", "num_local_experts", "num_experts_per_tok"),
    **used("bounds the gate and up projections of experts", "swiglu_limit"),
    **used("is the gain of the sigmoid in the activation of experts", "swiglu_alpha"),
    **used("says whether projections of attention have biases", "attention_bias"),
    **ignored("is the older name of num_experts_per_tok", "experts_per_token"),
    **ignored("is the context before scaling, which rope_scaling has, too", "initial_context_length"),
}
_ROUTER = "model.layers.{layer}.mlp.router"
_EXPERTS = "model.layers.{layer}.mlp.experts"
_SINKS = "model.layers.{layer}.self_attn.sinks"


@dataclass(frozen=True, slots=True)
class GptOssExperts:
    """Builds the feed-forward networks of the layers: experts with biases and a clamped SwiGLU."""

    hidden_size: int
    mixture: MixtureConfig
    alpha: float
    limit: float

    def __call__(self, builder: GraphBuilder, x_TD: Value, layer: int) -> Value:
        """Build the sum of each token's experts, weighted by the softmax of their router's logits, [T, D].

        Weights: the router `mlp.router.weight` [E, D] and `bias` [E]; the experts as stacks, expert after expert:
        `mlp.experts.gate_proj.weight` and `up_proj` [E · I, D], `down_proj` [E · D, I], and their biases.
        """
        hidden, num_experts, width = self.hidden_size, self.mixture.num_experts, self.mixture.width
        router, experts = _ROUTER.format(layer=layer), _EXPERTS.format(layer=layer)
        shapes = {"gate_proj": (width, hidden), "up_proj": (width, hidden), "down_proj": (hidden, width)}
        router_ED = builder.parameter(f"{router}.weight", (num_experts, hidden))
        router_E = builder.parameter(f"{router}.bias", (num_experts,))
        weights = [
            builder.parameter(f"{experts}.{name}.weight", (num_experts * rows, columns))
            for name, (rows, columns) in shapes.items()
        ]
        biases = [
            builder.parameter(f"{experts}.{name}.bias", (num_experts * rows,)) for name, (rows, _) in shapes.items()
        ]
        with builder.scope(experts.removesuffix(".experts")):
            logits_TE = builder.op("router_logits", x_TD, router_ED, router_E)
            ids_TA, weights_TA = builder.op(
                "router_topk", logits_TE, None, k=self.mixture.num_experts_per_tok, renormalize=True
            )
            out_TD: Value = builder.op(
                "moe_swiglu",
                x_TD,
                ids_TA,
                weights_TA,
                *weights,
                *biases,
                num_experts=num_experts,
                alpha=self.alpha,
                limit=self.limit,
                up_offset=1.0,
            )
        return out_TD


@dataclass(frozen=True, slots=True, kw_only=True)
class GptOss(VariantModel):
    """A gpt-oss model."""

    mixture: MixtureConfig

    def adapt(self, stored: StoredTensors) -> StoredTensors:
        """Take the experts out of fused tensors, in which rows of gate and up projections alternate.

        Checkpoints have tensors for all experts of a layer, `gate_up_proj` [E, D, 2 · I] and `down_proj` [E, I, D] with
        their biases, or [E, 2 · I, D] and [E, D, I] in mxfp4. GGUF files have one for each projection, with biases
        [E, I] and [E, D].
        """
        names = set(stored.names)
        stacks: dict[str, TensorStack | FusedSlice] = {}
        for layer in self.mixture.sparse_layers:
            experts, sinks = _EXPERTS.format(layer=layer), _SINKS.format(layer=layer)
            if f"{sinks}.weight" in names:
                stacks[sinks] = TensorStack((f"{sinks}.weight",))
            for name, fused, begin, step in _PROJECTIONS:
                weight, bias = f"{experts}.{fused}", f"{experts}.{fused}_bias"
                if weight in names:
                    is_dense = stored.info(weight).weight_format is None
                    stacks[f"{experts}.{name}.weight"] = FusedSlice(weight, begin, None, step, is_transposed=is_dense)
                if bias in names:
                    stacks[f"{experts}.{name}.bias"] = FusedSlice(bias, begin, None, step)
                elif (bias := f"{experts}.{name}.bias") in names and len(stored.info(bias).shape) == 2:
                    stacks[bias] = FusedSlice(bias)
        return StackedTensors(stored, stacks)


_PROJECTIONS = (
    ("gate_proj", "gate_up_proj", 0, 2),
    ("up_proj", "gate_up_proj", 1, 2),
    ("down_proj", "down_proj", 0, 1),
)
"""For each projection of an expert: the fused tensor, the first row in it, and the distance between rows."""


class GptOssArchitecture:
    """`GptOssForCausalLM`: gpt-oss-20b and gpt-oss-120b."""

    ignored_names = ("lm_head.weight", "*.rotary_emb.inv_freq")
    known_fields = _KNOWN_FIELDS

    def create(self, raw: Mapping[str, Any]) -> GptOss:
        """Create the model of a config.json; ConfigError names a bad or unsupported field."""
        fields = {**raw, **_rope_fields(raw)}
        if raw.get("layer_types") is None:
            fields["layer_types"] = periodic_layer_types(raw, 2, default=_DEFAULTS["num_hidden_layers"])
        config = read_decoder_config(fields, defaults=_DEFAULTS)
        mixture = read_mixture_config(fields, config.num_hidden_layers, defaults=_DEFAULTS, width="intermediate_size")
        has_bias = raw.get("attention_bias") is not False
        alpha = positive_number(raw, "swiglu_alpha", default=1.702)
        limit = positive_number(raw, "swiglu_limit", default=7.0)
        variant = DecoderVariant(
            has_qkv_bias=has_bias,
            has_output_bias=has_bias,
            has_sinks=True,
            mlp=GptOssExperts(config.hidden_size, mixture, alpha, limit),
        )
        return GptOss(config, variant, mixture=mixture)


def _rope_fields(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scaling of the rotary embedding; .gguf files do not say whether bounds of YaRN's ramp are rounded."""
    if not raw.get("rope_parameters") and not raw.get("rope_scaling"):
        return {"rope_scaling": dict(_YARN)}
    if "yarn_truncate" in raw:
        return {"rope_scaling": {**raw["rope_scaling"], "truncate": raw["yarn_truncate"]}}
    return {}


GPT_OSS = GptOssArchitecture()
