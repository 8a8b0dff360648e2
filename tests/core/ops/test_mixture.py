"""Mixtures of experts compute what the modules of transformers compute."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import numpy as np
import pytest
import torch
from transformers import DeepseekV3Config, GptOssConfig, MixtralConfig, OlmoeConfig, Qwen2MoeConfig, Qwen3MoeConfig
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts, GptOssTopKRouter
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock
from transformers.models.olmoe.modeling_olmoe import OlmoeSparseMoeBlock
from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeSparseMoeBlock
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

from aethermind.dispatch.reference import ReferenceRunner
from aethermind.eager import Eager
from aethermind.errors import OperatorError
from aethermind.ops import catalog
from aethermind.ops.operator import OperatorRegistry

OPS = ReferenceRunner(OperatorRegistry(catalog.load()))
T, D, E, A, I = 37, 24, 8, 3, 10  # noqa: E741
ROUTER_TOLERANCE = 2e-6
"""Routers of transformers compute probabilities in float32, whatever the model's type is."""

Array = np.ndarray[Any, Any]


def randomised(module: torch.nn.Module) -> torch.nn.Module:
    """The module in float64 with random weights, and computed expert by expert."""
    torch.manual_seed(5)
    module = module.double().eval()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
    for part in module.modules():
        if hasattr(part, "config"):
            part.config._experts_implementation = "eager"
    return module


def numbers(tensor: torch.Tensor) -> Array:
    return tensor.detach().numpy()


def random_tokens() -> torch.Tensor:
    return torch.randn(1, T, D, dtype=torch.float64, generator=torch.Generator().manual_seed(9))


def swiglu(x: Array, ids: Array, weights: Array, experts: Any, **attributes: float) -> Array:
    """`moe_swiglu` with the fused weights of a module."""
    gate, up = np.split(numbers(experts.gate_up_proj), 2, axis=1)
    stacks = [stack.reshape(-1, stack.shape[-1]) for stack in (gate, up, numbers(experts.down_proj))]
    return OPS.op("moe_swiglu", x, ids, weights, *stacks, None, None, None, num_experts=E, **attributes)


SIZES = {"hidden_size": D, "num_experts_per_tok": A}
QWEN = {**SIZES, "num_experts": E, "moe_intermediate_size": I}
BLOCKS = [
    pytest.param(Qwen3MoeSparseMoeBlock, Qwen3MoeConfig(**QWEN, norm_topk_prob=True), True, id="qwen3_moe"),
    pytest.param(Qwen3MoeSparseMoeBlock, Qwen3MoeConfig(**QWEN, norm_topk_prob=False), False, id="qwen3_moe_plain"),
    pytest.param(
        MixtralSparseMoeBlock, MixtralConfig(**SIZES, num_local_experts=E, intermediate_size=I), True, id="mixtral"
    ),
    pytest.param(OlmoeSparseMoeBlock, OlmoeConfig(**SIZES, num_experts=E, intermediate_size=I), False, id="olmoe"),
    pytest.param(
        Qwen2MoeSparseMoeBlock,
        Qwen2MoeConfig(**QWEN, shared_expert_intermediate_size=14),
        False,
        id="qwen2_moe",
    ),
]


@pytest.mark.parametrize(("block", "config", "renormalize"), BLOCKS)
def test_blocks_compute_what_transformers_computes(block: Any, config: Any, renormalize: bool) -> None:
    module = randomised(block(config))
    hidden = random_tokens()
    expected = module(hidden)
    x = numbers(hidden[0])
    logits = OPS.op("router_logits", x, numbers(module.gate.weight), None)
    ids, weights = OPS.op("router_topk", logits, None, k=A, renormalize=renormalize)
    out = swiglu(x, ids, weights, module.experts)
    if hasattr(module, "shared_expert"):
        shared = module.shared_expert
        own = (numbers(one.weight) for one in (shared.gate_proj, shared.up_proj, shared.down_proj))
        score = OPS.op("router_logits", x, numbers(module.shared_expert_gate.weight), None)
        _, scale = OPS.op("router_topk", score, None, k=1, sigmoid=True)
        out = out + OPS.op("moe_combine", OPS.op("mlp_swiglu", x, *own)[:, None], scale)
    np.testing.assert_allclose(out, numbers(expected[0]), rtol=ROUTER_TOLERANCE, atol=ROUTER_TOLERANCE)


