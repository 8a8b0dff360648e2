"""The sampler on vocabularies beyond what its gathered candidates hold: the token is the reference's, always."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.cuda.emulated_launches import launch_all
from tests.cuda.emulator import compile_kernels

from aethermind.dispatch import Kernel
from aethermind.hal.dtype import DType
from aethermind.ops.catalog.logits import BIAS_TOKENS, MASK_TOKENS, REPETITION_PENALTY, SUPPRESS_TOKENS
from aethermind.ops.catalog.sampling import SAMPLE_TOKENS, TOKEN_LOGPROBS
from aethermind.ops.operator import Operator
from aethermind_cuda.kernels import sampling
from aethermind_cuda.launch import Call, DeviceArray, DeviceFacts

VOCABULARY = 5000


def kernel(operator: str) -> Kernel:
    return next(kernel for kernel in sampling.KERNELS if kernel.operator == operator)


def logits_of(kind: str, rng: np.random.Generator, num_rows: int) -> np.ndarray[Any, Any]:
    logits = rng.standard_normal((num_rows, VOCABULARY))
    if kind == "peaked":
        logits *= 6
    elif kind == "flat":
        logits *= 0.01
    elif kind == "tied":
        logits = np.round(logits)
    elif kind == "masked":
        logits[:, rng.permutation(VOCABULARY)[10:]] = -np.inf
    return logits.astype(np.float32)


@pytest.mark.parametrize("kind", ["usual", "peaked", "flat", "tied", "masked"])
def test_the_token_is_that_of_the_reference(kind: str) -> None:
    rng = np.random.default_rng(len(kind))
    cuts = [
        (0, 1.0, 0.0),
        (20, 1.0, 0.0),
        (3000, 0.9, 0.0),
        (0, 0.8, 0.0),
        (0, 1.0, 0.05),
        (40, 0.95, 0.02),
        (9000, 1, 0),
    ]
    top_k, top_p, min_p = (np.array(column) for column in zip(*cuts, strict=True))
    inputs = [
        logits_of(kind, rng, len(cuts)),
        rng.uniform(0.3, 2, len(cuts)).astype(np.float32),
        top_k.astype(np.int32),
        top_p.astype(np.float32),
        min_p.astype(np.float32),
        rng.random(len(cuts)).astype(np.float32),
    ]
    out = np.full(len(cuts), -1, np.int32)
    launch_all(kernel("sample_tokens"), inputs, [out])
    assert SAMPLE_TOKENS.reference is not None
    exact = [array.astype(np.float64) if array.dtype == np.float32 else array for array in inputs]
    np.testing.assert_array_equal(out, SAMPLE_TOKENS.reference(*exact))


WIDE = 152_064
WIDE_ROWS = {
    "greedy": (0.0, 0, 1.0, 0.0),
    "uncut": (1.0, 0, 1.0, 0.0),
    "top_k": (0.8, 40, 1.0, 0.0),
    "top_p": (0.5, 0, 0.9, 0.0),
    "all cuts": (1.0, 100, 0.95, 0.02),
    "top_p and min_p": (0.6, 0, 0.99, 0.01),
    "min_p": (0.7, 0, 1.0, 0.001),
    "top_k beyond the segments": (1.0, 5000, 1.0, 0.0),
    "top_p that keeps most": (4.0, 0, 0.9, 0.0),
    "top_p of the tail": (0.9, 0, 0.99, 0.0),
    "top_k beyond the segments and top_p": (2.0, 3000, 0.9, 0.0),
    "min_p that keeps most": (4.0, 0, 1.0, 1e-4),
    "top_k of the vocabulary": (1.0, WIDE, 1.0, 0.0),
}


@pytest.mark.parametrize("lead", [0, 1])
def test_rows_of_a_large_vocabulary(lead: int) -> None:
    rng = np.random.default_rng(31)
    # Every second row of an odd width begins where no vector does.
    size = WIDE - lead
    logits = (rng.standard_normal((len(WIDE_ROWS), size)) * 3).astype(np.float32)
    temperature, top_k, top_p, min_p = (np.array(column) for column in zip(*WIDE_ROWS.values(), strict=True))
    uniform = rng.random(len(WIDE_ROWS))
    floats = [column.astype(np.float32) for column in (temperature, top_p, min_p, uniform)]
    inputs = [logits, floats[0], top_k.astype(np.int32), *floats[1:]]
    out = np.full(len(WIDE_ROWS), -1, np.int32)
    launch_all(kernel("sample_tokens"), inputs, [out])
    assert SAMPLE_TOKENS.reference is not None
    exact = [array.astype(np.float64) if array.dtype == np.float32 else array for array in inputs]
    expected = SAMPLE_TOKENS.reference(*exact)
    assert dict(zip(WIDE_ROWS, out, strict=True)) == dict(zip(WIDE_ROWS, expected, strict=True))


@pytest.mark.parametrize("order", ["sorted", "runs", "bfloat16", "few large"])
def test_rows_whose_likely_tokens_are_not_spread_evenly(order: str) -> None:
    rng = np.random.default_rng(len(order))
    cuts = [
        (0.8, 0, 0.9, 0.0),  # at the end of what is gathered at once
        (4.0, 0, 0.9, 0.0),  # far down
        (4.0, 0, 0.5, 0.0),
        (4.0, 0, 1.0, 0.01),
        (2.0, 0, 1.0, 0.001),
        (4.0, 0, 0.8, 0.02),
        (2.0, 11_000, 0.9, 0.0),
        (2.0, 14_000, 1.0, 0.1),
        (0.7, 50, 0.9, 0.05),
        (300.0, 0, 0.9, 0.0),
    ]
    logits = (rng.standard_normal((len(cuts), 70_003)) * 3).astype(np.float32)
    if order == "sorted":
        logits = np.ascontiguousarray(np.sort(logits, axis=1)[:, ::-1])
    elif order == "runs":
        logits = logits / 3 + np.repeat(rng.standard_normal((len(cuts), 1094)) * 3, 64, axis=1)[:, :70_003]
    elif order == "bfloat16":
        logits = (logits.view(np.uint32) & 0xFFFF0000).view(np.float32)
    else:
        logits[:, rng.permutation(70_003)[:20]] += 14
    temperature, top_k, top_p, min_p = (np.array(column) for column in zip(*cuts, strict=True))
    floats = [column.astype(np.float32) for column in (temperature, top_p, min_p, rng.random(len(cuts)))]
    inputs = [logits.astype(np.float32), floats[0], top_k.astype(np.int32), *floats[1:]]
    out = np.full(len(cuts), -1, np.int32)
    launch_all(kernel("sample_tokens"), inputs, [out])
    assert SAMPLE_TOKENS.reference is not None
    exact = [array.astype(np.float64) if array.dtype == np.float32 else array for array in inputs]
    np.testing.assert_array_equal(out, SAMPLE_TOKENS.reference(*exact))


@pytest.mark.parametrize("kind", ["equal", "two levels", "one finite", "few finite", "likely ones side by side"])
def test_rows_with_uninformative_segment_maxima(kind: str) -> None:
    rng = np.random.default_rng(len(kind))
    size, cuts = 9000, [(0, 1.0, 0.0), (30, 1.0, 0.0), (0, 0.7, 0.0), (0, 1.0, 0.3), (60, 0.9, 0.1), (8000, 0.5, 0.0)]
    logits = np.zeros((len(cuts), size), np.float32)
    if kind == "two levels":
        logits[:, rng.permutation(size)[:2500]] = 1.5
    elif kind == "one finite":
        logits[:] = -np.inf
        logits[:, 4567] = -3.0
    elif kind == "few finite":
        logits[:, rng.permutation(size)[20:]] = -np.inf
        logits += rng.standard_normal(size).astype(np.float32)
    elif kind == "likely ones side by side":
        logits += rng.standard_normal(size).astype(np.float32)
        logits[:, 512:640] += 12.0
    top_k, top_p, min_p = (np.array(column) for column in zip(*cuts, strict=True))
    floats = [np.ones(len(cuts)), top_p, min_p, rng.random(len(cuts))]
    ones, top_p, min_p, uniform = (column.astype(np.float32) for column in floats)
    inputs = [logits, ones, top_k.astype(np.int32), top_p, min_p, uniform]
    assert SAMPLE_TOKENS.reference is not None
    exact = [array.astype(np.float64) if array.dtype == np.float32 else array for array in inputs]
    expected = SAMPLE_TOKENS.reference(*exact)
    for seed in (0, 1):  # the order of threads is that of gathered elements, but does not decide a token
        out = np.full(len(cuts), -1, np.int32)
        launch_all(kernel("sample_tokens"), inputs, [out], seeds=(seed,))
        np.testing.assert_array_equal(out, expected)


def test_a_row_samples_the_same_token_in_every_batch() -> None:
    rng = np.random.default_rng(12)
    kinds = [kind for kind in WIDE_ROWS.values() if kind[1] < VOCABULARY]
    num_rows = 120  # more than there are multiprocessors
    columns = zip(*(kinds[row % len(kinds)] for row in range(num_rows)), strict=True)
    temperature, top_k, top_p, min_p = (np.array(column, np.float32) for column in columns)
    logits = (rng.standard_normal((num_rows, 2900)) * rng.uniform(0.5, 4, (num_rows, 1))).astype(np.float32)
    inputs = [logits, temperature, top_k.astype(np.int32), top_p, min_p, rng.random(num_rows).astype(np.float32)]
    together = np.full(num_rows, -1, np.int32)
    launch_all(kernel("sample_tokens"), inputs, [together])
    assert SAMPLE_TOKENS.reference is not None
    exact = [array.astype(np.float64) if array.dtype == np.float32 else array for array in inputs]
    np.testing.assert_array_equal(together, SAMPLE_TOKENS.reference(*exact))
    for first in (0, 40, 80):
        part = np.full(40, -1, np.int32)
        launch_all(kernel("sample_tokens"), [array[first : first + 40].copy() for array in inputs], [part])
        np.testing.assert_array_equal(part, together[first : first + 40])


def test_zeros_of_both_signs_are_equal() -> None:
    rng = np.random.default_rng(3)
    logits = -rng.uniform(1, 2, (8, 30_000)).astype(np.float32)
    zeros = rng.permutation(30_000)[:4000]  # more than fit a window from the top
    logits[:, zeros] = np.where(rng.random((8, 4000)) < 0.5, -0.0, 0.0)
    # min_p keeps zeros only, and top_p those and a few others.
    top_p, min_p = np.full(8, 1.0, np.float32), np.full(8, 1.0, np.float32)
    top_p[4:], min_p[4:] = 0.5, 0.0
    others = [np.full(8, 0.5, np.float32), np.zeros(8, np.int32), top_p, min_p, rng.random(8).astype(np.float32)]
    inputs = [logits, *others]
    out = np.full(8, -1, np.int32)
    launch_all(kernel("sample_tokens"), inputs, [out])
    assert SAMPLE_TOKENS.reference is not None
    exact = [array.astype(np.float64) if array.dtype == np.float32 else array for array in inputs]
    np.testing.assert_array_equal(out, SAMPLE_TOKENS.reference(*exact))


@pytest.mark.parametrize(("largest", "temperature"), [(3.0, 1.0), (-700.0, 0.7), (20.0, 0.01), (0.0, 300.0)])
def test_weights_have_33_correct_bits(largest: float, temperature: float) -> None:
    rng = np.random.default_rng(4)
    below = np.concatenate([[np.inf], rng.uniform(0, 10, 99)]) * temperature
    logits = np.full((len(below), 512), -np.inf, np.float32)
    logits[:, 300], logits[:, 17] = largest, largest - below  # one besides the largest in each row, none in the first
    columns = [np.full(len(below), value, np.float32) for value in (temperature, 1.0, 0.0)]
    maxima, group_maxima = np.zeros((len(below), 4), np.int32), np.zeros((len(below), 1), np.int32)
    masses = np.zeros((len(below), 1), np.int64)
    parameters = columns[0], np.zeros(len(below), np.int32), *columns[1:]
    entry = compile_kernels("row_summaries.cu")["row_summaries"]
    entry(maxima, group_maxima, masses, logits, *parameters, 512, 128, 4, 1, grid=(len(below), 1, 1), block=(256, 1, 1))
    weights = (masses[1:, 0] - masses[0, 0]) / masses[0, 0]
    distances = logits[1:, 300].astype(np.float64) - logits[1:, 17]
    np.testing.assert_allclose(weights, np.exp(-distances / np.float32(temperature)), rtol=2.0**-33)


@pytest.mark.parametrize("temperature", [1e-30, 1e-3, 50.0, 1e30])
def test_temperatures_far_from_one(temperature: float) -> None:
    rng = np.random.default_rng(2)
    logits = (rng.standard_normal((3, 3000)) * 5).astype(np.float32)
    rows = [np.full(3, temperature, np.float32), np.array([0, 5, 0], np.int32)]
    cuts = [np.array([1.0, 1.0, 0.9], np.float32), np.zeros(3, np.float32), rng.random(3).astype(np.float32)]
    out = np.full(3, -1, np.int32)
    launch_all(kernel("sample_tokens"), [logits, *rows, *cuts], [out])
    assert SAMPLE_TOKENS.reference is not None
    exact = [array.astype(np.float64) if array.dtype == np.float32 else array for array in (logits, *rows, *cuts)]
    np.testing.assert_array_equal(out, SAMPLE_TOKENS.reference(*exact))


@pytest.mark.parametrize("cuts", [(0, 1.0, 0.0), (5, 0.9, 0.1)])
def test_a_row_without_distribution_samples_a_token_of_the_vocabulary(cuts: tuple[int, float, float]) -> None:
    logits = np.zeros((5, 100), np.float32)
    logits[0], logits[1] = -np.inf, np.nan
    logits[2, 7], logits[3, 7], logits[4, 7] = np.nan, -np.nan, np.inf
    rows = [np.full(5, value, np.float32) for value in (1.0, cuts[1], cuts[2], 0.99)]
    out = np.full(5, -1, np.int32)
    launch_all(kernel("sample_tokens"), [logits, rows[0], np.full(5, cuts[0], np.int32), *rows[1:]], [out])
    assert np.all((out >= 0) & (out < 100))


@pytest.mark.parametrize("kind", ["peaked", "flat", "tied"])
def test_top_logprobs(kind: str) -> None:
    rng = np.random.default_rng(7)
    logits, token_ids, k = logits_of(kind, rng, 2), np.array([0, 4321], np.int32), 5
    outputs = [np.empty(2, np.float32), np.empty(2, np.int32), np.empty((2, k), np.int32), np.empty((2, k), np.float32)]
    launch_all(kernel("token_logprobs"), [logits, token_ids], outputs, {"k": k})
    assert TOKEN_LOGPROBS.reference is not None
    expected = TOKEN_LOGPROBS.reference(logits.astype(np.float64), token_ids, k=k)
    for output, reference in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(output, reference, rtol=1e-5)


def test_masks_of_rows_that_several_blocks_share() -> None:
    rng = np.random.default_rng(8)
    logits = rng.standard_normal((3, 8200)).astype(np.float32)
    mask = rng.integers(-(2**31), 2**31, (3, 257)).astype(np.int32)
    out = np.zeros_like(logits)
    launch_all(kernel("mask_tokens"), [logits, mask], [out])
    is_allowed = np.unpackbits(mask.view(np.uint8), axis=1, bitorder="little")[:, :8200] == 1
    np.testing.assert_array_equal(out, np.where(is_allowed, logits, -np.inf))


@pytest.mark.parametrize("size", [8200, 8201])
def test_logits_change_where_they_are(size: int) -> None:
    rng = np.random.default_rng(size)
    logits = rng.standard_normal((3, size)).astype(np.float32)
    tokens = np.concatenate([rng.permutation(size)[:count] for count in (0, 1500, 7)]).astype(np.int32)
    listed = tokens, np.array([0, 0, 1500, 1507], np.int32)
    mask = np.where(rng.random((3, -(-size // 32))) < 0.5, 0, rng.integers(-(2**31), 2**31, (3, -(-size // 32))))
    inputs: dict[Operator, tuple[Any, ...]] = {
        BIAS_TOKENS: (*listed, rng.standard_normal(1507).astype(np.float32)),
        REPETITION_PENALTY: (*listed, np.array([1.1, 1.2, 1.3], np.float32)),
        SUPPRESS_TOKENS: listed,
        MASK_TOKENS: (mask.astype(np.int32),),
    }
    for operator, others in inputs.items():
        out = logits.copy()
        launch_all(kernel(operator.name), [out, *others], [out])
        assert operator.reference is not None
        np.testing.assert_allclose(out, operator.reference(logits, *others), rtol=1e-6)


@pytest.mark.parametrize("operator", ["bias_tokens", "mask_tokens", "repetition_penalty", "suppress_tokens"])
def test_any_number_of_rows_fits_a_grid(operator: str) -> None:
    num_rows = 70_000
    rows = DeviceArray(0, DType.FLOAT32, (num_rows, VOCABULARY))
    call = Call((rows, *[DeviceArray(0, DType.INT32, (num_rows, 157))] * 3), (rows,), {}, DeviceFacts((8, 0), 108, 1))
    function: Any = kernel(operator).function
    (launch,) = function(call)
    assert launch.grid[0] == num_rows
    assert max(launch.grid[1:]) < 1 << 16
