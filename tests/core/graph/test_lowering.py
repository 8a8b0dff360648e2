"""Lowering chooses the largest operators that have kernels, and never changes what a graph computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.graph.graphs import (
    COMPOSITES,
    OPERATORS,
    composite_kernel,
    dispatcher_of,
    given_values,
    model_builder,
    random_builders,
    reference_values,
)
from tests.scale import scaled

from aethermind.dispatch import Dispatcher, Fallback, Kernel
from aethermind.dispatch.reference import reference_kernels
from aethermind.errors import KernelNotFoundError
from aethermind.graph import Graph, GraphBuilder
from aethermind.graph.lowering import lower
from aethermind.hal import DType
from aethermind.ops.dims import SymDim
from aethermind.ops.operator import Operator, OperatorRegistry
from aethermind.ops.schema import OperatorSchema
from aethermind.ops.weight_format import WeightFormat, parse_format

SYMBOLS = {"T": 5, "R": 2, "S": 2, "B": 3, "X": 0, "Y": 0, "Z": 0}
subsets = st.sets(st.sampled_from(COMPOSITES)).map(sorted)


def assert_same_outputs(builder: GraphBuilder, lowered: Graph, symbols: dict[str, int] = SYMBOLS) -> None:
    graph = builder.finish()
    values = given_values(builder, symbols)
    before, after = reference_values(graph, values), reference_values(lowered, values)
    for name, value in graph.outputs.items():
        assert lowered.outputs[name] == value
        np.testing.assert_array_equal(after[value.name], before[value.name], err_msg=name)


def assert_single_assignment(graph: Graph) -> None:
    known = {value.name for value in (*graph.inputs, *graph.parameters, *graph.states)}
    for node in graph.nodes:
        assert {value.name for value in node.inputs if value is not None} <= known
        for value in node.outputs:
            assert value.name not in known
            known.add(value.name)
    assert {value.name for value in graph.outputs.values()} <= known


@given(random_builders(), subsets, st.booleans())
@settings(deadline=None, max_examples=scaled(10_000))
def test_random_graphs_compute_the_same(builder: GraphBuilder, fused: list[str], fuse: bool) -> None:
    graph = builder.finish()
    lowered = lower(graph, OPERATORS, dispatcher_of(fused), "numpy", fuse=fuse)
    assert_single_assignment(lowered.graph)
    assert_same_outputs(builder, lowered.graph)
    left = {node.operator for node in lowered.graph.nodes} & set(COMPOSITES)
    assert left <= (set(fused) if fuse else set())
    assert lowered.fallbacks == ()


@pytest.mark.parametrize("architecture", ["Qwen2ForCausalLM", "Qwen3ForCausalLM"])
@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("fused", [(), ("mlp_swiglu",), ("gate_up_silu", "qkv_rope_cache_write"), COMPOSITES], ids=str)
def test_models_compute_the_same(architecture: str, fuse: bool, fused: tuple[str, ...]) -> None:
    builder = model_builder(architecture, is_adjusted=True)
    lowered = lower(builder.finish(), OPERATORS, dispatcher_of(fused), "numpy", fuse=fuse)
    assert_single_assignment(lowered.graph)
    assert_same_outputs(builder, lowered.graph)


def operators_of(lowered: Any) -> list[str]:
    return [node.operator for node in lowered.graph.nodes]


@pytest.fixture
def mlp() -> Graph:
    builder = GraphBuilder("g", OPERATORS)
    x = builder.input("x", DType.FLOAT32, (SymDim("T"), 8))
    weights = [builder.parameter(name, shape) for name, shape in (("g", (6, 8)), ("u", (6, 8)), ("d", (8, 6)))]
    with builder.scope("mlp"):
        builder.output("out", builder.op("mlp_swiglu", x, *weights))
    return builder.finish()


@pytest.mark.parametrize(
    ("fused", "expected"),
    [
        (("mlp_swiglu", "gate_up_silu"), ["mlp_swiglu"]),
        (("gate_up_silu", "silu_mul"), ["gate_up_silu", "linear"]),
        (("silu_mul",), ["linear", "linear", "silu_mul", "linear"]),
        ((), ["linear", "linear", "silu", "mul", "linear"]),
    ],
)
def test_the_largest_operator_with_a_kernel_is_taken(mlp: Graph, fused: tuple[str, ...], expected: list[str]) -> None:
    lowered = lower(mlp, OPERATORS, dispatcher_of(fused), "numpy")
    assert operators_of(lowered) == expected
    assert [resolution.chosen.operator for resolution in lowered.resolutions] == expected  # type: ignore[union-attr]


def test_inner_values_are_named_after_the_value_they_lead_to(mlp: Graph) -> None:
    lowered = lower(mlp, OPERATORS, dispatcher_of(), "numpy")
    assert [node.outputs[0].name for node in lowered.graph.nodes] == [
        "mlp.mlp_swiglu/gate_up_silu/linear",
        "mlp.mlp_swiglu/gate_up_silu/linear.1",
        "mlp.mlp_swiglu/gate_up_silu/silu",
        "mlp.mlp_swiglu/gate_up_silu",
        "mlp.mlp_swiglu",
    ]


def test_without_fusion_an_operator_whose_parts_have_no_kernels_stays_whole(mlp: Graph) -> None:
    only_whole = Dispatcher([composite_kernel("mlp_swiglu")])
    assert operators_of(lower(mlp, OPERATORS, only_whole, "numpy", fuse=False)) == ["mlp_swiglu"]
    some_parts = Dispatcher([composite_kernel("mlp_swiglu"), composite_kernel("gate_up_silu"), linear_kernel()])
    assert operators_of(lower(mlp, OPERATORS, some_parts, "numpy", fuse=False)) == ["gate_up_silu", "linear"]


def linear_kernel(dtypes: tuple[DType, ...] = (DType.FLOAT32,), **options: Any) -> Kernel:
    return Kernel("linear", "numpy", "own/linear", frozenset(dtypes), function=print, **options)


@pytest.mark.parametrize("fallback", [Fallback.WARN, Fallback.ALLOW])
def test_fallbacks_are_marked_and_listed_once(mlp: Graph, fallback: Fallback) -> None:
    dispatcher = dispatcher_of(["gate_up_silu"], has_references=False, with_fallbacks=True)
    lowered = lower(mlp, OPERATORS, dispatcher, "numpy", fallback=fallback)
    assert operators_of(lowered) == ["gate_up_silu", "linear"]
    assert [resolution is not None and resolution.is_fallback for resolution in lowered.resolutions] == [False, True]
    assert lowered.fallbacks == ("linear",)
    many = lower(mlp, OPERATORS, dispatcher_of(has_references=False, with_fallbacks=True), "numpy", fallback=fallback)
    assert many.fallbacks == ("linear", "silu", "mul")


def test_a_fallback_keeps_the_reasons_against_the_devices_own(mlp: Graph) -> None:
    own = linear_kernel((DType.BFLOAT16,))
    references = dispatcher_of(has_references=False, with_fallbacks=True)
    dispatcher = Dispatcher([own], [references.resolve_fallback(signature_of(name)).chosen for name in PARTS])
    lowered = lower(mlp, OPERATORS, dispatcher, "numpy")
    first = lowered.resolutions[0]
    assert first is not None
    assert first.explain() == "linear → reference (fallback) (rejected own/linear: computes bfloat16, not float32)"


PARTS = ("linear", "silu", "mul")


def signature_of(operator: str) -> Any:
    from aethermind.dispatch import Signature

    return Signature(operator, "numpy", DType.FLOAT32, (), {})


def test_an_operator_that_nothing_computes_is_one_sentence(mlp: Graph) -> None:
    picky = linear_kernel(supports=lambda _: "K must be a multiple of 64")
    others = [kernel for kernel in reference_kernels(OPERATORS, "numpy") if kernel.operator != "linear"]
    for dispatcher, fallback in (
        (Dispatcher([picky, *others]), Fallback.WARN),
        (Dispatcher([picky, *others], [linear_kernel()]), Fallback.ERROR),
    ):
        with pytest.raises(
            KernelNotFoundError,
            match=r"^No kernel for operator linear on numpy \(float32\)\. "
            r"Considered: own/linear \(K must be a multiple of 64\)\. Choose another dtype or device",
        ):
            lower(mlp, OPERATORS, dispatcher, "numpy", fallback=fallback)
    with pytest.raises(KernelNotFoundError, match=r"^No kernel for operator linear .*Considered: none\."):
        lower(mlp, OPERATORS, Dispatcher(others), "numpy")


def test_all_operators_that_nothing_computes_are_named_at_once(mlp: Graph) -> None:
    picky = linear_kernel(supports=lambda _: "K must be a multiple of 64")
    silu = [kernel for kernel in reference_kernels(OPERATORS, "numpy") if kernel.operator == "silu"]
    with pytest.raises(KernelNotFoundError) as caught:
        lower(mlp, OPERATORS, Dispatcher([picky, *silu]), "numpy", weight_formats=formats_of(d="int4"))
    assert str(caught.value) == (
        "No kernels for 3 operators on numpy: linear (float32; considered: own/linear (K must be a multiple of 64)); "
        "mul (float32; considered: none); linear (float32, int4 weights; considered: own/linear (reads dense weights, "
        "not int4)). Choose another quantization, dtype or device, or install a backend that has them; `aethermind "
        "explain` shows where they are used."
    )


def test_a_fused_kernel_stands_in_for_parts_of_which_several_are_missing(mlp: Graph) -> None:
    whole = Kernel("mlp_swiglu", "numpy", "own", frozenset({DType.FLOAT32}), function=print)
    for fuse in (True, False):
        assert operators_of(lower(mlp, OPERATORS, Dispatcher([whole]), "numpy", fuse=fuse)) == ["mlp_swiglu"]


def formats_of(**names: str) -> dict[str, WeightFormat]:
    return {name: found for name, format in names.items() if (found := parse_format(format))}


def reads(operator: str, *formats: str) -> Kernel:
    return Kernel(operator, "numpy", "own", frozenset({DType.FLOAT32}), 5, function=print,
                  weight_formats=frozenset(formats))  # fmt: skip


@pytest.mark.parametrize(
    ("formats", "expected"),
    [
        ({"g": "int4", "u": "int4", "d": "int4"}, ["mlp_swiglu"]),
        ({"g": "int4", "u": "int4", "d": "int8"}, ["gate_up_silu", "linear"]),
        ({"g": "int4", "u": "int4"}, ["gate_up_silu", "linear"]),
        ({"g": "int4", "d": "int4"}, ["linear", "linear", "silu", "mul", "linear"]),
        ({"g": "int4", "u": "int8", "d": "int4"}, ["linear", "linear", "silu", "mul", "linear"]),
        ({"g": "int2", "u": "int2", "d": "int2"}, ["linear", "linear", "silu", "mul", "linear"]),
        ({}, ["linear", "linear", "silu", "mul", "linear"]),
    ],
)
def test_fused_operators_need_weights_of_one_format(mlp: Graph, formats: dict[str, str], expected: list[str]) -> None:
    """A device that fuses int4 only, and has the references for everything else."""
    fused = [reads("mlp_swiglu", "int4"), reads("gate_up_silu", "int4")]
    dispatcher = Dispatcher([*fused, *reference_kernels(OPERATORS, "numpy")])
    lowered = lower(mlp, OPERATORS, dispatcher, "numpy", weight_formats=formats_of(**formats))
    assert operators_of(lowered) == expected


def test_signatures_name_the_formats_of_weights(mlp: Graph) -> None:
    lowered = lower(mlp, OPERATORS, dispatcher_of(), "numpy", weight_formats=formats_of(g="int4", d="int1"))
    found = [resolution.signature.weight_format for resolution in lowered.resolutions if resolution]
    assert found == ["int4", "dense", "dense", "dense", "int1"]


def test_weights_that_differ_are_the_reason_against_a_fused_kernel(mlp: Graph) -> None:
    dispatcher = Dispatcher([reads("mlp_swiglu", "dense", "int4"), reads("gate_up_silu", "int4"), linear_kernel()])
    with pytest.raises(KernelNotFoundError, match=r"linear .*int4 weights.* dense weights, not int4.*quantization"):
        lower(mlp, OPERATORS, dispatcher, "numpy", weight_formats=formats_of(g="int4", u="int8"))
    (step,) = lower(mlp, OPERATORS, dispatcher, "numpy").resolutions
    assert step is not None
    assert step.chosen is not None


def test_a_format_that_the_device_cannot_read_falls_back_to_the_reference(mlp: Graph) -> None:
    own = [reads("mlp_swiglu", "dense"), reads("linear", "dense", "int8")]
    dispatcher = Dispatcher(own, reference_kernels(OPERATORS, "numpy"))
    formats = formats_of(g="int4", u="int4", d="int4")
    lowered = lower(mlp, OPERATORS, dispatcher, "numpy", weight_formats=formats)
    assert lowered.fallbacks == ("linear", "silu", "mul")
    with pytest.raises(KernelNotFoundError, match="int4 weights"):
        lower(mlp, OPERATORS, dispatcher, "numpy", fallback=Fallback.ERROR, weight_formats=formats)


def test_tables_that_rows_are_taken_from_are_dense() -> None:
    builder = GraphBuilder("g", OPERATORS)
    ids, table = builder.input("ids", DType.INT32, (SymDim("T"),)), builder.parameter("table", (9, 8))
    builder.output("logits", builder.op("lm_head", builder.op("embedding", ids, table), table))
    lowered = lower(builder.finish(), OPERATORS, dispatcher_of(), "numpy", weight_formats=formats_of(table="int8"))
    found = [resolution.signature.weight_format for resolution in lowered.resolutions if resolution]
    assert found == ["dense", "int8"]


def composite(signature: str, decompose: Callable[..., Any]) -> Operator:
    return Operator(OperatorSchema.parse(signature), "", lambda _: iter(()), decompose=decompose)


def test_nested_decompositions_never_share_a_name() -> None:
    inner = composite("inner(x: F[T, D], w: W[D, D]) -> (out: F[T, D])",
                      lambda b, x, w: b.op("silu", b.op("linear", x, w, None)))  # fmt: skip
    outer = composite("outer(x: F[T, D], w: W[D, D]) -> (out: F[T, D])",
                      lambda b, x, w: b.op("inner", b.op("linear", x, w, None), w))  # fmt: skip
    operators = OperatorRegistry([*OPERATORS, inner, outer])
    builder = GraphBuilder("g", operators)
    x, w = builder.input("x", DType.FLOAT32, (SymDim("T"), 8)), builder.parameter("w", (8, 8))
    builder.output("y", builder.op("outer", x, w))
    lowered = lower(builder.finish(), operators, dispatcher_of(), "numpy").graph
    assert [node.outputs[0].name for node in lowered.nodes] == ["outer/linear", "outer/linear.1", "outer"]
    assert_single_assignment(lowered)


@pytest.mark.parametrize(
    "decompose",
    [
        lambda _, x: (x, x),
        lambda b, x: (b.op("silu", x), x),
        lambda b, x: (b.op("silu", x),),
        lambda b, x: (b.op("silu", x), b.op("split_heads", x, num_heads=1)),
    ],
)
def test_a_decomposition_must_compute_what_its_schema_promises(decompose: Callable[..., Any]) -> None:
    operators = OperatorRegistry([*OPERATORS, composite("two(x: F[T, D]) -> (a: F[T, D], b: F[T, D])", decompose)])
    builder = GraphBuilder("g", operators)
    builder.op("two", builder.input("x", DType.FLOAT32, (SymDim("T"), 8)))
    with pytest.raises((AssertionError, ValueError)):
        lower(builder.finish(), operators, dispatcher_of(), "numpy")
