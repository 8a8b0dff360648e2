"""Products of chosen experts: how pairs are sorted, what is launched, and that only the chosen experts are read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.cuda.emulator import compile_kernels
from tests.cuda.emulator.driver import EmulatedDriver
from tests.cuda.emulator.opening import emulated_cuda

from aethermind.dispatch import Kernel
from aethermind.dispatch.reference import rounded_inputs
from aethermind.hal.dtype import DType
from aethermind.ops.catalog.mixture import MOE_GATE_UP_SILU, MOE_LINEAR
from aethermind.ops.operator import Operator, Sample
from aethermind.ops.weight_format import WeightFormat, parse_format
from aethermind.runtime import OpenDevice, Runtime
from aethermind.testing.operator_calls import KernelCase, check_kernel, run_kernel
from aethermind_cuda.backend import CudaBackend
from aethermind_cuda.kernels import _expert_wgmma, _mxfp4_experts, _quantized_experts
from aethermind_cuda.kernels.mixture import KERNELS
from aethermind_cuda.launch import Call, DeviceArray, DeviceFacts, KernelFunction, Launch

RUNTIME = Runtime.boot()
OPERATORS = "moe_gate_up_silu", "moe_linear"


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenDevice]:
    with emulated_cuda(tmp_path_factory.mktemp("cubins")):
        opened = Runtime.boot().open_device("cuda")
        yield opened
        opened.backend.close()


def kernel_of(operator: str, name: str = "cuda") -> Kernel:
    return next(kernel for kernel in KERNELS if (kernel.operator, kernel.name) == (operator, name))


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("num_pairs", "num_experts", "tile_rows"), [(133, 8, 8), (1400, 60, 64), (40, 300, 8), (17, 1, 8)]
)
def test_pairs_are_sorted_into_tiles_of_one_expert(num_pairs: int, num_experts: int, tile_rows: int, seed: int) -> None:
    ids = np.random.default_rng(num_pairs).integers(0, num_experts, num_pairs, dtype=np.int32)
    order = np.full(num_pairs, -1, np.int32)
    max_tiles = num_pairs // tile_rows + min(num_pairs, num_experts)
    tiles = np.full((max_tiles, 3), -1, np.int32)
    kernels = compile_kernels("sort_experts.cu")
    sizes = (num_pairs, num_experts, tile_rows, max_tiles)
    shared = 4 * num_experts
    kernels.sort_experts(order, tiles, ids, *sizes, grid=1, block=1024, shared=shared, seeds=(seed,))
    assert sorted(order) == list(range(num_pairs))
    used = [tile for tile in tiles.tolist() if tile[2]]
    assert sum(count for *_, count in used) == num_pairs
    assert len(used) == sum(-(-count // tile_rows) for count in np.bincount(ids))
    assert tiles[len(used) :].tolist() == [[0, 0, 0]] * (max_tiles - len(used))
    for expert, begin, count in used:
        assert 0 < count <= tile_rows
        assert set(ids[order[begin : begin + count]]) == {expert}


@pytest.mark.parametrize("num_tokens", [1, 20, 60])
def test_weights_of_other_experts_are_not_read(opened: OpenDevice, num_tokens: int) -> None:
    """By a GEMV for each pair, by tiles of 8 pairs, and by tiles of 64."""
    rng = np.random.default_rng(num_tokens)
    num_experts, hidden_size, width = 5, 72, 24
    ids = np.tile(np.array([3, 1], np.int32), (num_tokens, 1))
    stacks = [rng.standard_normal((num_experts, width, hidden_size)) / 8 for _ in range(2)]
    for stack in stacks:
        stack[[0, 2, 4]] = np.nan
    gate, up = (stack.reshape(-1, hidden_size) for stack in stacks)
    x = rng.standard_normal((num_tokens, hidden_size))
    chosen = rng.standard_normal((num_tokens, 2, hidden_size))
    for operator, inputs in (
        (MOE_GATE_UP_SILU, (x, ids, gate, up, None, None)),
        (MOE_LINEAR, (chosen, ids, gate, None)),
    ):
        sample = Sample("nan", inputs, {"num_experts": num_experts})
        case = KernelCase(operator, kernel_of(operator.name), DType.BFLOAT16, sample, None)
        (out,) = run_kernel(case, RUNTIME.operators, opened, rounded_inputs(operator, sample, DType.BFLOAT16))
        assert out.shape == (num_tokens, 2, width)
        assert np.isfinite(out.astype(np.float32)).all()


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16])
@pytest.mark.parametrize("num_tokens", [40, 170])
def test_many_pairs_by_wgmma(
    opened: OpenDevice, monkeypatch: pytest.MonkeyPatch, num_tokens: int, dtype: DType
) -> None:
    """Tiles of up to 64 pairs and of more; 90 outputs are part of a tile, or one and a part."""
    monkeypatch.setattr(_expert_wgmma, "_CAPABILITY", (8, 0))
    num_experts, num_chosen, hidden_size, width = 4, 2, 128, 90
    rng = np.random.default_rng(num_tokens)
    ids = np.argsort(rng.random((num_tokens, num_experts)), axis=1)[:, :num_chosen].astype(np.int32)
    gate, up = (rng.standard_normal((num_experts * width, hidden_size)) / 8 for _ in range(2))
    biases = [rng.standard_normal(num_experts * width) for _ in range(2)]
    x, chosen = rng.standard_normal((num_tokens, hidden_size)), rng.standard_normal((num_tokens, 2, hidden_size))
    clamped = {"alpha": 1.702, "limit": 1.5, "up_offset": 1.0}
    for operator, inputs, activation in (
        (MOE_GATE_UP_SILU, (x, ids, gate, up, None, None), {}),
        (MOE_GATE_UP_SILU, (x, ids, gate, up, *biases), clamped),
        (MOE_LINEAR, (chosen, ids, gate, biases[0]), {}),
    ):
        sample = Sample("wgmma", inputs, {"num_experts": num_experts, **activation})
        case = KernelCase(operator, kernel_of(operator.name), dtype, sample, None)
        check_kernel(case, RUNTIME.operators, opened)
    assert launched(opened, f"moe_gate_up_silu_wgmma_{dtype}", f"moe_linear_wgmma_{dtype}")


@pytest.mark.parametrize("format", ["int4", "int8_g128"])
def test_quantised_experts_are_dequantised_some_at_a_time(
    opened: OpenDevice, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    """Two of three experts at once."""
    monkeypatch.setattr(_expert_wgmma, "_CAPABILITY", (8, 0))
    monkeypatch.setattr(_expert_wgmma, "_MAX_DEQUANTIZED_BYTES", 2 * 2 * 48 * 128 * 2)
    monkeypatch.setattr(_expert_wgmma, "_MIN_PAIRS_PER_QUANTIZED_EXPERT", 48)
    num_tokens, num_experts, hidden_size, width = 160, 3, 128, 48
    rng = np.random.default_rng(1)
    ids = rng.integers(0, num_experts, (num_tokens, 1), dtype=np.int32)
    gate, up = (rng.standard_normal((num_experts * width, hidden_size)) / 8 for _ in range(2))
    x, chosen = rng.standard_normal((num_tokens, hidden_size)), rng.standard_normal((num_tokens, 1, hidden_size))
    for operator, inputs in (
        (MOE_GATE_UP_SILU, (x, ids, gate, up, None, None)),
        (MOE_LINEAR, (chosen, ids, gate, None)),
    ):
        check_quantised(opened, operator, inputs, {"num_experts": num_experts}, format)
    codes = format.removesuffix("_g128")
    assert launched(opened, f"dequantize_weight_{codes}_bfloat16", "moe_gate_up_silu_wgmma_bfloat16")


@pytest.mark.parametrize(
    ("format", "num_tokens", "hidden_size", "width", "columns"),
    [
        ("int4", 5, 66, 32, 16),
        ("int4_zp", 8, 128, 48, 16),
        ("int4_g128", 40, 392, 80, 32),
        ("int8_channel", 30, 130, 16, 32),
        ("int4_offset_g64", 70, 128, 144, 64),
        ("int8", 60, 200, 64, 64),
    ],
)
def test_experts_of_integer_codes_by_wgmma(
    opened: OpenDevice,
    monkeypatch: pytest.MonkeyPatch,
    format: str,
    num_tokens: int,
    hidden_size: int,
    width: int,
    columns: int,
) -> None:
    """Tiles of each size; parts of a block of outputs, and of a group of inputs."""
    monkeypatch.setattr(_quantized_experts, "_CAPABILITY", (8, 0))
    num_experts = 5
    dtype = DType.FLOAT16 if len(format) % 2 else DType.BFLOAT16
    check_products(opened, num_experts, num_tokens, hidden_size, width, format, dtype)
    family = re.sub("_(g[0-9]+|channel)", "", format)
    assert launched(opened, *(f"{operator}_quantized_wgmma{columns}_{family}_{dtype}" for operator in OPERATORS))


@pytest.mark.parametrize(
    ("num_tokens", "hidden_size", "width", "pairs"),
    [
        (16, 64, 32, 16),
        (20, 128, 80, 16),
        (30, 192, 48, 32),
        (60, 320, 144, 64),
        (150, 128, 64, 128),
        (250, 192, 80, 128),
    ],
)
def test_experts_in_mxfp4_by_wgmma(
    opened: OpenDevice, monkeypatch: pytest.MonkeyPatch, num_tokens: int, hidden_size: int, width: int, pairs: int
) -> None:
    """Tiles of each size, and of half of it at most; parts of a tile of outputs; odd numbers of steps of 64 inputs."""
    monkeypatch.setattr(_mxfp4_experts, "_CAPABILITY", (8, 0))
    num_experts = 5 if pairs == 16 else 3
    check_products(opened, num_experts, num_tokens, hidden_size, width, "mxfp4", DType.BFLOAT16)
    assert launched(opened, *(f"{operator}_mxfp4_{pairs}" for operator in OPERATORS))


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16])
@pytest.mark.parametrize(
    ("num_tokens", "hidden_size", "width"), [(1, 1160, 40), (2, 72, 16), (9, 392, 24), (30, 64, 8)]
)
def test_experts_in_mxfp4_by_gemv(
    opened: OpenDevice, num_tokens: int, hidden_size: int, width: int, dtype: DType
) -> None:
    """One token's pairs, unsorted and sorted ones; several groups for a warp; rows that begin within a tile."""
    num_experts = 16 if num_tokens == 2 else 5
    check_products(opened, num_experts, num_tokens, hidden_size, width, "mxfp4", dtype)
    assert launched(opened, *(f"{operator}_mxfp4_gemv_{dtype}" for operator in OPERATORS))


