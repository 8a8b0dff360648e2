"""Projections of every number of tokens, whatever their weights are stored in, and however inputs lie in memory."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.cuda.emulated_launches import launch_all
from tests.cuda.test_quantized_weights import kernel_for, packed

from aethermind.dispatch import Kernel
from aethermind.hal import DType
from aethermind.ops.weight_format import parse_format
from aethermind_cuda.kernels import gate_up_silu, linear, quantized
from aethermind_cuda.kernels._dequantize import MIN_DEQUANTIZED_TOKENS

HALVES = [np.float16, ml_dtypes.bfloat16]
ROUNDOFF = {np.float16: 2.0**-11, ml_dtypes.bfloat16: 2.0**-8}
FORMATS = ("int8", "int8_zp", "int4", "int4_offset_g64", "int2", "int1")


def by_token(kernels: Any, operator: str, weight_format: str = "dense") -> Kernel:
    """The kernel whose results do not depend on the batch."""
    return next(
        kernel
        for kernel in kernels
        if (kernel.operator, kernel.weight_formats) == (operator, frozenset({weight_format}))
        and kernel.is_batch_invariant
    )


def check(out: Any, x: Any, weight: Any, bias: Any | None = None) -> None:
    """Within one rounding of sums that lose 1e-5 of their terms at most."""
    x, weight = x.astype(np.float64), weight.astype(np.float64)
    expected, terms = x @ weight.T, np.abs(x) @ np.abs(weight).T
    if bias is not None:
        expected, terms = expected + bias.astype(np.float64), terms + np.abs(bias.astype(np.float64))
    error = np.abs(out.astype(np.float64) - expected)
    assert np.all(error <= ROUNDOFF.get(out.dtype.type, 0) * np.abs(expected) + 1e-5 * terms)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("num_inputs", [136, 77])
@pytest.mark.parametrize("num_tokens", [1, 9, 33, 70])
def test_dense(num_tokens: int, num_inputs: int, dtype: Any) -> None:
    rng = np.random.default_rng(num_tokens)
    x, weight = (rng.standard_normal((rows, num_inputs)).astype(dtype) for rows in (num_tokens, 152))
    bias = rng.standard_normal(152).astype(dtype)
    out = np.full((num_tokens, 152), np.nan, dtype)
    launch_all(next(kernel for kernel in linear.KERNELS if kernel.name == "cuda"), [x, weight, bias], [out])
    check(out, x, weight, bias)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("num_tokens", [32, 33])
def test_gate_and_up_in_one_kernel_or_by_cublaslt(num_tokens: int, dtype: Any) -> None:
    rng = np.random.default_rng(num_tokens)
    x, gate, up = (rng.standard_normal((rows, 136)).astype(dtype) for rows in (num_tokens, 40, 40))
    out = np.full((num_tokens, 40), np.nan, dtype)
    launch_all(next(kernel for kernel in gate_up_silu.KERNELS if kernel.name == "cuda/cublaslt"), [x, gate, up], [out])
    gated, raised = (x.astype(np.float64) @ weight.astype(np.float64).T for weight in (gate, up))
    expected = gated / (1 + np.exp(-gated)) * raised
    # Both products and the result may be rounded; a gate's error grows with it where it is far below zero.
    bound = (3 + np.abs(gated)) * ROUNDOFF[dtype] * np.abs(expected) + 1e-4
    assert np.all(np.abs(out.astype(np.float64) - expected) <= bound)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("num_tokens", [5, 14, 31, 50, 67])
def test_codes(num_tokens: int, name: str) -> None:
    format = parse_format(name)
    assert format is not None
    rng = np.random.default_rng(num_tokens)
    dtype = HALVES[format.bits % 3 % 2]
    x = rng.standard_normal((num_tokens, 264)).astype(dtype)
    weight = format.quantize(rng.standard_normal((40, 264)).astype(np.float32))
    out = np.full((num_tokens, 40), np.nan, np.float32)
    launch_all(kernel_for(name, "lm_head"), [x, packed(name, weight)], [out])
    check(out, x, format.dequantize(weight))


@pytest.mark.parametrize("name", FORMATS)
def test_quantised_gemv_of_long_rows(name: str) -> None:
    """89 groups of inputs: every warp has more of them than its ring has stages, and the last one is a short one."""
    format = parse_format(name)
    assert format is not None
    rng = np.random.default_rng(7)
    dtype = HALVES[format.bits % 3 % 2]
    x = rng.standard_normal((3, 11272)).astype(dtype)
    gate, up = (format.quantize(rng.standard_normal((24, 11272)).astype(np.float32) / 106) for _ in range(2))
    logits = np.full((3, 24), np.nan, np.float32)
    launch_all(kernel_for(name, "lm_head"), [x, packed(name, gate)], [logits])
    check(logits, x, format.dequantize(gate))
    out = np.full((3, 24), np.nan, dtype)
    launch_all(kernel_for(name, "gate_up_silu"), [x, packed(name, gate), packed(name, up)], [out])
    expected = silu_mul(*(x.astype(np.float64) @ format.dequantize(weight, np.float64).T for weight in (gate, up)))
    np.testing.assert_allclose(out.astype(np.float64), expected, rtol=ROUNDOFF[dtype], atol=1e-4)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("num_tokens", [9, 21, 33, 70])
def test_split_k_blocks_sum_parts_of_the_inputs(num_tokens: int, name: str) -> None:
    """1,100 inputs are nine groups, so two parts, the second of which is the shorter one."""
    format = parse_format(name)
    assert format is not None
    rng = np.random.default_rng(num_tokens)
    dtype = HALVES[(format.bits + num_tokens) % 2]
    x = rng.standard_normal((num_tokens, 1100)).astype(dtype)
    gate, up = (format.quantize(rng.standard_normal((40, 1100)).astype(np.float32) / 33) for _ in range(2))
    bias = rng.standard_normal(40).astype(dtype)
    out = np.full((num_tokens, 40), np.nan, dtype)
    launch_all(kernel_for(name), [x, packed(name, gate), bias], [out])
    check(out, x, format.dequantize(gate), bias)
    logits = np.full((num_tokens, 40), np.nan, np.float32)
    launch_all(kernel_for(name, "lm_head"), [x, packed(name, gate)], [logits])
    check(logits, x, format.dequantize(gate))
    launch_all(kernel_for(name, "gate_up_silu"), [x, packed(name, gate), packed(name, up)], [out])
    expected = silu_mul(*(x.astype(np.float64) @ format.dequantize(weight, np.float64).T for weight in (gate, up)))
    np.testing.assert_allclose(out.astype(np.float64), expected, rtol=ROUNDOFF[dtype], atol=1e-4)


def silu_mul(gated: Any, raised: Any) -> Any:
    return gated / (1 + np.exp(-gated)) * raised


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dtype", [np.float32, *HALVES])
def test_many_tokens_multiply_values_rounded_once(name: str, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some rows of the weight at a time: a part ends in the middle of a tile here, and a group of inputs too."""
    monkeypatch.setattr("aethermind_cuda.kernels._dequantize._MAX_DEQUANTIZED_BYTES", 128 * 77 * 4)
    format = parse_format(name)
    assert format is not None
    rng = np.random.default_rng(5)
    x = rng.standard_normal((MIN_DEQUANTIZED_TOKENS, 77)).astype(dtype)
    gate, up = (format.quantize(rng.standard_normal((152, 77)).astype(np.float32)) for _ in range(2))
    values, raised = (format.dequantize(weight, dtype) for weight in (gate, up))
    bias = rng.standard_normal(152).astype(dtype)
    out = np.full((len(x), 152), np.nan, dtype)
    launch_all(kernel_for(name, with_cublaslt=True), [x, packed(name, gate), bias], [out])
    check(out, x, values, bias)
    kernel = kernel_for(name, "gate_up_silu", with_cublaslt=True)
    launch_all(kernel, [x, packed(name, gate), packed(name, up)], [out])
    products = [(x.astype(np.float32) @ weight.astype(np.float32).T).astype(dtype) for weight in (values, raised)]
    expected = silu_mul(*(product.astype(np.float64) for product in products))
    np.testing.assert_allclose(out.astype(np.float64), expected, rtol=2 * ROUNDOFF.get(dtype, 1e-5), atol=1e-4)


