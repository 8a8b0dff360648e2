"""Recurrences in chunks on the NPU, compared with the operators' float64 reference beyond the kit's samples."""

from __future__ import annotations

import numpy as np
import pytest

from aethermind import Runtime
from aethermind.hal.dtype import DType
from aethermind.ops.operator import Array, Sample
from aethermind.testing.operator_calls import KernelCase, check_kernel

NUM_TOKENS, DEPTH, WIDTH = 2_117, 4, 3
TABLES = np.array([0, NUM_TOKENS], np.int32), np.array([NUM_TOKENS + 1], np.int32), np.array([1], np.int32)


def check(runtime: Runtime, operator: str, inputs: tuple[Array, ...], name: str = "torch", **attributes: float) -> None:
    opened = runtime.open_device("cann")
    kernel = next(one for one in runtime.kernels.kernels("cann") if (one.operator, one.name) == (operator, name))
    case = KernelCase(runtime.operators[operator], kernel, DType.FLOAT32, Sample(operator, inputs, attributes))
    check_kernel(case, runtime.operators, opened)


def states() -> Array:
    return np.random.default_rng(1).normal(size=(3, 1, DEPTH, WIDTH))


def test_scans_of_thousands_of_tokens_equal_the_reference(runtime: Runtime) -> None:
    rng = np.random.default_rng(2)
    xbc, dt = rng.normal(size=(NUM_TOKENS, 2 * DEPTH + WIDTH)), rng.normal(size=(NUM_TOKENS, 1))
    inputs = (xbc, dt, np.array([-3.0]), np.array([-1.0]), np.array([0.5]), states(), *TABLES)
    check(runtime, "ssd_scan", inputs)


@pytest.mark.parametrize("num_keys", [NUM_TOKENS, 1])
def test_delta_rules_of_thousands_of_tokens_equal_the_reference(runtime: Runtime, num_keys: int) -> None:
    """Equal keys make the triangular systems as badly conditioned as they can be."""
    rng = np.random.default_rng(3)
    keys = rng.normal(size=(num_keys, DEPTH)).repeat(NUM_TOKENS // num_keys, axis=0)
    queries, values = rng.normal(size=(NUM_TOKENS, DEPTH)), rng.normal(size=(NUM_TOKENS, WIDTH))
    a, b = np.full((NUM_TOKENS, 1), -8.0), np.full((NUM_TOKENS, 1), 4.0)
    qkv = np.concatenate([queries, keys, values], axis=1)
    inputs = (qkv, a, b, np.array([-3.0]), np.array([0.0]), states(), *TABLES)
    check(runtime, "gated_delta_rule", inputs, scale=0.5)


@pytest.mark.parametrize("name", ["torch", "torch by token"])
def test_padding_of_decode_steps_changes_no_state(runtime: Runtime, name: str) -> None:
    """Sequences that fill a batch have no tokens, and all the same slot."""
    rng = np.random.default_rng(4)
    xbc, dt = rng.normal(size=(4, 2 * DEPTH + WIDTH)), rng.normal(size=(4, 1))
    tables = np.array([0, 1, 2, 2, 2], np.int32), np.array([5, 1, 0, 0], np.int32), np.array([2, 1, 0, 0], np.int32)
    inputs = (xbc, dt, np.array([-3.0]), np.array([-1.0]), np.array([0.5]), states(), *tables)
    check(runtime, "ssd_scan", inputs, name)