@pytest.mark.parametrize("by_wgmma", [False, True])
@pytest.mark.parametrize("largest", [2.0, 4.0, 2.0**120])
def test_scales_of_mxfp4_may_be_large(
    opened: OpenDevice, monkeypatch: pytest.MonkeyPatch, largest: float, by_wgmma: bool
) -> None:
    """bfloat16 does not hold a scale above 2 times 2^126."""
    if by_wgmma:
        monkeypatch.setattr(_mxfp4_experts, "_CAPABILITY", (8, 0))
    rng = np.random.default_rng(7)
    num_tokens, num_experts, hidden_size, width = 20, 3, 64, 16
    ids = rng.integers(0, num_experts, (num_tokens, 1), dtype=np.int32)
    weight = rng.standard_normal((num_experts * width, hidden_size)) / 64
    weight[5] = largest * 6
    x = rng.standard_normal((num_tokens, 1, hidden_size)) / min(largest, 2.0**100)
    check_quantised(opened, MOE_LINEAR, (x, ids, weight, None), {"num_experts": num_experts}, "mxfp4")


def check_products(
    opened: OpenDevice, num_experts: int, num_tokens: int, hidden_size: int, width: int, format: str, dtype: DType
) -> None:
    """SwiGLU, the same clamped and with biases, and a product of rows of pairs, of two experts of each token."""
    rng = np.random.default_rng(num_tokens)
    ids = np.argsort(rng.random((num_tokens, num_experts)), axis=1)[:, :2].astype(np.int32)
    scale = np.exp2(rng.integers(-9, -3, (num_experts * width, 1)))
    gate, up = (rng.standard_normal((num_experts * width, hidden_size)) * scale for _ in range(2))
    biases = [rng.standard_normal(num_experts * width) for _ in range(2)]
    x, chosen = rng.standard_normal((num_tokens, hidden_size)), rng.standard_normal((num_tokens, 2, hidden_size))
    clamped = {"alpha": 1.702, "limit": 1.5, "up_offset": 1.0}
    for operator, inputs, activation in (
        (MOE_GATE_UP_SILU, (x, ids, gate, up, None, None), {}),
        (MOE_GATE_UP_SILU, (x, ids, gate, up, *biases), clamped),
        (MOE_LINEAR, (chosen, ids, gate, biases[0]), {}),
    ):
        check_quantised(opened, operator, inputs, {"num_experts": num_experts, **activation}, format, dtype)


