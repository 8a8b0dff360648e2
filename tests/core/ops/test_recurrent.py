"""Operators of recurrent layers compute what the modules of transformers compute, in any division into steps."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Mamba2Config, Qwen3NextConfig
from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

from aethermind.dispatch.reference import ReferenceRunner
from aethermind.errors import OperatorError
from aethermind.ops import catalog
from aethermind.ops.operator import OperatorRegistry

REGISTRY = OperatorRegistry(catalog.load())
OPS = ReferenceRunner(REGISTRY)
T, D = 70, 12
TOLERANCE = 2e-6
"""The scans of transformers compute in float32, whatever the model's type is."""

Array = np.ndarray[Any, Any]


def randomised(module: torch.nn.Module) -> torch.nn.Module:
    """The module in float64 with random weights."""
    torch.manual_seed(3)
    module = module.double().eval()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
    return module


def random_tokens() -> torch.Tensor:
    return torch.randn(1, T, D, dtype=torch.float64, generator=torch.Generator().manual_seed(9))


def weights_of(module: torch.nn.Module) -> dict[str, Array]:
    return {name: value.detach().numpy() for name, value in module.named_parameters()}


def in_steps(layer: Any, x: Array, *shapes: tuple[int, ...], bounds: tuple[int, ...] = (0, T)) -> Array:
    """The results of `layer(rows, states, tables)` for x in steps with these bounds, which returns states, too."""
    states, parts = [np.full((3, *shape), np.nan) for shape in shapes], []
    for begin, end in pairwise(bounds):
        tables = np.array([0, end - begin], np.int32), np.array([end], np.int32), np.array([2], np.int32)
        out, states = layer(x[begin:end], states, tables)
        parts.append(out)
    return np.concatenate(parts)


MAMBA2 = Mamba2Config(
    hidden_size=D, expand=2, num_heads=4, head_dim=6, state_size=10, n_groups=2, conv_kernel=4, chunk_size=16
)


def test_mamba2_is_the_mixer_of_transformers() -> None:
    module = randomised(Mamba2Mixer(MAMBA2, layer_idx=0))
    w, x = weights_of(module), random_tokens()
    inner, conv_dim = 24, 24 + 2 * 2 * 10

    def layer(rows: Array, states: Any, tables: Any) -> Any:
        z, xbc, dt = np.split(rows @ w["in_proj.weight"].T, [inner, inner + conv_dim], axis=1)
        taps = np.ascontiguousarray(w["conv1d.weight"][:, 0].T)
        xbc, conv_state = OPS.op("causal_conv1d", xbc, taps, w["conv1d.bias"], states[0], *tables, silu=True)
        out, state = OPS.op("ssd_scan", xbc, dt, w["A_log"], w["dt_bias"], w["D"], states[1], *tables)
        out = OPS.op("gated_rms_norm", out.reshape(len(rows), inner), z, w["norm.weight"], eps=1e-5, num_groups=2)
        return out @ w["out_proj.weight"].T, (conv_state, state)

    shapes = (3, conv_dim), (4, 10, 6)
    whole = in_steps(layer, x[0].numpy(), *shapes)
    np.testing.assert_allclose(whole, module(x)[0].detach().numpy(), rtol=TOLERANCE, atol=TOLERANCE)
    parts = in_steps(layer, x[0].numpy(), *shapes, bounds=(0, 1, 3, 40, T))
    np.testing.assert_allclose(parts, whole, rtol=1e-12, atol=1e-12)


QWEN3_NEXT = Qwen3NextConfig(
    hidden_size=D,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=10,
    linear_value_head_dim=6,
    layer_types=["linear_attention"],
    num_hidden_layers=1,
)


def test_the_gated_delta_rule_is_that_of_transformers() -> None:
    module = randomised(Qwen3NextGatedDeltaNet(QWEN3_NEXT, layer_idx=0))
    w, x = weights_of(module), random_tokens()
    qkvz, ba = (torch.from_numpy(x[0].numpy() @ w[f"in_proj_{name}.weight"].T)[None] for name in ("qkvz", "ba"))
    q, k, v, z, b, a = (part[0].numpy() for part in module.fix_query_key_value_ordering(qkvz, ba))
    projected = np.concatenate([*(part.reshape(T, -1) for part in (q, k, v, z)), b, a], axis=1)

    def layer(rows: Array, states: Any, tables: Any) -> Any:
        qkv, z, b, a = np.split(rows, [64, 88, 92], axis=1)
        taps = np.ascontiguousarray(w["conv1d.weight"][:, 0].T)
        qkv, conv_state = OPS.op("causal_conv1d", qkv, taps, None, states[0], *tables, silu=True)
        inputs = (qkv, a, b, w["A_log"], w["dt_bias"], states[1], *tables)
        out, state = OPS.op("gated_delta_rule", *inputs, scale=10**-0.5)
        z = z.reshape(-1, 4, 6)
        out = OPS.op("gated_rms_norm", out, z, w["norm.weight"], eps=1e-6, norm_before_gate=True)
        return out.reshape(len(rows), -1) @ w["out_proj.weight"].T, (conv_state, state)

    shapes = (3, 64), (4, 10, 6)
    whole = in_steps(layer, projected, *shapes)
    np.testing.assert_allclose(whole, module(x)[0].detach().numpy(), rtol=TOLERANCE, atol=TOLERANCE)
    parts = in_steps(layer, projected, *shapes, bounds=(0, 1, 3, 40, T))
    np.testing.assert_allclose(parts, whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("lengths", "slots", "message"),
    [
        ([3, 1], [0, 2], "seqlens_k should be at least"),
        ([4, 2], [0, 3], "state_slots holds 3"),
        ([4, 2], [1, 1], "holds a slot twice"),
    ],
)
def test_wrong_tables_are_refused(lengths: list[int], slots: list[int], message: str) -> None:
    integers = {
        "cu_seqlens_q": np.array([0, 4, 6], np.int32),
        "seqlens_k": np.array(lengths, np.int32),
        "state_slots": np.array(slots, np.int32),
    }
    check = REGISTRY["ssd_scan"].check
    assert check is not None
    with pytest.raises(OperatorError, match=message):
        check(integers, {"out": (6, 1, 1), "state": (3, 1, 1, 1)})
