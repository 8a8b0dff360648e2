"""Recurrent operators: a sequence gets the same bits in any batch and in any division into steps; deep states."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from tests.cuda.emulator.opening import emulated_cuda

from aethermind.dispatch import Signature
from aethermind.dispatch.reference import rounded_inputs
from aethermind.hal.dtype import DType
from aethermind.ops.operator import Sample
from aethermind.ops.schema import TensorType
from aethermind.runtime import OpenDevice, Runtime
from aethermind.testing.operator_calls import KernelCase, check_kernel, run_kernel
from aethermind_cuda.kernels.recurrent import KERNELS

Array = np.ndarray[Any, Any]
GROUPS, HEADS, DEPTH, WIDTH, ROWS = 2, 4, 20, 40, 35
CHANNELS = 2 * GROUPS * DEPTH + HEADS * WIDTH
RUNTIME = Runtime.boot()
KERNEL_OF = {kernel.operator: kernel for kernel in KERNELS}
ATTRIBUTES = {"causal_conv1d": {"silu": True}, "gated_delta_rule": {"scale": DEPTH**-0.5}, "ssd_scan": {}}
SCALARS = {"causal_conv1d": 0, "gated_delta_rule": 2, "ssd_scan": 1}
"""Inputs with a number for each token and head."""


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenDevice]:
    with emulated_cuda(tmp_path_factory.mktemp("cubins")):
        opened = Runtime.boot().open_device("cuda")
        yield opened
        opened.backend.close()


def run(
    opened: OpenDevice, operator: str, dtype: DType, rows: Array, constants: list[Any], states: Array, tables: Any
) -> tuple[Array, Array]:
    """Results of a step, and the states after it."""
    scalars = [rows[:, i * HEADS : (i + 1) * HEADS] for i in range(SCALARS[operator])]
    inputs = (rows, *scalars, *constants, states, *(np.array(table, np.int32) for table in tables))
    sample = Sample("steps", inputs, ATTRIBUTES[operator])
    declared = RUNTIME.operators[operator]
    case = KernelCase(declared, KERNEL_OF[operator], dtype, sample, None)
    out, after = run_kernel(case, RUNTIME.operators, opened, rounded_inputs(declared, sample, dtype))
    return out, after


@pytest.mark.parametrize("operator", list(ATTRIBUTES))
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16])
def test_bits_depend_on_neither_batch_nor_steps(opened: OpenDevice, operator: str, dtype: DType) -> None:
    rng = np.random.default_rng(7)
    rows = rng.standard_normal((ROWS, CHANNELS))
    heads = [rng.standard_normal(HEADS) for _ in range(3)]
    taps = [rng.standard_normal((4, CHANNELS)), None]
    constants = {"causal_conv1d": taps, "gated_delta_rule": heads[:2], "ssd_scan": heads}[operator]
    shape = (3, CHANNELS) if operator == "causal_conv1d" else (HEADS, DEPTH, WIDTH)
    unused = np.full((1, *shape), np.nan)
    expected, whole = run(opened, operator, dtype, rows, constants, unused, [[0, ROWS], [ROWS], [0]])
    states, parts = unused.repeat(3, axis=0), []
    for begin, end in pairwise((0, 1, 2, 11, 12, ROWS)):
        count = end % 3  # of tokens of another sequence
        tables = [0, count, count + end - begin], [count, end], [2, 1]
        step = np.concatenate([rows[:count], rows[begin:end]])
        out, states = run(opened, operator, dtype, step, constants, states, tables)
        parts.append(out[count:])
    assert np.concatenate(parts).tobytes() == expected.tobytes()
    assert states[1].tobytes() == whole[0].tobytes()
    assert np.isnan(states[0]).all(), "a slot of no sequence in the step was written"


@pytest.mark.parametrize("operator", ["gated_delta_rule", "ssd_scan"])
@pytest.mark.parametrize(("depth", "width"), [(256, 32), (200, 24), (128, 36), (30, 64)])
def test_sizes_of_states(opened: OpenDevice, operator: str, depth: int, width: int) -> None:
    """Deep ones; whole blocks and parts of one; rows that are not aligned; steps with prompts, and of single tokens."""
    rng = np.random.default_rng(depth)
    for cuts in ([0, 1, 12], [0, 1, 2]):
        rows = rng.standard_normal((cuts[-1], 2 * depth + HEADS * width))
        scalars = [rng.standard_normal((cuts[-1], HEADS)) for _ in range(SCALARS[operator])]
        heads = [rng.standard_normal(HEADS) for _ in range(2 if operator == "gated_delta_rule" else 3)]
        tables = [np.array(table, np.int32) for table in (cuts, [9, cuts[2] - cuts[1]], [1, 0])]
        states = rng.standard_normal((2, HEADS, depth, width))
        attributes = {"scale": depth**-0.5} if operator == "gated_delta_rule" else {}
        sample = Sample("sizes", (rows, *scalars, *heads, states, *tables), attributes)
        for dtype in (DType.BFLOAT16, DType.FLOAT32):
            case = KernelCase(RUNTIME.operators[operator], KERNEL_OF[operator], dtype, sample, None)
            check_kernel(case, RUNTIME.operators, opened)


def test_deeper_states_are_refused() -> None:
    state = TensorType(DType.FLOAT32, (2, 4, 257, 8))
    signature = Signature("ssd_scan", "cuda", DType.FLOAT32, (None,) * 5 + (state,), {})
    assert KERNEL_OF["ssd_scan"].reason_against(signature) == "takes states of up to 256 rows, not 257"
