"""Quantised weights times 9 to 128 tokens by wgmma, emulated (compute capability 9.0)."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.cuda.emulated_launches import launch_all
from tests.cuda.emulator import compile_kernels
from tests.cuda.test_projections import HALVES, ROUNDOFF, check, silu_mul
from tests.cuda.test_quantized_weights import kernel_for, packed

from aethermind.hal import DType
from aethermind.ops.weight_format import WeightFormat, parse_format
from aethermind_cuda.kernels._quantized_wgmma import (
    quantized_wgmma,
    quantized_wgmma_bytes,
    takes_quantized_wgmma,
    wgmma_grid,
)
from aethermind_cuda.launch import DeviceArray, DeviceFacts, Launch
from aethermind_cuda.quantized_weights import QuantizedLayout

H200 = DeviceFacts((9, 0), 132, 227 << 10)
NAMES = (
    *("int4", "int4_g128", "int4_zp", "int4_zp_g128", "int4_offset", "int4_offset_g64"),
    *("int8", "int8_channel", "int8_zp", "int8_g128"),
)


def format_of(name: str) -> WeightFormat:
    format = parse_format(name)
    assert format is not None
    return format


def launch_on_hopper(kernel: Any, inputs: list[Any], out: Any) -> None:
    launch_all(kernel, inputs, [out], compute_capability=(9, 0))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("num_tokens", "num_inputs", "num_outputs"), [(9, 1100, 40), (31, 330, 150), (70, 130, 24)])
def test_products_of_every_format(name: str, num_tokens: int, num_inputs: int, num_outputs: int) -> None:
    """Parts of K, of a group, of a tile of outputs, and of tokens; weights are not rounded."""
    format, rng = format_of(name), np.random.default_rng(num_tokens)
    dtype = HALVES[(format.bits // 4 + num_tokens // 2) % 2]
    x = rng.standard_normal((num_tokens, num_inputs)).astype(dtype)
    shape = num_outputs, num_inputs
    gate, up = (format.quantize(rng.standard_normal(shape).astype(np.float32) / num_inputs**0.5) for _ in range(2))
    bias = rng.standard_normal(num_outputs).astype(dtype)
    logits = np.full((num_tokens, num_outputs), np.nan, np.float32)
    launch_on_hopper(kernel_for(name, "lm_head"), [x, packed(name, gate)], logits)
    check(logits, x, format.dequantize(gate))
    out = np.full((num_tokens, num_outputs), np.nan, dtype)
    launch_on_hopper(kernel_for(name, with_cublaslt=True), [x, packed(name, gate), bias], out)
    check(out, x, format.dequantize(gate), bias)
    launch_on_hopper(kernel_for(name, "gate_up_silu"), [x, packed(name, gate), packed(name, up)], out)
    expected = silu_mul(*(x.astype(np.float64) @ format.dequantize(weight, np.float64).T for weight in (gate, up)))
    np.testing.assert_allclose(out.astype(np.float64), expected, rtol=ROUNDOFF[dtype], atol=1e-4)


@pytest.mark.parametrize(("num_outputs", "warpgroups", "suffix"), [(300, 5, "_wide"), (250, 4, "")])
def test_a_pipeline_of_many_groups(num_outputs: int, warpgroups: int, suffix: str) -> None:
    """19 groups in a block, where several warpgroups share the inputs."""
    format, rng = format_of("int4"), np.random.default_rng(0)
    x = rng.standard_normal((50, 2400)).astype(ml_dtypes.bfloat16)
    weight = format.quantize(rng.standard_normal((num_outputs, 2400)).astype(np.float32) / 49)
    array = DeviceArray(0, DType.BFLOAT16, x.shape)
    out = DeviceArray(0, DType.BFLOAT16, (50, num_outputs))
    small = DeviceFacts((9, 0), 1, 227 << 10)
    (launch,) = quantized_wgmma(format, out, array, [array], None, small, 0)
    assert launch.kernel == f"quantized_wgmma64_int4{suffix}_bfloat16"
    assert (launch.grid, launch.block[0]) == ((1, 1, 1), 128 * warpgroups)
    logits = np.full((50, num_outputs), np.nan, np.float32)
    layout = QuantizedLayout(format, weight.shape)
    arguments = (logits, x, packed("int4", weight), None, None, 50, num_outputs, 2400, 1, layout.num_blocks, 0, None)
    entry = compile_kernels("quantized_wgmma.cu")[launch.kernel]
    entry(*arguments, grid=launch.grid, block=launch.block, shared=launch.shared_bytes, seeds=(0, 1))
    check(logits, x, format.dequantize(weight))


def launches(name: str, num_tokens: int, num_outputs: int, num_inputs: int, num_weights: int = 1) -> list[Launch]:
    x = DeviceArray(1 << 20, DType.BFLOAT16, (num_tokens, num_inputs))
    out = DeviceArray(2 << 20, DType.BFLOAT16, (num_tokens, num_outputs))
    weights = [DeviceArray(3 << 20, DType.UINT8, (1,))] * num_weights
    return list(quantized_wgmma(format_of(name), out, x, weights, None, H200, 4 << 20))


def test_the_blocks_of_a_7b_model_occupy_the_gpu() -> None:
    gate_up = launches("int4", 64, 18944, 3584, 2)
    assert [(launch.grid, launch.block[0]) for launch in gate_up] == [((1, 119, 1), 640)]
    for num_tokens in (9, 32, 64, 128):
        for name in ("int4", "int8", "int4_zp_g128"):
            for num_outputs, num_inputs in ((3584, 3584), (3584, 18944), (512, 3584)):
                multiply, *_ = launches(name, num_tokens, num_outputs, num_inputs)
                blocks = np.prod(multiply.grid)
                assert blocks <= 132
                assert multiply.shared_bytes <= H200.shared_bytes
                assert blocks >= (20 if num_outputs == 512 else 90)


@pytest.mark.parametrize(
    ("widths", "num_inputs", "warpgroups", "splits"),
    [([3584, 512, 512], 3584, 3, 4), ([3584], 3584, 3, 6), ([3584], 18944, 4, 9), ([37888], 3584, 5, 1)],
    ids=["qkv", "o", "down", "gate_up"],
)
def test_grids_of_64_tokens_by_times_fitted_to_a_card(
    widths: list[int], num_inputs: int, warpgroups: int, splits: int
) -> None:
    """Two warpgroups, which copy the inputs, take as long for a group as four."""
    grid = wgmma_grid(64, widths, num_inputs, parse_format("int4"), H200)
    assert (grid.warpgroups, grid.splits) == (warpgroups, splits)


def test_the_workspace_suffices_for_fewer_tokens() -> None:
    for name in ("int4", "int8"):
        for most in (9, 40, 128, 4096):
            nbytes = quantized_wgmma_bytes(most, [3584], 18944, format_of(name), DType.BFLOAT16, H200)
            for num_tokens in range(9, min(most, 128) + 1, 7):
                reduce = launches(name, num_tokens, 3584, 18944)[1:]
                assert nbytes >= sum(launch.arguments[1].nbytes for launch in reduce), (name, most, num_tokens)


@pytest.mark.parametrize(
    ("address", "num_tokens", "num_inputs", "dtype", "name", "capability"),
    [
        (1 << 20, 8, 128, DType.FLOAT16, "int4", (9, 0)),
        (1 << 20, 129, 128, DType.FLOAT16, "int4", (9, 0)),
        (1 << 20, 64, 127, DType.FLOAT16, "int4", (9, 0)),
        ((1 << 20) + 2, 64, 128, DType.FLOAT16, "int4", (9, 0)),
        (1 << 20, 64, 128, DType.FLOAT32, "int4", (9, 0)),
        (1 << 20, 64, 128, DType.FLOAT16, "int2", (9, 0)),
        (1 << 20, 64, 128, DType.FLOAT16, "int4", (10, 0)),
    ],
)
def test_other_products_take_other_kernels(
    address: int, num_tokens: int, num_inputs: int, dtype: DType, name: str, capability: tuple[int, int]
) -> None:
    x = DeviceArray(address, dtype, (num_tokens, num_inputs))
    device = H200._replace(compute_capability=capability)
    assert not takes_quantized_wgmma(format_of(name), x, device)
    assert takes_quantized_wgmma(format_of("int8"), DeviceArray(1 << 20, DType.FLOAT16, (64, 126)), H200)
