"""The configuration of a mixture of experts, read from Hugging Face's config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aethermind.errors import ConfigError
from aethermind.model.config import positive_int, positive_number

__all__ = ["MixtureConfig", "RouterConfig", "read_deepseek_mixture", "read_mixture_config"]


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """How a router scores and selects experts (operator `router_topk`); by default by a softmax over all experts.

    Attributes:
        is_sigmoid: whether scores are sigmoids instead of a softmax.
        has_correction_bias: whether a bias of each expert, the parameter `gate.e_score_correction_bias`, is added to
            scores for the selection, but not for the weights of experts.
        num_groups, top_groups: experts are divided into `num_groups` groups of neighbours, and those of a token are
            selected from its `top_groups` best groups.
        group_score_k: the score of a group is the sum of this many of its highest scores.
        scale: the factor of all weights of experts.
    """

    is_sigmoid: bool = False
    has_correction_bias: bool = False
    num_groups: int = 1
    top_groups: int = 1
    group_score_k: int = 1
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class MixtureConfig:
    """The feed-forward networks of a decoder in which some layers are mixtures of experts.

    Attributes:
        num_experts: the number of experts of a layer.
        num_experts_per_tok: the number of experts that a token uses.
        width: the intermediate size of an expert.
        renormalize: whether the router's probabilities of a token's experts are divided by their sum.
        is_sparse: for each layer, whether it is a mixture of experts; the others are dense.
        shared_width: the intermediate size of the shared expert, which all tokens use in addition; 0 for none.
        has_shared_gate: whether the output of the shared expert is multiplied by a sigmoid gate.
        router: how experts are selected.
    """

    num_experts: int
    num_experts_per_tok: int
    width: int
    renormalize: bool
    is_sparse: tuple[bool, ...]
    shared_width: int = 0
    has_shared_gate: bool = True
    router: RouterConfig = RouterConfig()

    @property
    def sparse_layers(self) -> tuple[int, ...]:
        """The numbers of the layers that are mixtures."""
        return tuple(layer for layer, is_sparse in enumerate(self.is_sparse) if is_sparse)

    @property
    def expert_modules(self) -> dict[str, str]:
        """The argument `modules` of `checkpoint.expert_stacks` for checkpoints that have the graph's names."""
        return {name: name for name in (f"model.layers.{layer}.mlp.experts" for layer in self.sparse_layers)}


_COUNTS = ("num_experts", "num_local_experts")


def read_mixture_config(
    raw: Mapping[str, Any],
    num_layers: int,
    *,
    defaults: Mapping[str, Any],
    width: str = "moe_intermediate_size",
    shared_width: str | None = None,
) -> MixtureConfig:
    """Read the fields about experts of config.json, whose contents are `raw`. `defaults` are the architecture's.

    The number of experts is `num_experts` or, in some versions of transformers, `num_local_experts`. `width` and
    `shared_width` are the names of the fields with the intermediate sizes of an expert and of the shared expert. Layer
    i is a mixture if `decoder_sparse_step` divides i + 1 and `mlp_only_layers` does not list i. ConfigError names a bad
    field.
    """
    fields = {**defaults, **{name: value for name, value in raw.items() if value is not None}}
    count = next((name for name in _COUNTS if raw.get(name) is not None), _COUNTS[0])
    num_experts, num_chosen = positive_int(fields, count), positive_int(fields, "num_experts_per_tok")
    if num_chosen > num_experts:
        raise ConfigError(f"num_experts_per_tok ({num_chosen}) is larger than {count} ({num_experts}) in config.json.")
    renormalize = fields.get("norm_topk_prob", False)
    if not isinstance(renormalize, bool):
        raise ConfigError(f"norm_topk_prob in config.json should be true or false, got {renormalize!r}.")
    step, dense = positive_int(fields, "decoder_sparse_step", default=1), fields.get("mlp_only_layers", [])
    if not isinstance(dense, list) or not all(isinstance(each, int) and not isinstance(each, bool) for each in dense):
        raise ConfigError(f"mlp_only_layers in config.json should be a list of layers, got {dense!r:.80}.")
    return MixtureConfig(
        num_experts,
        num_chosen,
        positive_int(fields, width),
        renormalize,
        tuple((layer + 1) % step == 0 and layer not in dense for layer in range(num_layers)),
        0 if shared_width is None else positive_int(fields, shared_width),
    )


def read_deepseek_mixture(fields: Mapping[str, Any], num_layers: int) -> MixtureConfig:
    """Read the fields about experts with DeepSeek's names, which GLM-4.5 has as well; `fields` include defaults.

    Layer i is a mixture if i is at least `first_k_dense_replace` and a multiple of `moe_layer_freq`. The
    `n_shared_experts` shared experts are computed as one expert of that many times the width. `topk_method` is greedy,
    group_limited_greedy or noaux_tc (with a correction bias), `scoring_func` softmax or sigmoid. ConfigError names a
    bad field.
    """
    num_experts, num_chosen = positive_int(fields, "n_routed_experts"), positive_int(fields, "num_experts_per_tok")
    width, step = positive_int(fields, "moe_intermediate_size"), positive_int(fields, "moe_layer_freq")
    first, shared = (_count(fields, name) for name in ("first_k_dense_replace", "n_shared_experts"))
    router = _read_router(fields, num_experts)
    available = num_experts * router.top_groups // router.num_groups
    if num_chosen > available:
        raise ConfigError(f"num_experts_per_tok ({num_chosen}) in config.json is more than the {available} experts.")
    return MixtureConfig(
        num_experts,
        num_chosen,
        width,
        bool(fields.get("norm_topk_prob", router.is_sigmoid)),
        tuple(layer >= first and layer % step == 0 for layer in range(num_layers)),
        shared * width,
        has_shared_gate=False,
        router=router,
    )


_SCALE = "routed_scaling_factor"
_METHODS = ("greedy", "group_limited_greedy", "noaux_tc")


def _read_router(fields: Mapping[str, Any], num_experts: int) -> RouterConfig:
    method, scoring, scale = fields["topk_method"], fields["scoring_func"], positive_number(fields, _SCALE)
    if method not in _METHODS:
        raise ConfigError(f"topk_method {method!r} in config.json is none of {', '.join(_METHODS)}.")
    if scoring not in ("softmax", "sigmoid"):
        raise ConfigError(f"scoring_func {scoring!r} in config.json is neither softmax nor sigmoid.")
    has_bias = method == "noaux_tc"
    router = RouterConfig(is_sigmoid=scoring == "sigmoid", has_correction_bias=has_bias, scale=scale)
    if method == "greedy":
        return router
    num_groups, top_groups = positive_int(fields, "n_group"), positive_int(fields, "topk_group")
    if num_experts % num_groups or top_groups > num_groups:
        raise ConfigError(
            f"n_group ({num_groups}) in config.json should divide n_routed_experts ({num_experts}), and topk_group "
            f"({top_groups}) be at most n_group."
        )
    # The score of a group is that of its best expert, or with a correction bias the sum of its best two.
    group_score_k = min(2, num_experts // num_groups) if has_bias else 1
    return RouterConfig(router.is_sigmoid, has_bias, num_groups, top_groups, group_score_k, router.scale)


def _count(fields: Mapping[str, Any], name: str) -> int:
    value = fields[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ConfigError(f"{name} in config.json should be 0 or a positive integer, got {value!r}.")
    return value
