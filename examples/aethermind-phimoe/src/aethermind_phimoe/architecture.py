"""Phi-3.5-MoE (Abdin et al. 2024, arXiv:2404.14219): the common decoder, with layer norms, biases in attention, and a
mixture whose router is this package's own.

Shapes: T tokens, D hidden_size, E experts, I the intermediate size of an expert.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aethermind.checkpoint import StackedTensors, StoredTensors, TensorStack, expert_stacks
from aethermind.errors import ConfigError
from aethermind.graph import GraphBuilder, Value
from aethermind.model import DecoderConfig, read_decoder_config
from aethermind.model.blocks import DecoderVariant, VariantModel
from aethermind.model.known_fields import FieldTable, ignored, refused, used

__all__ = ["PHIMOE"]

_DEFAULTS: Mapping[str, Any] = {
    "max_position_embeddings": 131072,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e6,
}
_FIELDS: FieldTable = {
    **used("is the number of experts in each layer", "num_local_experts"),
    **used("says how close logits are that share the weight of an expert", "router_jitter_noise"),
    **used("say whether attention and the head have biases", "attention_bias", "lm_head_bias"),
    **ignored("is noise of training", "input_jitter_noise"),
    **refused("the router chooses two experts; take another model", num_experts_per_tok=2),
}


@dataclass(frozen=True, slots=True)
class Mixture:
    """Writes the feed-forward networks of the layers: a router, and the sum of the two experts that it chooses."""

    config: DecoderConfig
    num_experts: int
    jitter: float

    def __call__(self, builder: GraphBuilder, x_TD: Value, layer: int) -> Value:
        """Return the output for x, [T, D]."""
        name = f"model.layers.{layer}.mlp"
        num_experts, hidden, width = self.num_experts, self.config.hidden_size, self.config.intermediate_size
        router_ED = builder.parameter(f"{name}.gate.weight", (num_experts, hidden))
        gate = builder.parameter(f"{name}.experts.gate_proj.weight", (num_experts * width, hidden))
        up = builder.parameter(f"{name}.experts.up_proj.weight", (num_experts * width, hidden))
        down = builder.parameter(f"{name}.experts.down_proj.weight", (num_experts * hidden, width))
        with builder.scope(name):
            logits_TE = builder.op("router_logits", x_TD, router_ED)
            ids_TA, weights_TA = builder.op("sparse_mixer", logits_TE, jitter=self.jitter)
            out_TD: Value = builder.op("moe_swiglu", x_TD, ids_TA, weights_TA, gate, up, down, num_experts=num_experts)
        return out_TD


@dataclass(frozen=True, slots=True, kw_only=True)
class Phimoe(VariantModel):
    """The common decoder with mixtures, whose experts a checkpoint stores one by one."""

    num_experts: int

    def adapt(self, stored: StoredTensors) -> StoredTensors:
        """Stack the experts of each layer."""
        layers = [f"model.layers.{layer}" for layer in range(self.config.num_hidden_layers)]
        modules = {f"{layer}.mlp.experts": f"{layer}.block_sparse_moe.experts" for layer in layers}
        projections = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
        stacks = expert_stacks(stored, modules, self.num_experts, projections)
        routers = {
            f"{layer}.mlp.gate.weight": TensorStack((f"{layer}.block_sparse_moe.gate.weight",)) for layer in layers
        }
        return StackedTensors(stored, {**stacks, **routers})


class PhimoeArchitecture:
    """`PhimoeForCausalLM`: Phi-3.5-MoE."""

    ignored_names = ("*.rotary_emb.inv_freq",)
    known_fields = _FIELDS

    def create(self, raw: Mapping[str, Any]) -> Phimoe:
        """Create the model of a config.json; ConfigError names a bad or unsupported field."""
        num_experts = raw.get("num_local_experts", 16)
        if isinstance(num_experts, bool) or not isinstance(num_experts, int) or num_experts < 2:
            raise ConfigError(
                f"num_local_experts in config.json should be an integer of 2 or more, got {num_experts!r}."
            )
        config = read_decoder_config({**raw, **_with_window(raw), **_with_rope(raw)}, defaults=_DEFAULTS)
        has_bias = bool(raw.get("attention_bias", False))
        variant = DecoderVariant(
            has_layer_norm=True,
            has_norm_bias=True,
            has_qkv_bias=has_bias,
            has_output_bias=has_bias,
            has_logits_bias=bool(raw.get("lm_head_bias", False)),
            mlp=Mixture(config, num_experts, float(raw.get("router_jitter_noise", 0.01))),
        )
        return Phimoe(config, variant, num_experts=num_experts)


def _with_window(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A sliding window applies to all layers."""
    return {} if raw.get("sliding_window") is None else {"use_sliding_window": True, "max_window_layers": 0}


def _with_rope(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Rotary scaling whose attention factor is given as short_mscale and long_mscale."""
    for name in ("rope_parameters", "rope_scaling"):
        rope = raw.get(name)
        if not isinstance(rope, Mapping) or "short_mscale" not in rope:
            continue
        factors = {rope[key] for key in ("short_mscale", "long_mscale")}
        if len(factors) > 1:
            raise ConfigError(
                f"short_mscale and long_mscale of {name} in config.json differ; this package has one attention factor."
            )
        others = {key: value for key, value in rope.items() if key not in ("short_mscale", "long_mscale")}
        return {name: {**others, "attention_factor": factors.pop()}}
    return {}


PHIMOE = PhimoeArchitecture()