def test_projections_are_batch_invariant() -> None:
    rng = np.random.default_rng(3)
    dtype = ml_dtypes.bfloat16
    x = rng.standard_normal((40, 200)).astype(dtype)
    gate, up = (rng.standard_normal((24, 200)).astype(dtype) for _ in range(2))
    format = parse_format("int4")
    assert format is not None
    packed_weights = [packed("int4", format.quantize(weight.astype(np.float32))) for weight in (gate, up)]
    for kernel, weights in (
        (by_token(linear.KERNELS, "linear"), [gate, None]),
        (by_token(gate_up_silu.KERNELS, "gate_up_silu"), [gate, up]),
        (by_token(quantized.KERNELS, "gate_up_silu", "int4"), packed_weights),
    ):
        together = np.full((40, 24), np.nan, dtype)
        launch_all(kernel, [x, *weights], [together])
        for token in (0, 17, 39):
            alone = np.full((1, 24), np.nan, dtype)
            launch_all(kernel, [x[token : token + 1].copy(), *weights], [alone])
            assert alone.tobytes() == together[token].tobytes(), kernel.name


def test_every_dtype_has_a_kernel_for_every_number_of_tokens() -> None:
    for kernel in (*linear.KERNELS, *gate_up_silu.KERNELS, *quantized.KERNELS):
        assert kernel.dtypes == {DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16}
