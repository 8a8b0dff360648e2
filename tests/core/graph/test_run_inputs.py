"""Inputs of a run: where they lie, and in how many copies they go up."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.graph.graphs import OPERATORS, dispatcher_of
from tests.core.graph.remote_backend import PackingBackend, RemoteBackend

from aethermind.graph import GraphBuilder, PlanExecutor, compile_graph
from aethermind.graph.constants import ConstantStore
from aethermind.graph.run_inputs import place_inputs
from aethermind.hal import DeviceId, DType, Tensor
from aethermind.hal.host_memory import HostTransfer
from aethermind.hal.memory import ALIGNMENT
from aethermind.ops.dims import SymDim
from aethermind.ops.schema import TensorType

NUMPY = DeviceId("numpy")
TYPES = {
    "a": TensorType(DType.INT32, (SymDim("T"),)),
    "b": TensorType(DType.INT64, (SymDim("T", 1),)),
    "c": TensorType(DType.FLOAT32, (SymDim("R"), 3)),
    "d": TensorType(DType.INT8, (5,)),
}


@given(st.integers(0, 70), st.integers(0, 70))
def test_inputs_lie_behind_each_other_and_aligned(num_tokens: int, num_rows: int) -> None:
    sizes = {"T": num_tokens, "R": num_rows}
    places = place_inputs(TYPES, sizes)
    assert {name: place.nbytes for name, place in places.items()} == {n: t.nbytes(sizes) for n, t in TYPES.items()}
    assert all(place.begin % ALIGNMENT == 0 for place in places.values())
    assert all(0 <= after.begin - sum(before) < ALIGNMENT for before, after in pairwise(places.values()))


class NotingTransfer(HostTransfer):
    """Notes how many bytes each copy had."""

    def __init__(self) -> None:
        self.copied: list[int] = []

    def copy_async(self, destination: Tensor, source: Tensor, stream: object) -> None:
        self.copied.append(source.nbytes)
        self.copy(destination, source)


def executor_of_sum(backend: RemoteBackend) -> PlanExecutor:
    """`a + b + c`, and an input that it only passes on."""
    builder = GraphBuilder("sum", OPERATORS)
    shape = (SymDim("T"), 4)
    a, b, c = (builder.input(name, DType.FLOAT32, shape) for name in "abc")
    builder.output("sum", builder.op("add", builder.op("add", a, b), c))
    builder.output("b", b)
    compiled = compile_graph(builder.finish(), OPERATORS, dispatcher_of(()), "numpy", {"T": 20000})
    return PlanExecutor(compiled.plan, backend, NUMPY, ConstantStore(backend, NUMPY, lambda *_: None, {}), {})


@pytest.mark.parametrize(
    ("backend", "copies"), [(RemoteBackend(), [80, 80, 80]), (PackingBackend(), [2 * 128 + 80])], ids=["each", "packed"]
)
def test_inputs_go_up_in_one_copy_where_they_are_packed(backend: RemoteBackend, copies: list[int]) -> None:
    backend.transfer = transfer = NotingTransfer()
    executor = executor_of_sum(backend)
    for value, name in enumerate("abc"):
        executor.host_inputs[name][:20] = 10**value
    executor.run((5,))
    assert transfer.copied == copies
    assert (executor.output("sum", (5,)) == 111).all()
    assert (executor.output("b", (5,)) == 10).all()


def test_a_late_input_goes_up_when_it_is_filled() -> None:
    backend = PackingBackend()
    backend.transfer = transfer = NotingTransfer()
    executor = executor_of_sum(backend)
    executor.host_inputs["a"][:20] = 1
    executor.host_inputs["c"][:20] = 100
    executor.run_with_late_input((5,), "b", lambda: executor.host_inputs["b"].fill(10))
    assert transfer.copied == [80, 80, 80]
    assert (executor.output("sum", (5,)) == 111).all()


def test_sizes_may_change_from_run_to_run_and_staging_grows() -> None:
    executor = executor_of_sum(PackingBackend())
    assert executor.copies_inputs
    small = executor.input_bytes
    for count in (3, 20000, 1, 0, *range(70), 17):
        for value, name in enumerate("abc"):
            executor.host_inputs[name][: 4 * count] = np.arange(4 * count) * 10**value
        executor.run((count,))
        np.testing.assert_array_equal(executor.output("sum", (count,)).ravel(), np.arange(4 * count) * 111.0)
    assert executor.input_bytes > small