def check_quantised(
    opened: OpenDevice,
    operator: Operator,
    inputs: tuple[Any, ...],
    attributes: dict[str, Any],
    format: str,
    dtype: DType = DType.BFLOAT16,
) -> None:
    """Compare a kernel that is not batch-invariant with the reference."""
    kernel = next(
        kernel
        for kernel in KERNELS
        if kernel.operator == operator.name and format in (kernel.weight_formats or ()) and kernel.priority == 0
    )
    sample = Sample("quantised", inputs, attributes)
    case = KernelCase(operator, kernel, dtype, sample, RUNTIME.weight_formats.get(format))
    check_kernel(case, RUNTIME.operators, opened)


def launched(opened: OpenDevice, *kernels: str) -> bool:
    backend = opened.backend
    assert isinstance(backend, CudaBackend)
    assert isinstance(backend._driver, EmulatedDriver)
    return all(backend._driver.launched[kernel] for kernel in kernels)


def launches_of(
    kernel: Kernel, num_tokens: int, capability: tuple[int, int] = (9, 0), format: WeightFormat | None = None
) -> tuple[list[Any], int]:
    """The launches and the workspace, for the shapes of Qwen3-30B-A3B: 128 experts, of which a token uses 8."""

    def array(*shape: int, dtype: DType = DType.BFLOAT16) -> DeviceArray:
        return DeviceArray(1 << 20, dtype, shape)

    ids = array(num_tokens, 8, dtype=DType.INT32)
    weight = array(128 * 2048, 768) if format is None else array(1, dtype=DType.UINT8)
    inputs = (array(num_tokens, 8, 768), ids, weight, None)
    attributes = {"num_experts": 128}
    call = Call(inputs, (array(num_tokens, 8, 2048),), attributes, DeviceFacts(capability, 132, 227 << 10), 1 << 30)
    function: Any = kernel.function
    assert isinstance(function, KernelFunction)
    return list(function(call)), function.workspace_bytes(call)


