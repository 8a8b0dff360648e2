"""Running plans: the values are the references', whatever shares memory and wherever it lies."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.graph.graphs import (
    COMPOSITES,
    OPERATORS,
    dispatcher_of,
    given_values,
    model_builder,
    random_builders,
    reference_values,
)
from tests.core.graph.remote_backend import PackingBackend, RemoteBackend
from tests.scale import scaled

from aethermind.errors import DeviceError, PluginError
from aethermind.graph import GraphBuilder, PlanExecutor, compile_graph
from aethermind.graph.constants import ConstantStore
from aethermind.graph.executor import DeviceInput, StepLoop
from aethermind.hal import Backend, DeviceId, DType, Tensor
from aethermind.hal.builtin_backends import NullBackend, NumpyBackend
from aethermind.ops.dims import SymDim

NUMPY = DeviceId("numpy")


class Run:
    """A graph compiled for its greatest symbols, with memory on a backend, and given values."""

    def __init__(
        self,
        builder: GraphBuilder,
        greatest: Mapping[str, int],
        values: Mapping[str, Any],
        backend: Backend | None = None,
        fused: Sequence[str] = (),
        fuse: bool = True,
    ) -> None:
        self.backend = backend or NumpyBackend()
        self.compiled = compile_graph(builder.finish(), OPERATORS, dispatcher_of(fused), "numpy", greatest, fuse=fuse)
        types = {value.name: value.type for value in self.compiled.graph.parameters}
        constants = ConstantStore(self.backend, NUMPY, lambda name, _: values[name], types)
        constants.load(self.compiled.plan)
        self.states = {value.name: self.on_device(values[value.name]) for value in self.compiled.graph.states}
        self.executor = PlanExecutor(self.compiled.plan, self.backend, NUMPY, constants, self.states)
        self.values = values

    def on_device(self, array: np.ndarray[Any, Any]) -> Tensor:
        """A copy in device memory, not at the beginning of its buffer."""
        buffer = self.backend.allocator.alloc(array.nbytes + 64)
        tensor = Tensor.of(buffer, DType.of_numpy(array.dtype), array.shape, 64)
        self.backend.transfer.copy(tensor, Tensor.of_numpy(array, NUMPY))
        return tensor

    def fill_inputs(self) -> None:
        for name in self.compiled.plan.inputs:
            flat = self.values[name].reshape(-1)
            self.executor.host_inputs[name][: flat.size] = flat

    def outputs(self, symbols: Mapping[str, int]) -> dict[str, Any]:
        """Run and copy what came out."""
        self.fill_inputs()
        sizes = tuple(symbols[name] for name in self.compiled.plan.symbols)
        self.executor.run(sizes)
        self.executor.synchronize()
        return {name: self.executor.output(name, sizes).copy() for name in self.compiled.plan.outputs}


def assert_runs_as_the_reference(
    builder: GraphBuilder, symbols: Mapping[str, int], greatest: Mapping[str, int], **options: Any
) -> None:
    graph, values = builder.finish(), given_values(builder, symbols)
    expected = reference_values(graph, values)
    run = Run(builder, greatest, values, **options)
    outputs = run.outputs(symbols)
    written = {cache.name for cache in graph.states}
    for name, value in graph.outputs.items():
        if value.name not in written:  # a state under its own name is what the run left there
            np.testing.assert_array_equal(outputs[name], expected[value.name], err_msg=name)


@given(
    random_builders(),
    st.sets(st.sampled_from(COMPOSITES)).map(tuple),
    st.booleans(),
    st.sampled_from([NumpyBackend, RemoteBackend, PackingBackend]),
    st.sampled_from([{"T": 5, "R": 2}, {"T": 1, "R": 1}, {"T": 0, "R": 0}]),
)
@settings(deadline=None, max_examples=scaled(10_000))
def test_random_plans_compute_what_the_references_do(
    builder: GraphBuilder, fused: tuple[str, ...], fuse: bool, backend: type[Backend], symbols: dict[str, int]
) -> None:
    greatest = {"T": 5, "R": 3}
    assert_runs_as_the_reference(builder, symbols, greatest, backend=backend(), fused=fused, fuse=fuse)


MODEL_SYMBOLS = {"T": 6, "S": 2, "R": 2, "B": 3, "X": 0, "Y": 0, "Z": 0}
MODEL_GREATEST = {"T": 16, "S": 4, "R": 4, "B": 3, "X": 8, "Y": 8, "Z": 8}


@pytest.mark.parametrize("architecture", ["Qwen2ForCausalLM", "Qwen3ForCausalLM"])
@pytest.mark.parametrize("backend", [NumpyBackend, RemoteBackend, PackingBackend])
@pytest.mark.parametrize("fused", [(), COMPOSITES], ids=["small operators", "fused operators"])
@pytest.mark.parametrize("is_adjusted", [False, True])
def test_models_compute_what_the_references_do(
    architecture: str, backend: type[Backend], fused: tuple[str, ...], is_adjusted: bool
) -> None:
    builder = model_builder(architecture, is_adjusted=is_adjusted)
    assert_runs_as_the_reference(builder, MODEL_SYMBOLS, MODEL_GREATEST, backend=backend(), fused=fused)


def test_states_are_written_in_place_and_outlive_a_run() -> None:
    builder = model_builder()
    values = given_values(builder, MODEL_SYMBOLS)
    run = Run(builder, MODEL_GREATEST, values)
    run.outputs(MODEL_SYMBOLS)
    reference = reference_values(builder.finish(), values)
    for layer in range(2):
        prefix = f"model.layers.{layer}.self_attn.qkv_rope_cache_write"
        np.testing.assert_array_equal(run.states[f"k_cache.{layer}"].numpy(), reference[f"{prefix}.k_out"])
        np.testing.assert_array_equal(run.states[f"v_cache.{layer}"].numpy(), reference[f"{prefix}.v_out"])


def test_a_run_repeats_exactly_and_allocates_nothing() -> None:
    builder = model_builder()
    values = given_values(builder, MODEL_SYMBOLS)
    run = Run(builder, MODEL_GREATEST, values)
    first = run.outputs(MODEL_SYMBOLS)
    before = run.backend.allocator.stats()
    second = run.outputs(MODEL_SYMBOLS)
    assert run.backend.allocator.stats() == before
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name])
    assert run.executor.arena_bytes == run.compiled.memory.arena_bytes


@pytest.mark.parametrize("backend", [NumpyBackend, RemoteBackend, PackingBackend])
def test_capturing_hands_over_every_value_under_its_own_name(backend: type[Backend]) -> None:
    builder = model_builder()
    values = given_values(builder, MODEL_SYMBOLS)
    run = Run(builder, MODEL_GREATEST, values, backend=backend(), fuse=False)
    expected = reference_values(run.compiled.graph, values)
    captured: dict[str, Any] = {}
    run.fill_inputs()
    run.executor.run_capturing(tuple(MODEL_SYMBOLS.values()), lambda name, array: captured.update({name: array.copy()}))
    computed = [node for node in run.compiled.graph.nodes if not OPERATORS[node.operator].schema.is_view]
    assert list(captured) == [value.name for node in computed for value in node.outputs]
    assert "model.layers.1.mlp.mlp_swiglu" in captured
    assert "model.layers.0.self_attn.qkv_rope_cache_write.q/linear.1" in captured
    for name, array in captured.items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)


def silu_run(backend: Backend | None = None) -> Run:
    builder = GraphBuilder("g", OPERATORS)
    x, w = builder.input("x", DType.FLOAT32, (SymDim("T"), 4)), builder.parameter("w", (2, 3))
    y = builder.op("silu", x)
    for name, value in (("x", x), ("w", w), ("y", y), ("heads", builder.op("split_heads", y, num_heads=2))):
        builder.output(name, value)
    builder.output("state", builder.state("s", DType.INT32, (3,)))
    values = {
        "x": np.arange(8, dtype=np.float32).reshape(2, 4),
        "w": np.ones((2, 3), np.float32),
        "s": np.array([7, 8, 9], np.int32),
    }
    return Run(builder, {"T": 5}, values, backend)


@pytest.mark.parametrize("backend", [NumpyBackend, RemoteBackend, PackingBackend])
def test_outputs_may_lie_anywhere(backend: type[Backend]) -> None:
    run = silu_run(backend())
    outputs = run.outputs({"T": 2})
    np.testing.assert_array_equal(outputs["x"], run.values["x"])
    np.testing.assert_array_equal(outputs["w"], run.values["w"])
    np.testing.assert_array_equal(outputs["state"], [7, 8, 9])
    np.testing.assert_array_equal(outputs["heads"].reshape(2, 4), outputs["y"])


def test_an_output_outlives_its_executor() -> None:
    run = silu_run()
    expected = run.outputs({"T": 2})["y"]
    output = run.executor.output("y", (2,))
    del run
    gc.collect()
    np.testing.assert_array_equal(output, expected)


def test_inputs_have_room_for_the_largest_run() -> None:
    run = silu_run()
    assert {name: array.shape for name, array in run.executor.host_inputs.items()} == {"x": (20,)}
    assert run.executor.arena_bytes == 128


def test_symbols_must_be_complete() -> None:
    with pytest.raises(ValueError, match="zip"):
        silu_run().executor.run((1, 2))


def test_the_step_loop_runs_parts() -> None:
    run = silu_run()
    run.fill_inputs()
    executable = run.executor.executable
    assert isinstance(executable, StepLoop)
    assert executable.num_native_breaks == 1
    executable.run_steps((2,), 0, 0, run.backend.streams.default())
    assert not run.executor.output("y", (2,)).any()
    executable.run_steps((2,), 0, 1, run.backend.streams.default())
    assert run.executor.output("y", (2,)).any()


def test_the_step_loop_refuses_native_kernels() -> None:
    run = silu_run()
    kernel = type(run.compiled.plan.steps[0].kernel)("silu", "x", "n", frozenset(), native=object())
    from dataclasses import replace

    plan = replace(run.compiled.plan, steps=(replace(run.compiled.plan.steps[0], kernel=kernel),))
    with pytest.raises(PluginError, match="'n' for silu is native, and device x calls Python functions only"):
        StepLoop(plan, {})


def test_the_null_device_computes_nothing() -> None:
    run = silu_run(NullBackend())
    assert not run.outputs({"T": 2})["y"].any()


@pytest.mark.parametrize("backend", [NumpyBackend, RemoteBackend, PackingBackend])
def test_capturing_a_few_values_runs_every_step(backend: type[Backend]) -> None:
    builder = model_builder()
    values = given_values(builder, MODEL_SYMBOLS)
    run = Run(builder, MODEL_GREATEST, values, backend=backend())
    symbols = tuple(MODEL_SYMBOLS.values())
    expected = run.outputs(MODEL_SYMBOLS)["logits"]
    again = Run(builder, MODEL_GREATEST, values, backend=backend())
    again.fill_inputs()
    captured: list[str] = []
    again.executor.run_capturing(symbols, lambda name, _: captured.append(name), {"embedding", "nothing"})
    again.executor.synchronize()
    assert captured == ["embedding"]
    np.testing.assert_array_equal(again.executor.output("logits", symbols), expected)


@pytest.mark.parametrize("backend", [NumpyBackend, RemoteBackend, PackingBackend])
def test_a_timed_run_computes_and_tells_the_time_of_every_step(backend: type[Backend]) -> None:
    run = silu_run(backend())
    run.fill_inputs()
    times = run.executor.run_timed((2,))
    assert len(times) == len(run.compiled.plan.steps)
    assert all(seconds >= 0 for seconds in times)
    assert run.executor.output("y", (2,)).any()


def test_input_bytes_count_what_is_copied_twice() -> None:
    assert silu_run().executor.input_bytes == 80
    staged = 2 * (1 << 16)
    assert silu_run(RemoteBackend()).executor.input_bytes == 160 + staged


@pytest.mark.parametrize(
    ("backend", "expected"),
    [
        (NumpyBackend, ["fill", (0, 2)]),
        (RemoteBackend, [(0, 1), "fill", (1, 2)]),
        (PackingBackend, [(0, 1), "fill", (1, 2)]),
    ],
)
def test_a_late_input_is_written_beside_the_device_or_before_the_host_computes(
    backend: type[Backend], expected: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = GraphBuilder("g", OPERATORS)
    x, late = (builder.input(name, DType.FLOAT32, (SymDim("T"), 4)) for name in ("x", "late"))
    builder.output("y", builder.op("mul", builder.op("silu", x), late))
    values = {name: np.arange(8, dtype=np.float32).reshape(2, 4) for name in ("x", "late")}
    run = Run(builder, {"T": 2}, values, backend())
    run.fill_inputs()
    run.executor.host_inputs["late"][:] = 0
    happened: list[Any] = []
    run_steps = StepLoop.run_steps

    def noting(self: StepLoop, symbols: tuple[int, ...], begin: int, end: int, stream: Any) -> None:
        happened.append((begin, end))
        run_steps(self, symbols, begin, end, stream)

    def fill() -> None:
        happened.append("fill")
        run.executor.host_inputs["late"][:] = values["late"].reshape(-1)

    monkeypatch.setattr(StepLoop, "run_steps", noting)
    run.executor.run_with_late_input((2,), "late", fill)
    run.executor.synchronize()
    assert happened == expected
    expected_y = reference_values(builder.finish(), values)[builder.finish().outputs["y"].name]
    np.testing.assert_array_equal(run.executor.output("y", (2,)), expected_y)


@pytest.mark.parametrize("backend", [NumpyBackend, RemoteBackend, PackingBackend])
@pytest.mark.parametrize("is_filling", [False, True])
def test_an_output_feeds_parts_of_a_later_run(backend: type[Backend], is_filling: bool) -> None:
    """From the device's memory to the device's memory: the host never sees what it did not write."""
    builder = GraphBuilder("g", OPERATORS)
    ids, logits = builder.input("ids", DType.INT32, (SymDim("T"),)), builder.input("x", DType.FLOAT32, (SymDim("T"), 5))
    builder.output("rows", builder.op("gather_rows", logits, ids))
    builder.output("next", builder.op("argmax", logits))
    x = np.eye(5, dtype=np.float32)[[3, 0, 2, 1]]
    run = Run(builder, {"T": 4}, {"ids": np.zeros(4, np.int32), "x": x}, backend())
    executor = run.executor
    run.outputs({"T": 4})
    chosen = executor.output_tensor("next", (4,))
    first, rest = (Tensor.of(chosen.buffer, chosen.dtype, (2,), chosen.offset_bytes + offset) for offset in (0, 8))
    executor.host_inputs["ids"][:4] = [9, 9, 9, 9]
    device_inputs = [DeviceInput("ids", 2, first), DeviceInput("ids", 0, rest)]
    if is_filling:
        executor.run_with_late_input((4,), "x", lambda: None, device_inputs)
    else:
        executor.run((4,), device_inputs)
    executor.synchronize()
    np.testing.assert_array_equal(executor.output("rows", (4,)), x[[2, 1, 3, 0]])


def test_a_device_out_of_the_hosts_reach_needs_an_executable_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step loop would read at addresses that mean something else to the host."""
    monkeypatch.setattr(RemoteBackend, "compile", lambda *_: None)
    with pytest.raises(DeviceError, match=r"is_host_accessible=False\), so its backend has to implement `compile`"):
        silu_run(RemoteBackend())
