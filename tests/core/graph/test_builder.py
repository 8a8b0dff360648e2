"""Writing graphs: names, scopes, checks."""

from __future__ import annotations

import numpy as np
import pytest
from tests.core.graph.graphs import OPERATORS

from aethermind.errors import OperatorError
from aethermind.graph import GraphBuilder
from aethermind.graph.builder import in_dtype
from aethermind.hal import DType
from aethermind.ops.dims import SymDim
from aethermind.ops.schema import TensorType

T = SymDim("T")


@pytest.fixture
def builder() -> GraphBuilder:
    return GraphBuilder("g", OPERATORS, DType.BFLOAT16)


def test_values_keep_the_names_of_their_scopes(builder: GraphBuilder) -> None:
    x = builder.input("x", DType.BFLOAT16, (T, 8))
    with builder.scope("layers.0"), builder.scope("mlp"):
        y = builder.op("silu", x)
        z = builder.op("silu", x)
    w = builder.op("silu", x)
    assert [value.name for value in (y, z, w)] == ["layers.0.mlp.silu", "layers.0.mlp.silu.1", "silu"]


def test_several_outputs_are_named_after_the_schema_and_share_a_number(builder: GraphBuilder) -> None:
    x, weight = builder.input("x", DType.BFLOAT16, (T, 8)), builder.parameter("w", (8,))
    builder.input("add_rms_norm.total", DType.BFLOAT16, (T, 8))
    out, total = builder.op("add_rms_norm", x, x, weight, eps=1e-6)
    assert (out.name, total.name) == ("add_rms_norm.out.1", "add_rms_norm.total.1")
    assert out.type == total.type == TensorType(DType.BFLOAT16, (T, 8))


def test_a_graph_lists_what_was_declared(builder: GraphBuilder) -> None:
    x = builder.input("x", DType.INT32, (T,))
    table = builder.parameter("table", (10, 4))
    scale = builder.constant("scale", np.ones(3, np.float32))
    cache = builder.state("cache", DType.FLOAT16, (2, 2))
    y = builder.op("embedding", x, table)
    builder.output("y", y)
    graph = builder.finish()
    assert (graph.inputs, graph.parameters, graph.states) == ((x,), (table, scale), (cache,))
    assert graph.outputs == {"y": y}
    assert list(graph.values()) == [x, table, scale, cache, y]
    assert graph.symbols() == ("T",)
    assert builder.constants["scale"].tolist() == [1, 1, 1]


def test_a_parameter_asked_for_twice_is_the_same_value(builder: GraphBuilder) -> None:
    table = builder.parameter("table", (10, 4))
    assert builder.parameter("table", (10, 4)) is not None
    assert builder.parameter("table", (10, 4)) == table
    assert len(builder.finish().parameters) == 1


def test_a_parameter_of_another_shape_is_a_mistake(builder: GraphBuilder) -> None:
    builder.parameter("table", (10, 4))
    with pytest.raises(AssertionError, match="a value 'table' already"):
        builder.parameter("table", (4, 10))


def test_a_weight_in_two_dtypes_is_two_parameters(builder: GraphBuilder) -> None:
    table = builder.parameter("table", (10, 4))
    other = builder.parameter("table", (10, 4), DType.FLOAT32)
    assert other.name == in_dtype("table", DType.FLOAT32) != table.name
    assert builder.parameter("table", (10, 4), DType.FLOAT32) == other
    assert builder.finish().parameters == (table, other)


def test_names_are_given_once(builder: GraphBuilder) -> None:
    x = builder.input("x", DType.FLOAT32, (T,))
    for declare in (builder.input, builder.state):
        with pytest.raises(AssertionError, match="a value 'x' already"):
            declare("x", DType.FLOAT32, (T,))
    with pytest.raises(AssertionError, match="a value 'x' already"):
        builder.constant("x", np.ones(3))
    assert builder.constants == {}
    builder.output("y", x)
    with pytest.raises(AssertionError, match="an output 'y' already"):
        builder.output("y", x)


def test_absent_inputs_at_the_end_may_be_left_out(builder: GraphBuilder) -> None:
    x, weight = builder.input("x", DType.BFLOAT16, (T, 8)), builder.parameter("w", (4, 8))
    builder.op("linear", x, weight)
    builder.op("linear", x, weight, None)
    first, second = builder.finish().nodes
    assert first.inputs == second.inputs == (x, weight, None)


def test_attributes_are_completed_in_schema_order(builder: GraphBuilder) -> None:
    builder.op("rope_table", builder.input("p", DType.INT64, (T,)), builder.constant("f", np.ones(3, np.float32)))
    (node,) = builder.finish().nodes
    assert node.attributes == {"scale": 1.0}


def test_what_does_not_fit_is_refused_and_leaves_no_trace(builder: GraphBuilder) -> None:
    x = builder.input("x", DType.BFLOAT16, (T, 8))
    wide = builder.parameter("wide", (4, 9))
    with pytest.raises(OperatorError, match=r"input 'weight' is bfloat16\[4,9\], but K is 8 elsewhere"):
        builder.op("linear", x, wide)
    with pytest.raises(OperatorError, match="needs the input 'weight'"):
        builder.op("linear", x)
    with pytest.raises(OperatorError, match="takes 1 inputs, got 2"):
        builder.op("silu", x, x)
    with pytest.raises(OperatorError, match="Unknown operator 'convolution'"):
        builder.op("convolution", x)
    with pytest.raises(OperatorError, match="attribute 'eps' should be of type float, got 'small'"):
        builder.op("rms_norm", x, builder.parameter("w", (8,)), eps="small")
    assert builder.finish().nodes == ()
    assert builder.op("silu", x).name == "silu"


def test_a_scope_ends_with_an_error(builder: GraphBuilder) -> None:
    with pytest.raises(ValueError, match="stop"), builder.scope("inner"):
        raise ValueError("stop")
    assert builder.op("silu", builder.input("x", DType.FLOAT32, (T,))).name == "silu"
