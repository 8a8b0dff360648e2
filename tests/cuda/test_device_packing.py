"""Weights quantised on the GPU: the bytes that the host would have packed, and no more memory than a matrix besides."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.cuda.emulator.opening import emulated_cuda
from tests.cuda.test_quantized_weights import NAMES, packed, values

from aethermind import Runtime
from aethermind.dispatch import Dispatcher
from aethermind.errors import CheckpointError, InvalidArgumentError
from aethermind.graph import GraphBuilder, Plan, compile_graph
from aethermind.graph.constants import ConstantStore
from aethermind.hal import DeviceId, DType, Tensor
from aethermind.ops.dims import SymDim
from aethermind.ops.weight_format import parse_format
from aethermind_cuda import device_packing, probe
from aethermind_cuda.backend import CudaBackend
from aethermind_cuda.kernels import load_kernels
from aethermind_cuda.quantized_weights import quantized_pack

CUDA = DeviceId("cuda", 0)
SHAPES = {np.float32: (17, 100), np.float16: (1, 1), ml_dtypes.bfloat16: (35, 260)}


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CudaBackend]:
    """An emulated GPU."""
    with emulated_cuda(tmp_path_factory.mktemp("cubins")):
        backend = probe.open_backend()
        yield backend
        backend.close()


def packed_there(backend: CudaBackend, name: str, array: Any) -> Any:
    """The bytes that the device packs."""
    format = parse_format(name)
    assert format is not None
    pack = quantized_pack(format)
    assert pack.pack_on_device is not None
    nbytes = pack.nbytes(array.shape, DType.FLOAT32)
    tensor = Tensor.of(backend.allocator.alloc(nbytes), DType.UINT8, (nbytes,))
    pack.pack_on_device(backend, array, tensor)
    return downloaded(backend, tensor)


def downloaded(backend: CudaBackend, tensor: Tensor) -> Any:
    result = np.empty(tensor.shape, np.uint8)
    backend.transfer.copy(Tensor.of_numpy(result, CUDA), tensor)
    return result


@pytest.mark.parametrize("name", NAMES)
def test_the_bytes_are_those_that_the_host_packs(backend: CudaBackend, name: str) -> None:
    for dtype, shape in SHAPES.items():
        array = values(shape, dtype)
        array[-1, shape[1] // 2 :] = 0
        assert packed_there(backend, name, array).tobytes() == packed(name, array).tobytes(), (dtype, shape)


@pytest.mark.parametrize("name", ["int8", "int4", "int4_zp", "int4_offset", "int2", "int1"])
def test_blocks_of_one_value_of_two_and_of_tiny_ones(backend: CudaBackend, name: str) -> None:
    rng = np.random.default_rng(1)
    array = np.zeros((12, 64), np.float32)
    array[0] = 3.0
    array[1] = np.where(rng.random(64) < 0.5, -2.0, 5.0)
    array[2] = -1.5
    array[3] = rng.standard_normal(64) * 1e-9
    array[4] = rng.standard_normal(64) * 1e-6
    array[5, 7] = 60000.0
    array[6] = rng.integers(-8, 8, 64)
    array[7:] = rng.standard_normal((5, 64)) * 10.0 ** rng.integers(-6, 4, (5, 1))
    assert packed_there(backend, name, array).tobytes() == packed(name, array).tobytes()


@pytest.mark.parametrize("value", [np.nan, np.inf, -70000.0])
def test_the_device_refuses_what_the_format_refuses(backend: CudaBackend, value: float) -> None:
    array = np.ones((40, 50), np.float32)
    array[39, 49] = value
    with pytest.raises(InvalidArgumentError) as on_host:
        packed("int4_zp", array)
    with pytest.raises(InvalidArgumentError) as on_device:
        packed_there(backend, "int4_zp", array)
    assert str(on_device.value) == str(on_host.value)


def plan_of(runtime: Runtime, shape: tuple[int, int], name: str) -> tuple[Plan, Any]:
    """A product with a weight in a format, and the types of its parameters."""
    builder = GraphBuilder("product", runtime.operators, DType.BFLOAT16)
    x, weight = builder.input("x", DType.BFLOAT16, (SymDim("T"), shape[1])), builder.parameter("w", shape)
    builder.output("y", builder.op("linear", x, weight))
    graph = builder.finish()
    formats = {"w": parse_format(name)}
    compiled = compile_graph(
        graph, runtime.operators, Dispatcher(load_kernels()), "cuda", {"T": 3}, weight_formats=formats
    )
    return compiled.plan, {value.name: value.type for value in graph.parameters}


def test_loading_needs_at_most_one_matrix_beside_the_weights(
    backend: CudaBackend, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_packing, "_STAGING_BYTES", 16 << 10)
    array = values((160, 256), ml_dtypes.bfloat16)
    plan, types = plan_of(runtime, array.shape, "int4")
    gc.collect()  # of stores of the tests before
    before = backend.allocator.stats()
    assert before.allocated_bytes == 0
    store = ConstantStore(backend, CUDA, lambda name, _: {"w": array}[name], types)
    store.load(plan)
    (key,) = plan.constants
    assert downloaded(backend, store.tensor(key)).tobytes() == packed("int4", array).tobytes()
    stats = backend.allocator.stats()
    assert stats.allocated_bytes == store.nbytes
    assert stats.peak_bytes <= max(before.peak_bytes, store.nbytes + array.nbytes)


def test_unrepresentable_values_are_named(backend: CudaBackend, runtime: Runtime) -> None:
    plan, types = plan_of(runtime, (16, 32), "int8")
    array = np.full((16, 32), np.inf, ml_dtypes.bfloat16)
    with pytest.raises(CheckpointError, match=r"Weight 'w' cannot be loaded\. Values that are not finite"):
        ConstantStore(backend, CUDA, lambda name, _: {"w": array}[name], types).load(plan)
