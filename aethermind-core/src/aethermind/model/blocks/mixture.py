"""A mixture of experts: the feed-forward network of sparse layers (Shazeer et al. 2017, arXiv:1701.06538).

Shapes: T tokens, D hidden_size, E experts, A experts of a token, I the intermediate size of an expert, S that of the
shared expert.
"""

from __future__ import annotations

from dataclasses import dataclass

from aethermind.graph.builder import GraphBuilder
from aethermind.graph.ir import Value
from aethermind.hal.dtype import DType
from aethermind.model.blocks.decoder import FeedForward
from aethermind.model.blocks.layers import swiglu_mlp
from aethermind.model.config import DecoderConfig
from aethermind.model.mixture import MixtureConfig

__all__ = ["mixture_mlps", "moe_mlp"]


def mixture_mlps(config: DecoderConfig, mixture: MixtureConfig, names: str = "model.layers.{layer}.mlp") -> FeedForward:
    """Return a `DecoderVariant.mlp` that writes `moe_mlp` in sparse layers and `swiglu_mlp` in dense ones.

    `names` are the networks' names, with `{layer}` for the number of the layer.
    """
    return _MixtureMlps(config, mixture, names)


@dataclass(frozen=True, slots=True)
class _MixtureMlps:
    """The function of `mixture_mlps`, a dataclass and no closure, so that models of one configuration are equal."""

    config: DecoderConfig
    mixture: MixtureConfig
    names: str

    def __call__(self, builder: GraphBuilder, x_TD: Value, layer: int) -> Value:
        prefix = self.names.format(layer=layer)
        if self.mixture.is_sparse[layer]:
            return moe_mlp(builder, x_TD, self.config, self.mixture, prefix)
        return swiglu_mlp(builder, x_TD, self.config, prefix)


def moe_mlp(builder: GraphBuilder, x_TD: Value, config: DecoderConfig, mixture: MixtureConfig, prefix: str) -> Value:
    """Write the weighted sum of the experts that the router selects for each token, [T, D].

    Weights: the router `{prefix}.gate.weight` [E, D], and the experts as stacks, expert after expert (see
    `checkpoint.expert_stacks`): `{prefix}.experts.gate_proj.weight` and `up_proj` [E · I, D], `down_proj` [E · D, I].
    With a correction bias of the selection (DeepSeek-V3): `{prefix}.gate.e_score_correction_bias` f32[E]. With a shared
    expert, which all tokens use: `{prefix}.shared_experts.gate_proj`, `up_proj` [S, D], `down_proj` [D, S]. If the
    shared expert has a sigmoid gate (Qwen2-MoE), its name is `shared_expert`, and the gate is
    `{prefix}.shared_expert_gate.weight` [1, D].
    """
    hidden, num_experts, width = config.hidden_size, mixture.num_experts, mixture.width
    router_ED = builder.parameter(f"{prefix}.gate.weight", (num_experts, hidden))
    gate = builder.parameter(f"{prefix}.experts.gate_proj.weight", (num_experts * width, hidden))
    up = builder.parameter(f"{prefix}.experts.up_proj.weight", (num_experts * width, hidden))
    down = builder.parameter(f"{prefix}.experts.down_proj.weight", (num_experts * hidden, width))
    router, correction_E = mixture.router, None
    if router.has_correction_bias:
        correction_E = builder.parameter(f"{prefix}.gate.e_score_correction_bias", (num_experts,), DType.FLOAT32)
    with builder.scope(prefix):
        logits_TE = builder.op("router_logits", x_TD, router_ED)
        ids_TA, weights_TA = builder.op(
            "router_topk",
            logits_TE,
            correction_E,
            k=mixture.num_experts_per_tok,
            sigmoid=router.is_sigmoid,
            renormalize=mixture.renormalize,
            num_groups=router.num_groups,
            top_groups=router.top_groups,
            group_score_k=router.group_score_k,
            scale=router.scale,
        )
        out_TD: Value = builder.op("moe_swiglu", x_TD, ids_TA, weights_TA, gate, up, down, num_experts=num_experts)
    if mixture.shared_width:
        shared_TD = _shared_expert(builder, x_TD, config, mixture, prefix)
        with builder.scope(prefix):
            out_TD = builder.op("add", out_TD, shared_TD)
    return out_TD


def _shared_expert(
    builder: GraphBuilder, x_TD: Value, config: DecoderConfig, mixture: MixtureConfig, prefix: str
) -> Value:
    """Write the shared expert, times its gate if it has one. A gate is a router with one expert: [T, D]."""
    name = "shared_expert" if mixture.has_shared_gate else "shared_experts"
    out_TD = swiglu_mlp(builder, x_TD, config, f"{prefix}.{name}", width=mixture.shared_width)
    if not mixture.has_shared_gate:
        return out_TD
    gate_1D = builder.parameter(f"{prefix}.shared_expert_gate.weight", (1, config.hidden_size))
    with builder.scope(f"{prefix}.shared_expert_gate"):
        logits_T1 = builder.op("router_logits", x_TD, gate_1D)
        _, scale_T1 = builder.op("router_topk", logits_T1, None, k=1, sigmoid=True)
        scaled_TD: Value = builder.op("moe_combine", builder.op("split_last", out_TD, count=1), scale_T1)
    return scaled_TD
