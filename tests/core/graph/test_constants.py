"""Weights: read in place where that is possible, converted where it is not, packed once per layout."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.core.graph.graphs import OPERATORS, dispatcher_of
from tests.core.graph.remote_backend import RemoteBackend

from aethermind.dispatch import Dispatcher, Kernel, Pack
from aethermind.errors import CheckpointError
from aethermind.graph import GraphBuilder, Plan, PlanExecutor, compile_graph
from aethermind.graph.constants import ConstantStore, constant_bytes
from aethermind.hal import Buffer, DeviceId, DType
from aethermind.hal.builtin_backends import NumpyBackend
from aethermind.hal.host_memory import HostAllocator
from aethermind.ops.dims import SymDim
from aethermind.ops.schema import TensorType
from aethermind.ops.weight_format import QuantizedWeight, WeightFormat, parse_format

NUMPY = DeviceId("numpy")
SHAPE = (6, 8)


class PackingKernel:
    """A linear kernel that wants its weight transposed, and counts how often it gets it."""

    def __init__(self) -> None:
        self.num_packed = 0
        pack = Pack("transposed", lambda shape, dtype: shape[0] * shape[1] * dtype.itemsize, self.pack)
        self.kernel = Kernel(
            "linear", "numpy", "packing", frozenset({DType.FLOAT32}), 9, function=print, packs={"weight": pack}
        )

    def pack(self, source: np.ndarray[Any, Any], address: int) -> None:
        self.num_packed += 1
        data = np.ascontiguousarray(source.T).tobytes()
        ctypes.memmove(address, data, len(data))


def linear_plan(
    dispatcher: Dispatcher, dtype: DType = DType.FLOAT32, name: str = "g", format: WeightFormat | None = None
) -> Plan:
    builder = GraphBuilder(name, OPERATORS, dtype)
    x, weight = builder.input("x", dtype, (SymDim("T"), SHAPE[1])), builder.parameter("w", SHAPE)
    builder.output("y", builder.op("linear", x, weight))
    builder.output("z", builder.op("linear", x, weight))
    formats = None if format is None else {"w": format}
    return compile_graph(builder.finish(), OPERATORS, dispatcher, "numpy", {"T": 3}, weight_formats=formats).plan


class Source:
    """A checkpoint with one weight, which counts its readers."""

    def __init__(self, array: np.ndarray[Any, Any] | QuantizedWeight) -> None:
        self.array: Any = array
        self.reads: list[str] = []

    def read(self, name: str, _: Any) -> np.ndarray[Any, Any] | QuantizedWeight:
        self.reads.append(name)
        return self.array


def test_a_function_gets_the_bytes_of_its_own_layout() -> None:
    """The weight transposed, as half as many bytes as its type says."""

    def pack_half(source: np.ndarray[Any, Any], address: int) -> None:
        data = np.ascontiguousarray(source.T).astype(np.float16).tobytes()
        ctypes.memmove(address, data, len(data))

    def compute(inputs: Any, outputs: Any, _: Any) -> None:
        x, packed, _bias = inputs
        assert (packed.dtype, packed.shape) == (np.uint8, (96,))
        outputs[0][...] = x @ packed.view(np.float16).reshape(SHAPE[::-1]).astype(np.float32)

    pack = Pack("half", lambda shape, _: shape[0] * shape[1] * 2, pack_half)
    kernel = Kernel("linear", "numpy", "k", frozenset({DType.FLOAT32}), 9, function=compute, packs={"weight": pack})
    plan, backend = linear_plan(Dispatcher([kernel])), NumpyBackend()
    store = store_of(Source(numbers()), backend=backend)
    store.load(plan)
    executor = PlanExecutor(plan, backend, NUMPY, store, {})
    x = np.arange(24, dtype=np.float32).reshape(3, 8)
    executor.host_inputs["x"][:24] = x.reshape(-1)
    executor.run((3,))
    np.testing.assert_array_equal(executor.output("y", (3,)), x @ numbers().T)


def store_of(source: Source, dtype: DType = DType.FLOAT32, backend: Any = None) -> ConstantStore:
    types: Mapping[str, TensorType] = {"w": TensorType(dtype, SHAPE)}
    return ConstantStore(backend or NumpyBackend(), NUMPY, source.read, types)


def reader(values: Mapping[str, Any]) -> Any:
    """A function that reads a parameter, in whichever format."""
    return lambda name, _: values[name]


def numbers(dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return np.arange(48).reshape(SHAPE).astype(dtype)


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16], ids=str)
def test_a_weight_of_the_right_dtype_is_not_copied(dtype: DType) -> None:
    source = Source(numbers(dtype.numpy))
    source.array.flags.writeable = False
    store = store_of(source, dtype)
    store.load(linear_plan(dispatcher_of(), dtype))
    assert store.address("w") == source.array.ctypes.data
    assert np.shares_memory(store.tensor("w").numpy(), source.array)
    assert store.nbytes == source.array.nbytes
    assert store.packed_bytes == 0


@pytest.mark.parametrize(
    "array",
    [numbers(np.float16), numbers(ml_dtypes.bfloat16), np.asfortranarray(numbers()), numbers(np.float64)],
    ids=["float16", "bfloat16", "column-major", "float64"],
)
def test_another_dtype_or_layout_is_converted(array: np.ndarray[Any, Any]) -> None:
    store = store_of(Source(array))
    store.load(linear_plan(dispatcher_of()))
    tensor = store.tensor("w")
    assert (tensor.dtype, tensor.shape, tensor.is_contiguous) == (DType.FLOAT32, SHAPE, True)
    np.testing.assert_array_equal(tensor.numpy(), numbers())
    assert not np.shares_memory(tensor.numpy(), array)


def test_a_weight_between_addresses_is_copied_to_an_aligned_one() -> None:
    raw = np.zeros(48 * 4 + 1, np.uint8)
    array = raw[1:].view(np.float32).reshape(SHAPE)
    array[...] = numbers()
    store = store_of(Source(array))
    store.load(linear_plan(dispatcher_of()))
    assert store.address("w") % 4 == 0
    np.testing.assert_array_equal(store.tensor("w").numpy(), numbers())


def test_a_layout_is_packed_once_for_all_plans() -> None:
    packing, source = PackingKernel(), Source(numbers())
    store = store_of(source)
    dispatcher = Dispatcher([packing.kernel])
    progress: list[tuple[int, int]] = []
    for name in ("first", "second"):
        store.load(linear_plan(dispatcher, name=name), lambda done, total: progress.append((done, total)))
    assert (packing.num_packed, source.reads, progress) == (1, ["w"], [(1, 1)])
    packed = store.tensor("w#transposed")
    assert (packed.dtype, packed.shape) == (DType.UINT8, (192,))
    np.testing.assert_array_equal(packed.numpy().view(np.float32).reshape(8, 6), numbers().T)
    assert store.address("w#transposed") % 64 == 0


class AheadAllocator(HostAllocator):
    """Sets memory aside, where it has room."""

    def __init__(self, *, has_room: bool) -> None:
        super().__init__(NUMPY)
        self.has_room = has_room
        self.ahead: list[Buffer] = []

    def alloc_ahead(self, sizes: Sequence[int]) -> list[Buffer]:
        self.ahead = [self.alloc(nbytes) for nbytes in sizes] if self.has_room else []
        return self.ahead


@pytest.mark.parametrize("has_room", [True, False])
def test_weights_are_packed_into_memory_that_was_set_aside_for_them(has_room: bool) -> None:
    backend = NumpyBackend()
    backend.allocator = allocator = AheadAllocator(has_room=has_room)
    plan = linear_plan(Dispatcher([PackingKernel().kernel]))
    store = store_of(Source(numbers()), backend=backend)
    store.preallocate(plan)
    assert [buffer.nbytes for buffer in allocator.ahead] == [store_bytes := 48 * 4] * has_room
    store.load(plan)
    assert store.nbytes == store_bytes
    assert allocator.stats().num_allocations == 1
    np.testing.assert_array_equal(store.tensor("w#transposed").numpy().view(np.float32), numbers().T.reshape(-1))


def test_a_weight_in_two_layouts_counts_twice() -> None:
    source = Source(numbers())
    store = store_of(source)
    store.load(linear_plan(Dispatcher([PackingKernel().kernel])))
    store.load(linear_plan(dispatcher_of()))
    assert source.reads == ["w", "w"]
    assert store.nbytes == 2 * source.array.nbytes
    assert store.packed_bytes == source.array.nbytes


def test_weights_are_packed_in_the_dtype_of_the_model() -> None:
    packing = PackingKernel()
    store = store_of(Source(numbers(ml_dtypes.bfloat16)))
    store.load(linear_plan(Dispatcher([packing.kernel])))
    packed = store.tensor("w#transposed").numpy().view(np.float32).reshape(8, 6)
    np.testing.assert_array_equal(packed, numbers().T)


def test_a_device_that_the_host_cannot_reach_gets_a_copy() -> None:
    source, backend = Source(numbers(np.float16)), RemoteBackend()
    store = store_of(source, backend=backend)
    store.load(linear_plan(dispatcher_of()))
    tensor = store.tensor("w")
    assert not tensor.buffer.is_host_accessible
    assert backend.allocator.stats().allocated_bytes == 192
    np.testing.assert_array_equal(backend.peek(tensor), numbers())


def gated_plan(*parameters: str, name: str = "g", inner: int = 32) -> tuple[Plan, dict[str, TensorType]]:
    """gate_up_silu of two parameters, which may be one, and a linear layer of the first."""
    builder = GraphBuilder(name, OPERATORS, DType.FLOAT32)
    x = builder.input("x", DType.FLOAT32, (SymDim("T"), 8))
    weights = {one: builder.parameter(one, (inner, 8)) for one in dict.fromkeys(parameters)}
    if len(parameters) == 2:
        builder.output("y", builder.op("gate_up_silu", x, *(weights[one] for one in parameters)))
    builder.output("z", builder.op("linear", x, weights[parameters[0]]))
    kernels = [
        Kernel(operator, "numpy", "fused", frozenset({DType.FLOAT32}), function=print)
        for operator in ("linear", "gate_up_silu")
    ]
    plan = compile_graph(builder.finish(), OPERATORS, Dispatcher(kernels), "numpy", {"T": 3}).plan
    return plan, {one: TensorType(DType.FLOAT32, (inner, 8)) for one in weights}


def random_weights(*names: str, inner: int = 32) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=(inner, 8)).astype(np.float32) for name in names}


def test_constants_of_a_step_are_adjacent_where_they_are_copied() -> None:
    plan, types = gated_plan("gate", "up")
    weights, backend = random_weights("gate", "up"), RemoteBackend()
    store = ConstantStore(backend, NUMPY, reader(weights), types)
    progress: list[tuple[int, int]] = []
    store.load(plan, lambda done, total: progress.append((done, total)))
    gate, up = store.tensor("gate"), store.tensor("up")
    assert up.address == gate.address + gate.nbytes
    assert progress == [(1, 2), (2, 2)]
    assert store.nbytes == constant_bytes(plan, types) == backend.allocator.stats().allocated_bytes == 2 * 32 * 8 * 4
    assert backend.allocator.stats().num_allocations == 1
    for name, array in weights.items():
        np.testing.assert_array_equal(backend.peek(store.tensor(name)), array)
    del gate
    del store
    assert backend.allocator.stats().allocated_bytes > 0, "a tensor keeps the memory that it shares"
    del up
    assert backend.allocator.stats().allocated_bytes == 0


def test_a_device_that_reads_in_place_gets_no_copies() -> None:
    plan, types = gated_plan("gate", "up")
    weights = random_weights("gate", "up")
    store = ConstantStore(NumpyBackend(), NUMPY, reader(weights), types)
    store.load(plan)
    assert all(store.address(name) == array.ctypes.data for name, array in weights.items())


def test_sizes_between_multiples_of_256_bytes_have_allocations_of_their_own() -> None:
    plan, types = gated_plan("gate", "up", inner=31)
    backend = RemoteBackend()
    ConstantStore(backend, NUMPY, reader(random_weights("gate", "up", inner=31)), types).load(plan)
    assert backend.allocator.stats().num_allocations == 2


def test_a_constant_that_is_there_already_is_not_moved() -> None:
    """Of a plan loaded before, or of an earlier step: others are adjacent without it."""
    backend = RemoteBackend()
    first, types = gated_plan("gate")
    second, more = gated_plan("gate", "up", name="second")
    weights = random_weights("gate", "up")
    store = ConstantStore(backend, NUMPY, reader(weights), types | more)
    store.load(first)
    address = store.address("gate")
    store.load(second)
    assert store.address("gate") == address
    assert backend.allocator.stats().num_allocations == 2
    for name, array in weights.items():
        np.testing.assert_array_equal(backend.peek(store.tensor(name)), array)


def test_one_constant_for_two_inputs_of_a_step_is_loaded_once() -> None:
    plan, types = gated_plan("gate", "gate")
    backend = RemoteBackend()
    store = ConstantStore(backend, NUMPY, reader(random_weights("gate")), types)
    store.load(plan)
    assert store.nbytes == backend.allocator.stats().allocated_bytes == 32 * 8 * 4


def test_what_was_placed_before_a_weight_that_cannot_be_loaded_stays() -> None:
    plan, types = gated_plan("gate", "up")
    weights, backend = random_weights("gate", "up"), RemoteBackend()
    given = {"gate": weights["gate"], "up": np.full((32, 8), 1e300)}
    store = ConstantStore(backend, NUMPY, reader(given), types)
    with pytest.raises(CheckpointError, match="'up' cannot be loaded"):
        store.load(plan)
    given["up"] = weights["up"]
    store.load(plan)
    for name, array in weights.items():
        np.testing.assert_array_equal(backend.peek(store.tensor(name)), array)


def format_of(name: str) -> WeightFormat:
    found = parse_format(name)
    assert found is not None
    return found


INT4, INT8 = format_of("int4"), format_of("int8")


def fractions(dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return np.sin(np.arange(48)).reshape(SHAPE).astype(dtype)


def keeping_kernel(format: WeightFormat) -> tuple[Kernel, list[Any]]:
    """A linear kernel whose pack remembers what it was given."""
    given: list[Any] = []
    pack = Pack(f"kept_{format.name}", lambda *_: 5, lambda source, _: given.append(source), format.name)
    kernel = Kernel("linear", "numpy", "keeping", frozenset({DType.BFLOAT16, DType.FLOAT32}), 9, function=print,
                    packs={"weight": pack}, weight_formats=frozenset({format.name}))  # fmt: skip
    return kernel, given


@pytest.mark.parametrize("backend", [NumpyBackend(), RemoteBackend()], ids=["host", "remote"])
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16], ids=str)
def test_kernels_without_a_pack_get_the_values_as_float32(dtype: DType, backend: Any) -> None:
    plan = linear_plan(dispatcher_of(), dtype, format=INT4)
    for source in (fractions(np.float16), INT4.quantize(fractions(np.float16))):
        store = store_of(Source(source), dtype, backend)
        store.load(plan)
        tensor = store.tensor("w@int4")
        assert tensor.dtype is DType.FLOAT32
        values = tensor.numpy() if tensor.buffer.is_host_accessible else backend.peek(tensor)
        np.testing.assert_array_equal(values, INT4.dequantize(INT4.quantize(fractions(np.float16))))
        assert store.nbytes == constant_bytes(plan, {"w": TensorType(dtype, SHAPE)}) == 48 * 4


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_packs_of_a_format_get_the_checkpoints_own_numbers(dtype: Any) -> None:
    """Whatever the model computes in: rounding them before would cost twice."""
    kernel, given = keeping_kernel(INT8)
    source = Source(fractions(dtype))
    store_of(source, DType.BFLOAT16).load(linear_plan(Dispatcher([kernel]), DType.BFLOAT16, format=INT8))
    (array,) = given
    assert np.shares_memory(array, source.array)


def test_other_numbers_are_converted_for_packs() -> None:
    kernel, given = keeping_kernel(INT8)
    store_of(Source(fractions(np.float64))).load(linear_plan(Dispatcher([kernel]), format=INT8))
    store_of(Source(np.asfortranarray(fractions()))).load(linear_plan(Dispatcher([kernel]), format=INT8))
    for array in given:
        assert (array.dtype, array.flags.c_contiguous) == (np.float32, True)
        np.testing.assert_array_equal(array, fractions())


def test_packs_get_quantised_weights_as_they_are() -> None:
    kernel, given = keeping_kernel(INT4)
    own, other = INT4.quantize(fractions()), INT8.quantize(fractions())
    store = store_of(Source(own))
    plan = linear_plan(Dispatcher([kernel]), format=INT4)
    store.load(plan)
    store_of(Source(other)).load(plan)
    assert given[0] is own
    np.testing.assert_array_equal(given[1], INT8.dequantize(other))
    assert (store.nbytes, store.packed_bytes) == (5, 5)
    assert constant_bytes(plan, {"w": TensorType(DType.FLOAT32, SHAPE)}) == 5


def test_a_quantised_checkpoint_serves_dense_operators() -> None:
    quantized = INT8.quantize(fractions())
    store = store_of(Source(quantized), DType.BFLOAT16)
    store.load(linear_plan(dispatcher_of(), DType.BFLOAT16))
    np.testing.assert_array_equal(store.tensor("w").numpy(), INT8.dequantize(quantized).astype(ml_dtypes.bfloat16))


@pytest.mark.parametrize("value", [np.nan, 1e9])
def test_a_weight_that_no_format_holds_is_named(value: float) -> None:
    array = fractions()
    array[3, 3] = value
    with pytest.raises(CheckpointError, match=r"Weight 'w' cannot be loaded\. .*int4"):
        store_of(Source(array)).load(linear_plan(dispatcher_of(), format=INT4))


def test_a_format_of_a_plugin_is_asked_for_everything() -> None:
    """A format of its own arithmetic: sixteenths, and no scales."""

    class Sixteenths(WeightFormat):
        def quantize(self, array: Any) -> QuantizedWeight:
            codes = np.rint(np.asarray(array, np.float32) * 16).astype(np.int8)
            return QuantizedWeight(self, codes, np.ones((len(array), 1), np.float16))

        def dequantize(self, weight: QuantizedWeight, dtype: Any = "float32") -> Any:
            return (weight.codes / 16).astype(dtype)

    store = store_of(Source(fractions()))
    store.load(linear_plan(dispatcher_of(), format=Sixteenths("sixteenths", 8, 0, has_zero_point=False)))
    np.testing.assert_array_equal(store.tensor("w@sixteenths").numpy(), np.rint(fractions() * 16) / 16)
