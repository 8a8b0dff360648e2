"""Graphs are printed and read back to equal graphs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from tests.core.graph.graphs import OPERATORS, dispatcher_of, model_builder, random_builders
from tests.scale import scaled

from aethermind.errors import InvalidArgumentError
from aethermind.graph import GraphBuilder
from aethermind.graph.ir import Graph, format_graph, parse_graph
from aethermind.graph.lowering import lower
from aethermind.hal import DType
from aethermind.ops.dims import SymDim

TEXT = """\
graph tiny {
  input %token_ids: int32[T]
  input %ends: int32[S+1]
  param @embed.weight: float32[64,16]
  param @norm: float32[16]
  state $cache: bfloat16[2,3]
  %x: float32[T,16] = embedding(%token_ids, @embed.weight)
  %n.out: float32[T,16], %n.total: float32[T,16] = add_rms_norm(%x, %x, @norm) {eps=1e-06}
  %y: float32[T,16] = linear(%n.out, @embed.weight, _)
  %z: float32[T,4,4] = rope(%y, @norm) {interleaved=True}
  output hidden = %z
  output table = @embed.weight
}
"""


@given(random_builders())
@settings(deadline=None, max_examples=scaled(8000))
def test_random_graphs_survive_the_round_trip(builder: GraphBuilder) -> None:
    graph = builder.finish()
    lowered = lower(graph, OPERATORS, dispatcher_of(), "numpy").graph
    for one in (graph, lowered):
        assert parse_graph(format_graph(one)) == one


@pytest.mark.parametrize("architecture", ["Qwen2ForCausalLM", "Qwen3ForCausalLM"])
def test_models_survive_the_round_trip(architecture: str) -> None:
    for is_adjusted in (False, True):
        graph = model_builder(architecture, is_adjusted=is_adjusted, dtype=DType.BFLOAT16).finish()
        assert parse_graph(str(graph)) == graph


def test_lists_of_dims_survive_the_round_trip() -> None:
    builder = GraphBuilder("sums", OPERATORS)
    x = builder.input("x", DType.FLOAT32, (2, 3, 4))
    builder.output("some", builder.op("sum", x, dim=(0, -1), keepdim=True))
    builder.output("all", builder.op("sum", x, dim=()))
    graph = builder.finish()
    assert "sum(%x) {dim=[0,-1], keepdim=True}" in str(graph)
    assert parse_graph(str(graph)) == graph


def test_dtypes_survive_the_round_trip() -> None:
    builder = GraphBuilder("casts", OPERATORS, DType.BFLOAT16)
    x = builder.input("x", DType.BFLOAT16, (SymDim("T"), 5))
    wide = builder.op("cast", x, dtype="float32")
    builder.output("y", builder.op("cast", wide, dtype=DType.FLOAT16))
    graph = builder.finish()
    assert "float32[T,5] = cast(%x) {dtype=float32}" in format_graph(graph)
    assert parse_graph(format_graph(graph)) == graph


def test_the_text_is_what_the_manual_says() -> None:
    graph = parse_graph(TEXT)
    assert format_graph(graph) == TEXT
    assert graph.inputs[1].type.shape == (SymDim("S", 1),)
    assert graph.nodes[1].attributes == {"eps": 1e-6}
    assert graph.nodes[2].inputs[2] is None
    assert graph.outputs["table"] is graph.parameters[0]


def test_an_empty_graph() -> None:
    graph = Graph("nothing", (), (), (), (), {})
    assert str(graph) == "graph nothing {\n}\n"
    assert parse_graph(str(graph)) == graph


@pytest.mark.parametrize(
    ("line", "number"),
    [
        ("%x: float32[T = silu(%a)", 3),
        ("%x: float32[T] = silu(%missing)", 3),
        ("%x: float33[T] = silu(%a)", 3),
        ("%x: float32[T] = silu(%a) {eps}", 3),
        ("%x: float32[T] = silu(%a) {eps=small}", 3),
        ("input %b: float32[T*2]", 3),
        ("output y = %missing", 3),
        ("%a: float32[T] = silu(%a)", 3),
        ("gibberish", 3),
    ],
)
def test_a_line_that_cannot_be_read_is_named(line: str, number: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^Line {number} of the graph cannot be read: "):
        parse_graph(f"graph g {{\n  input %a: float32[T]\n  {line}\n}}\n")


@pytest.mark.parametrize("text", ["", "graph g {", "graph {\n}", "%x: float32[T] = silu(%a)"])
def test_text_that_is_no_graph_says_how_one_looks(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"starts with 'graph NAME \{' and ends with '\}'"):
        parse_graph(text)
