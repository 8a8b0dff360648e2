"""Weights in fp8: packed alike on host and device, and multiplied by every path to what the format defines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from tests.cuda.emulated_launches import launch_all
from tests.cuda.emulator.cublaslt import EmulatedCublasLt
from tests.cuda.emulator.opening import emulated_cuda

from aethermind import Runtime
from aethermind.dispatch import Kernel
from aethermind.errors import InvalidArgumentError
from aethermind.hal import DeviceId, DType, Tensor
from aethermind.ops.weight_format import FP8
from aethermind.runtime import OpenDevice
from aethermind.testing.kernel_cases import is_supported
from aethermind.testing.operator_calls import KernelCase, check_kernel
from aethermind_cuda import device_packing, probe
from aethermind_cuda.backend import CudaBackend
from aethermind_cuda.float8_weights import FLOAT8_PACK, Float8Layout
from aethermind_cuda.kernels import float8, load_kernels

Array = np.ndarray[Any, Any]
BF16 = np.dtype(ml_dtypes.bfloat16)
SHAPES = [(1, 1), (3, 16), (35, 133), (17, 300)]
RNG = np.random.default_rng(12)


def values(shape: tuple[int, int], dtype: Any = np.float32) -> Array:
    """Rows of different magnitudes, whose products float16 represents."""
    return (RNG.standard_normal(shape) * 10.0 ** RNG.integers(-2, 1, (shape[0], 1))).astype(np.float32).astype(dtype)


def packed(source: Any) -> Array:
    nbytes = FLOAT8_PACK.nbytes(source.shape, DType.FLOAT32)
    memory = np.full(nbytes + 16, 0xA5, np.uint8)
    FLOAT8_PACK.pack(source, memory.ctypes.data)
    assert np.all(memory[nbytes:] == 0xA5), "packing wrote beyond its end"
    return memory[:nbytes]


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CudaBackend]:
    """An emulated GPU."""
    with emulated_cuda(tmp_path_factory.mktemp("cubins")):
        backend = probe.open_backend()
        yield backend
        backend.close()


def packed_there(backend: CudaBackend, array: Array) -> Array:
    assert FLOAT8_PACK.pack_on_device is not None
    nbytes = FLOAT8_PACK.nbytes(array.shape, DType.FLOAT32)
    tensor = Tensor.of(backend.allocator.alloc(nbytes), DType.UINT8, (nbytes,))
    FLOAT8_PACK.pack_on_device(backend, array, tensor)
    result = np.empty(nbytes, np.uint8)
    backend.transfer.copy(Tensor.of_numpy(result, DeviceId("cuda", 0)), tensor)
    return result


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BF16], ids=str)
def test_host_and_device_pack_the_codes_of_the_definition(
    backend: CudaBackend, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_packing, "_STAGING_BYTES", 4096)  # so that there are several parts
    for shape in SHAPES:
        array = values(shape, dtype)
        array[-1, shape[1] // 2 :] = 0
        expected = packed(FP8.quantize(array))
        assert np.array_equal(packed(array), expected), shape
        there, end = packed_there(backend, array), Float8Layout(shape).code_bytes + Float8Layout(shape).scale_bytes
        assert np.array_equal(there[:end], expected[:end]), shape


def test_the_device_refuses_values_that_are_not_finite(backend: CudaBackend) -> None:
    array = values((20, 40))
    array[19, 39] = np.nan
    with pytest.raises(InvalidArgumentError, match="not finite cannot be stored as fp8"):
        packed_there(backend, array)


def expected_of(x: Array, weight: Array, bias: Array | None) -> Array:
    product = x.astype(np.float64) @ FP8.dequantize(FP8.quantize(weight), np.float64).T
    return product + (0 if bias is None else bias.astype(np.float64))


def error_of(out: Array, expected: Array) -> float:
    return float(np.linalg.norm(out.astype(np.float64) - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BF16], ids=str)
@pytest.mark.parametrize("name", ["cuda/fp8", "cuda/fp8_batch_invariant"])
def test_products_without_rounded_inputs(name: str, dtype: Any) -> None:
    rounding = {np.float32: 1e-6, np.float16: 2**-11, BF16: 2**-8}[dtype]
    kernels = {kernel.operator: kernel for kernel in float8.KERNELS if kernel.name == name}
    for num_tokens, num_outputs, num_inputs in ((1, 16, 1), (3, 21, 133), (9, 16, 1200), (40, 130, 200)):
        x, bias = values((num_tokens, num_inputs), dtype), RNG.standard_normal(num_outputs).astype(dtype)
        weight, other = values((num_outputs, num_inputs)), values((num_outputs, num_inputs)) * np.float32(0.1)
        out = np.full((num_tokens, num_outputs), np.nan, dtype)
        launch_all(kernels["linear"], [x, packed(weight), bias], [out])
        assert error_of(out, expected_of(x, weight, bias)) < rounding
        logits = np.full(out.shape, np.nan, np.float32)
        launch_all(kernels["lm_head"], [x, packed(weight)], [logits])
        assert error_of(logits, expected_of(x, weight, None)) < 1e-6
        unit = (x / np.abs(x).max()).astype(dtype)
        gate, up = expected_of(unit, weight, None), expected_of(unit, other, None)
        launch_all(kernels["gate_up_silu"], [unit, packed(weight), packed(other)], [out])
        assert error_of(out, gate / (1 + np.exp(-gate)) * up) < rounding


@pytest.mark.parametrize("num_tokens_of_sums", [0, 256])
@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (9, 0)], ids=str)
@pytest.mark.parametrize("dtype", [np.float16, BF16], ids=str)
def test_products_by_cublaslt_round_inputs_once_for_each_token(
    capability: tuple[int, int], dtype: Any, num_tokens_of_sums: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aethermind_cuda.kernels._float8._MAX_SUMS_BYTES", 4 * 48 * 16)  # 16 rows of sums at a time
    monkeypatch.setattr("aethermind_cuda.kernels._float8._MAX_TOKENS_OF_SUMS", num_tokens_of_sums)
    rounding = {np.float16: 6e-4, BF16: 5e-3}[dtype]
    kernels = {kernel.operator: kernel for kernel in float8.KERNELS if kernel.name == float8.CUBLASLT_FLOAT8}
    x, bias = values((37, 200), dtype), RNG.standard_normal(48).astype(dtype)
    weight, other = values((48, 200)), values((48, 200)) * np.float32(0.1)
    meant = x if capability < (8, 9) else FP8.dequantize(FP8.quantize(x))
    out = np.full((37, 48), np.nan, dtype)
    launch_all(kernels["linear"], [x, packed(weight), bias], [out], compute_capability=capability)
    assert error_of(out, expected_of(meant, weight, bias)) < rounding
    unit = (x / np.abs(x).max()).astype(dtype)
    meant = unit if capability < (8, 9) else FP8.dequantize(FP8.quantize(unit))
    gate, up = expected_of(meant, weight, None), expected_of(meant, other, None)
    operands = [unit, packed(weight), packed(other)]
    launch_all(kernels["gate_up_silu"], operands, [out], compute_capability=capability)
    assert error_of(out, gate / (1 + np.exp(-gate)) * up) < 2 * rounding


class Emulated(NamedTuple):
    opened: OpenDevice
    cublaslt: EmulatedCublasLt


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulated]:
    """An emulated GPU with cuBLASLt."""
    with emulated_cuda(tmp_path_factory.mktemp("cubins")) as driver, pytest.MonkeyPatch.context() as patch:
        cublaslt = EmulatedCublasLt(driver)
        for module in ("kernels._cublaslt", "library"):
            patch.setattr(f"aethermind_cuda.{module}.find_cublaslt", lambda: cublaslt)
        opened = Runtime.boot().open_device("cuda")
        opened.backend._library(0)  # type: ignore[attr-defined]  # its kernels are those of compute capability 8.0
        yield Emulated(opened, cublaslt)
        opened.backend.close()


def multiplied_cases(runtime: Runtime, kernel: Kernel) -> Iterator[KernelCase]:
    """Samples of an operator that cuBLASLt multiplies: of many tokens, and outputs that are multiples of 16."""
    operator = runtime.operators[kernel.operator]
    places = [index for index, spec in enumerate(operator.schema.inputs) if spec.name in operator.weight_inputs]
    for sample in operator.samples(np.random.default_rng(11)):
        case = KernelCase(operator, kernel, DType.BFLOAT16, sample, FP8)
        num_outputs = [len(array) for place in places if (array := sample.inputs[place]) is not None]
        first = sample.inputs[0]
        assert first is not None
        if len(first) >= 9 and not any(count % 16 for count in num_outputs) and is_supported(case):
            yield case


@pytest.mark.parametrize(
    ("capability", "num_tokens_of_sums"), [((8, 0), 256), ((8, 9), 256), ((9, 0), 256), ((9, 0), 0)], ids=str
)
def test_operators_with_many_tokens_conform(
    emulated: Emulated,
    runtime: Runtime,
    capability: tuple[int, int],
    num_tokens_of_sums: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sums of weights that lie one behind the other are one product, with columns between them for their scales."""
    library = emulated.opened.backend._library(0)  # type: ignore[attr-defined]
    monkeypatch.setattr(library, "facts", library.facts._replace(compute_capability=capability))
    monkeypatch.setattr("aethermind_cuda.kernels._float8._MAX_TOKENS_OF_SUMS", num_tokens_of_sums)
    kernels = {kernel.operator: kernel for kernel in load_kernels() if kernel.name == float8.CUBLASLT_FLOAT8}
    assert kernels.keys() == {"linear", "gate_up_silu", "qkv_rope_cache_write", "qkv_rope_cache_write_quantized"}
    num_products = {}
    for kernel in kernels.values():
        cases = [*multiplied_cases(runtime, kernel)]
        emulated.cublaslt.products.clear()
        for case in cases[::3]:
            check_kernel(case, runtime.operators, emulated.opened)
        num_products[kernel.operator] = len(emulated.cublaslt.products) // (2 * len(cases[::3]))
    is_stacked = capability >= (8, 9) and num_tokens_of_sums > 0
    assert [*num_products.values()] == ([1] * 4 if is_stacked else [num_products["linear"], 2, 3, 3])
