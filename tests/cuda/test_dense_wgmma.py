"""Dense products of 9 to 128 tokens by wgmma and the tensor memory accelerator, emulated (compute capability 9.0)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.cuda.emulated_launches import launch_all
from tests.cuda.emulator import TiledMatrix, compile_kernels
from tests.cuda.emulator.opening import emulated_cuda
from tests.cuda.fake_gpus import ATTRIBUTES
from tests.cuda.host_driver import HostDriver, fake_cubins
from tests.cuda.test_launch_limits import assert_fits
from tests.cuda.test_projections import HALVES, ROUNDOFF, check

from aethermind.hal import DType
from aethermind.ops.catalog.feed_forward import GATE_UP_SILU
from aethermind.ops.catalog.matrix_products import LINEAR as LINEAR_OPERATOR
from aethermind.ops.operator import Sample
from aethermind.runtime import OpenDevice, Runtime
from aethermind.testing.operator_calls import KernelCase, check_kernel
from aethermind_cuda.kernels import gate_up_silu, linear
from aethermind_cuda.kernels._dense_wgmma import dense_wgmma
from aethermind_cuda.launch import DeviceArray, DeviceFacts, Launch
from aethermind_cuda.library import Cubins, KernelLibrary

AT_ONCE = {1: 132, 4: 30}
"""Clusters of so many blocks that an H200 runs at once, as its driver says."""
H200 = DeviceFacts((9, 0), 132, 227 << 10, max_clusters=lambda launch: AT_ONCE[launch.grid[0]])
GATE_UP = next(kernel for kernel in gate_up_silu.KERNELS if kernel.name == "cuda")
LINEAR = next(kernel for kernel in linear.KERNELS if kernel.name == "cuda")
LM_HEAD = next(kernel for kernel in linear.KERNELS if (kernel.operator, kernel.name) == ("lm_head", "cuda"))


def product(
    num_tokens: int, num_outputs: int, num_inputs: int, num_weights: int = 1, device: DeviceFacts = H200, **changes: Any
) -> Launch | None:
    """The launch of a product of arrays that begin at multiples of 256 bytes, unless `changes` says otherwise."""
    at = {"out": 0, "x": 1 << 40, "weight": 2 << 40, "bias": 3 << 40, **changes}
    dtype = changes.get("dtype", DType.BFLOAT16)
    weights = [
        DeviceArray(at["weight"] + i * 2 * num_outputs * num_inputs, dtype, (num_outputs, num_inputs))
        for i in range(num_weights)
    ]
    out, x = (DeviceArray(at[name], dtype, (num_tokens, n)) for name, n in (("out", num_outputs), ("x", num_inputs)))
    bias = None if num_weights > 1 else DeviceArray(at["bias"], changes.get("bias_dtype", dtype), (num_outputs,))
    return dense_wgmma(out, x, weights, bias, device)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    ("num_tokens", "num_outputs", "num_inputs"), [(9, 152, 136), (20, 64, 64), (33, 300, 720), (70, 4, 328)]
)
def test_products(num_tokens: int, num_outputs: int, num_inputs: int, dtype: Any) -> None:
    """Rows, tokens and inputs that end within a tile, with one step and with several for each block of a cluster."""
    rng = np.random.default_rng(num_tokens)
    x, weight = (rng.standard_normal((rows, num_inputs)).astype(dtype) for rows in (num_tokens, num_outputs))
    bias = rng.standard_normal(num_outputs).astype(dtype)
    out = np.full((num_tokens, num_outputs), np.nan, dtype)
    launch_all(LINEAR, [x, weight, bias], [out], seeds=(0, 1), compute_capability=(9, 0))
    check(out, x, weight, bias)


@pytest.mark.parametrize(("tokens", "threads"), [(16, 160), (128, 128)])
def test_stages_are_filled_again(tokens: int, threads: int) -> None:
    """Nine steps with two stages, by a warp that only copies and by one that multiplies, too."""
    rng = np.random.default_rng(tokens)
    x, weight = (rng.standard_normal((rows, 576)).astype(ml_dtypes.bfloat16) for rows in (tokens - 3, 28))
    out = np.full((tokens - 3, 28), np.nan, ml_dtypes.bfloat16)
    maps = TiledMatrix(weight, 8), TiledMatrix(weight, 8), TiledMatrix(x, tokens)
    compile_kernels("dense_wgmma.cu")[f"linear_wgmma{tokens}_1_bfloat16"](
        *(*maps, out, None, tokens - 3, 28, 9, 16, 2, 0),
        grid=2,
        block=threads,
        shared=2 * (16 + tokens) * 128 + (48 << 7),
    )
    check(out, x, weight)


def test_logits_are_float32() -> None:
    rng = np.random.default_rng(0)
    x, weight = (rng.standard_normal((rows, 128)).astype(ml_dtypes.bfloat16) for rows in (12, 40))
    out = np.full((12, 40), np.nan, np.float32)
    launch_all(LM_HEAD, [x, weight], [out], compute_capability=(9, 0))
    check(out, x, weight)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("num_tokens", [16, 100])
def test_gate_and_up(num_tokens: int, dtype: Any) -> None:
    rng = np.random.default_rng(num_tokens)
    x, gate, up = (rng.standard_normal((rows, 264)).astype(dtype) for rows in (num_tokens, 92, 92))
    out = np.full((num_tokens, 92), np.nan, dtype)
    launch_all(GATE_UP, [x, gate, up], [out], seeds=(0, 1), compute_capability=(9, 0))
    gated, raised = (x.astype(np.float64) @ weight.astype(np.float64).T for weight in (gate, up))
    expected = gated / (1 + np.exp(-gated)) * raised
    error = np.abs(out.astype(np.float64) - expected)
    assert np.all(error <= 2 * ROUNDOFF[dtype] * np.abs(expected) + 1e-4)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenDevice]:
    """An emulated H200."""
    attributes = {16: 132, 38: 50 << 20, 75: 9, 76: 0, 97: 227 << 10}
    with emulated_cuda(tmp_path_factory.mktemp("cubins"), 0, attributes):
        opened = Runtime.boot().open_device("cuda")
        yield opened
        opened.backend.close()


@pytest.mark.parametrize("num_tokens", [11, 40])
def test_a_device_computes_them(opened: OpenDevice, num_tokens: int) -> None:
    """By tensor maps that its driver makes, of symbolic addresses that were replaced."""
    rng = np.random.default_rng(num_tokens)
    x, first, second = (rng.standard_normal((rows, 128)) / 4 for rows in (num_tokens, 40, 40))
    launched: Any = opened.backend._driver.launched  # type: ignore[attr-defined]
    for operator, kernel, inputs in (
        (LINEAR_OPERATOR, LINEAR, (x, first, rng.standard_normal(40))),
        (GATE_UP_SILU, GATE_UP, (x, first, second)),
    ):
        launched.clear()
        case = KernelCase(operator, kernel, DType.BFLOAT16, Sample("wgmma", inputs, {}), None)
        check_kernel(case, Runtime.boot().operators, opened)
        assert any("_wgmma" in name for name in launched)


@pytest.mark.parametrize("num_tokens", [9, 32, 64, 128])
def test_launches_fill_an_h200(num_tokens: int) -> None:
    """Those of Qwen2-7B run at once: with the rows and parts of K that were the fastest ones on the card."""
    for num_weights, num_outputs, num_inputs, rows, splits in (
        (2, 18944, 3584, 288, 1),
        (1, 3584, 18944, 128, 4),
        (1, 3584, 3584, 128, 4),
        (1, 4608, 3584, 160, 4),
    ):
        launch = product(num_tokens, num_outputs, num_inputs, num_weights)
        assert launch is not None
        assert_fits(launch, Cubins().operators, H200.shared_bytes)
        assert (launch.arguments[8], splits_of(launch)) == (rows, splits)
        assert launch.grid[0] // splits <= AT_ONCE[splits]


def splits_of(launch: Launch) -> int:
    return int(launch.kernel.split("_")[-2])


def test_the_driver_says_how_many_clusters_run_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ATTRIBUTES, 16, 108)
    driver = HostDriver()
    library = KernelLibrary(driver, H200, fake_cubins(tmp_path, ["dense_wgmma"], ("90a",)))
    launches = [product(64, num_outputs, 4096, device=library.facts) for num_outputs in (3584, 6144)]
    for launch in filter(None, launches):
        assert splits_of(launch) == 4
        assert 20 <= launch.grid[0] // 4 <= 24
    assert driver.calls["max_active_clusters"] == 1
    assert set(driver.shared_limits.values()) == {H200.shared_bytes}


@pytest.mark.parametrize(("at_once", "splits"), [(1, 4), (0, 1)])
def test_no_clusters_are_launched_where_none_can_run(at_once: int, splits: int) -> None:
    """In a part of a GPU."""
    launch = product(64, 64, 18944, device=H200._replace(max_clusters=lambda _: at_once))
    assert launch is not None
    assert splits_of(launch) == splits


@pytest.mark.parametrize("num_tokens", [9, 32, 64, 128])
def test_launches_of_any_width_fit(num_tokens: int) -> None:
    """Where all rows do not run at once, they do in several equal parts."""
    for num_weights, num_inputs in ((1, 64), (1, 4096), (2, 136), (2, 8192)):
        for num_outputs in (4, 48, 500, 1000, 2816, 6144, 10000, 14336, 28672, 53248, 152064):
            launch = product(num_tokens, num_outputs, num_inputs, num_weights)
            assert launch is not None
            assert_fits(launch, Cubins().operators, H200.shared_bytes)
            rows, stages = launch.arguments[8:10]
            tokens, splits = int(launch.kernel.split("wgmma")[1].split("_")[0]), splits_of(launch)
            assert launch.grid[0] // splits * rows // num_weights >= num_outputs
            assert stages * (rows + tokens) * 128 >= tokens * (rows + 4) * 4  # sums
            assert -(-num_inputs // 64) >= splits


def test_what_other_kernels_compute() -> None:
    assert product(64, 256, 256) is not None
    for refused in (
        product(8, 256, 256),
        product(129, 256, 256),
        product(64, 254, 256),
        product(64, 256, 260),
        product(64, 256, 256, x=8),
        product(64, 256, 256, bias=8),
        product(64, 256, 256, bias_dtype=DType.FLOAT32),
        product(64, 256, 256, dtype=DType.FLOAT32),
        product(64, 256, 256, device=H200._replace(compute_capability=(10, 0))),
    ):
        assert refused is None