@pytest.mark.parametrize(
    ("name", "num_tokens", "kernel"),
    [
        ("int4", 8, "gemv_int4"),
        ("int4", 9, "quantized_wgmma16_int4"),
        ("int4", 2048, "quantized_wgmma64_int4"),
        ("int4", 4096, "wgmma"),
        ("int8_zp", 2048, "wgmma"),
        ("mxfp4", 96, "mxfp4_gemv"),
        ("mxfp4", 97, "mxfp4_16"),
        ("mxfp4", 2048, "mxfp4_128"),
    ],
)
def test_the_fastest_kernel_by_pairs_per_expert(name: str, num_tokens: int, kernel: str) -> None:
    """On an H200; a sixteenth of the tokens choose an expert."""
    format = parse_format(name)
    kernels = [k for k in KERNELS if k.operator == "moe_linear" and name in (k.weight_formats or ()) and not k.priority]
    launches, _ = launches_of(kernels[0], num_tokens, format=format)
    assert kernel in launches[-1].kernel


def test_launches_depend_on_the_number_of_tokens_alone() -> None:
    """The grid has the most tiles that any choice of experts makes, so that a graph can replay the launches."""
    kernel = kernel_of("moe_linear")
    (decode,), _ = launches_of(kernel, 4)
    assert (decode.kernel, decode.grid) == ("moe_linear_gemv_bfloat16", (32, 128, 1))
    (sort, skinny), _ = launches_of(kernel, 32)
    assert isinstance(sort, Launch)
    assert (sort.kernel, sort.grid) == ("sort_experts", (1, 1, 1))
    assert (skinny.kernel, skinny.grid) == ("moe_linear_gemv_bfloat16", (256 // 8 + 128, 128, 1))
    (_, tiled), _ = launches_of(kernel, 1024)
    assert (tiled.kernel, tiled.grid) == ("moe_linear_wgmma_bfloat16", (2048 // 128, 8192 // 128 + 128, 1))
    (_, tiled), _ = launches_of(kernel, 1024, (8, 0))
    assert (tiled.kernel, tiled.grid) == ("moe_linear_tiled_bfloat16", (8192 // 64 + 128, 16, 1))
    (_, invariant), _ = launches_of(kernel_of("moe_linear", "cuda/batch_invariant"), 1024)
    assert invariant.kernel == "moe_linear_gemv_bfloat16"


def test_the_workspace_of_the_most_tokens_suffices_for_fewer() -> None:
    sizes = [launches_of(kernel_of("moe_linear"), num_tokens)[1] for num_tokens in (1, 2, 3, 64, 128, 129, 1024)]
    assert sizes == sorted(sizes)