@pytest.mark.parametrize("renormalize", [True, False])
def test_deepseeks_router_chooses_within_groups(renormalize: bool) -> None:
    groups = {"n_routed_experts": 16, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5}
    config = DeepseekV3Config(**SIZES, **groups, moe_intermediate_size=I, norm_topk_prob=renormalize)
    module = randomised(DeepseekV3MoE(config))
    router = module.gate
    router.e_score_correction_bias = torch.linspace(-0.3, 0.3, 16)[torch.randperm(16)]
    x = random_tokens()[0].float()
    router.float()
    found = router(x)
    logits = numbers(x @ router.weight.T)
    ids, weights = OPS.op(
        "router_topk", logits, numbers(router.e_score_correction_bias), k=A, sigmoid=True, renormalize=renormalize,
        num_groups=4, top_groups=2, group_score_k=2, scale=2.5,
    )  # fmt: skip
    expected_weights, expected_ids = sorted(found[-2:], key=lambda one: one.dtype != torch.float32)
    order, expected_order = np.argsort(ids, axis=1), np.argsort(numbers(expected_ids), axis=1)
    np.testing.assert_array_equal(
        np.take_along_axis(ids, order, 1), np.take_along_axis(numbers(expected_ids), expected_order, 1)
    )
    np.testing.assert_allclose(
        np.take_along_axis(weights, order, 1),
        np.take_along_axis(numbers(expected_weights), expected_order, 1),
        rtol=1e-5,
    )


def test_gpt_oss_clamps_its_activations() -> None:
    config = GptOssConfig(**SIZES, num_local_experts=E, intermediate_size=I)
    config._experts_implementation = "eager"
    experts, router = randomised(GptOssExperts(config)), randomised(GptOssTopKRouter(config))
    with torch.no_grad():
        experts.gate_up_proj *= 12  # beyond the limit of 7
    x = random_tokens()[0]
    _, scores, chosen = router(x)
    expected = experts(x, chosen, scores)
    logits = OPS.op("router_logits", numbers(x), numbers(router.weight), numbers(router.bias))
    ids, weights = OPS.op("router_topk", logits, None, k=A, renormalize=True)
    np.testing.assert_array_equal(ids, numbers(chosen))
    np.testing.assert_allclose(weights, numbers(scores), rtol=1e-12)
    fused, biases = numbers(experts.gate_up_proj).swapaxes(1, 2), numbers(experts.gate_up_proj_bias)
    stacks = [fused[:, part::2].reshape(E * I, D) for part in range(2)]
    down = numbers(experts.down_proj).swapaxes(1, 2).reshape(E * D, I)
    bias = [biases[:, part::2].reshape(-1) for part in range(2)]
    out = OPS.op(
        "moe_swiglu", numbers(x), ids, weights, *stacks, down, *bias, numbers(experts.down_proj_bias).reshape(-1),
        num_experts=E, alpha=1.702, limit=7.0, up_offset=1.0,
    )  # fmt: skip
    np.testing.assert_allclose(out, numbers(expected), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("operator", ["moe_swiglu", "moe_gate_up_silu", "moe_linear"])
def test_ids_beyond_the_experts_are_refused(operator: str) -> None:
    x, inner = np.zeros((2, 4), np.float32), np.zeros((2, 1, 3), np.float32)
    ids = np.array([[1], [2]], np.int32)
    gate, down = np.zeros((6, 4), np.float32), np.zeros((8, 3), np.float32)
    weights = np.ones((2, 1), np.float32)
    inputs = {
        "moe_swiglu": (x, ids, weights, gate, gate, down),
        "moe_gate_up_silu": (x, ids, gate, gate),
        "moe_linear": (inner, ids, down),
    }[operator]
    with closing(Eager(device="numpy")) as ops, pytest.raises(OperatorError, match="ids holds 2, which is not from 0"):
        getattr(ops, operator)(*inputs, num_experts=2)
