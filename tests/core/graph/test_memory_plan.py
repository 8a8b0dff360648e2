"""Memory plans: nothing is overwritten before its last reader, and little room is lost."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.graph.graphs import COMPOSITES, OPERATORS, dispatcher_of, model_builder, random_builders
from tests.scale import scaled

from aethermind.graph import Graph, GraphBuilder
from aethermind.graph.lowering import lower
from aethermind.graph.memory_plan import MemoryPlan, plan_memory
from aethermind.hal import DType
from aethermind.hal.tensor import num_elements
from aethermind.ops.dims import SymDim, resolve

UNIT = 4
"""Bytes of the smallest element that the graphs here place."""


def assert_every_reader_finds_what_was_written(graph: Graph, plan: MemoryPlan, symbols: Mapping[str, int]) -> None:
    """Run the graph over an arena that remembers who wrote each of its bytes."""
    writer: list[str | None] = [None] * (plan.arena_bytes // UNIT)
    source_of: dict[str, str] = {}

    def places(name: str, shape: tuple[int, ...], itemsize: int) -> range:
        offset = plan.offset(name)
        assert offset is not None
        assert offset % 64 == 0
        return range(offset // UNIT, (offset + num_elements(shape) * itemsize + UNIT - 1) // UNIT)

    def read(name: str, shape: tuple[int, ...], itemsize: int) -> None:
        if plan.offset(name) is not None:
            wrong = {writer[place] for place in places(name, shape, itemsize)} - {source_of[name]}
            assert not wrong, f"{name} was overwritten by {wrong}"

    for node in graph.nodes:
        schema = OPERATORS[node.operator].schema
        for value in node.inputs:
            if value is not None:
                read(value.name, resolve(value.type.shape, symbols), value.type.dtype.itemsize)
        for value in node.outputs:
            if plan.offset(value.name) is None:
                continue
            if schema.is_view:
                assert node.inputs[0] is not None
                source_of[value.name] = source_of[node.inputs[0].name]
                continue
            source_of[value.name] = value.name
            for place in places(value.name, resolve(value.type.shape, symbols), value.type.dtype.itemsize):
                writer[place] = value.name
        for value in node.outputs:  # and the outputs of one node do not overwrite each other
            read(value.name, resolve(value.type.shape, symbols), value.type.dtype.itemsize)
    for value in graph.outputs.values():
        read(value.name, resolve(value.type.shape, symbols), value.type.dtype.itemsize)


def assert_inputs_are_shared_only_where_the_schema_says_so(graph: Graph, plan: MemoryPlan) -> None:
    for node in graph.nodes:
        schema = OPERATORS[node.operator].schema
        for spec, value in zip(schema.outputs, node.outputs, strict=True):
            sharing = [
                given.name
                for given, source in zip(schema.inputs, node.inputs, strict=True)
                if source is not None and plan.roots[source.name] == plan.roots[value.name]
            ]
            assert sharing in ([], [spec.alias], [spec.inplace])


def lowered(builder: GraphBuilder, fused: tuple[str, ...] = (), fuse: bool = True) -> Graph:
    return lower(builder.finish(), OPERATORS, dispatcher_of(fused), "numpy", fuse=fuse).graph


@given(
    random_builders(),
    st.sets(st.sampled_from(COMPOSITES)).map(tuple),
    st.fixed_dictionaries({"T": st.integers(0, 40), "R": st.integers(0, 9)}),
)
@settings(deadline=None, max_examples=scaled(15_000))
def test_random_graphs_are_never_overwritten(
    builder: GraphBuilder, fused: tuple[str, ...], symbols: dict[str, int]
) -> None:
    graph = lowered(builder, fused)
    plan = plan_memory(graph, OPERATORS, symbols)
    assert_every_reader_finds_what_was_written(graph, plan, symbols)
    assert_inputs_are_shared_only_where_the_schema_says_so(graph, plan)
    assert plan.lower_bound_bytes <= plan.arena_bytes <= 1.25 * plan.lower_bound_bytes


QWEN2_0_5B = {"hidden_size": 896, "intermediate_size": 4864, "num_attention_heads": 14, "head_dim": 64}
QWEN2_7B = {"hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28, "head_dim": 128}
DEMO = {"hidden_size": 256, "intermediate_size": 704, "num_attention_heads": 4, "head_dim": 128}
STEPS = [(1, 1), (16, 16), (512, 64), (2048, 256), (8192, 256)]


@pytest.mark.parametrize("fused", [(), COMPOSITES], ids=["small operators", "fused operators"])
@pytest.mark.parametrize("architecture", ["Qwen2ForCausalLM", "Qwen3ForCausalLM"])
@pytest.mark.parametrize("sizes", [{}, DEMO, QWEN2_0_5B, QWEN2_7B], ids=["tiny", "demo", "0.5B", "7B"])
@pytest.mark.parametrize("is_adjusted", [False, True])
def test_models_lose_little_room(
    sizes: dict[str, int], architecture: str, is_adjusted: bool, fused: tuple[str, ...]
) -> None:
    builder = model_builder(
        architecture,
        is_adjusted=is_adjusted,
        dtype=DType.BFLOAT16,
        **{"vocab_size": 5000, "num_hidden_layers": 4, **sizes},
    )
    graph = lowered(builder, fused)
    for num_tokens, num_sequences in STEPS:
        symbols = {"T": num_tokens, "S": num_sequences, "R": num_sequences, "B": 64, "X": 4096, "Y": 4096, "Z": 4096}
        plan = plan_memory(graph, OPERATORS, symbols)
        assert plan.lower_bound_bytes <= plan.arena_bytes <= 1.1 * plan.lower_bound_bytes


@pytest.mark.parametrize("fused", [(), ("qkv_rope_cache_write",), COMPOSITES], ids=str)
def test_models_are_never_overwritten(fused: tuple[str, ...]) -> None:
    graph = lowered(model_builder(is_adjusted=True), fused)
    symbols = {"T": 7, "S": 3, "R": 3, "B": 2, "X": 5, "Y": 4, "Z": 3}
    plan = plan_memory(graph, OPERATORS, symbols)
    assert_every_reader_finds_what_was_written(graph, plan, symbols)
    assert_inputs_are_shared_only_where_the_schema_says_so(graph, plan)


T = SymDim("T")


@pytest.fixture
def builder() -> GraphBuilder:
    return GraphBuilder("g", OPERATORS)


def plan_of(builder: GraphBuilder, num_tokens: int = 10) -> MemoryPlan:
    return plan_memory(builder.finish(), OPERATORS, {"T": num_tokens})


def test_views_and_states_are_where_their_source_is(builder: GraphBuilder) -> None:
    x = builder.op("silu", builder.input("x", DType.FLOAT32, (T, 8)))
    heads = builder.op("split_heads", x, num_heads=2)
    caches = [builder.state(name, DType.FLOAT32, (3, 2, 4, 4)) for name in "kv"]
    slots = builder.input("slots", DType.INT64, (T,))
    k_out, v_out = builder.op("kv_cache_write", heads, heads, slots, *caches)
    merged = builder.op("merge_heads", heads)
    builder.output("merged", merged)
    plan = plan_of(builder)
    assert plan.roots[heads.name] == plan.roots[merged.name] == x.name
    assert plan.offset(heads.name) == plan.offset(merged.name) == plan.offset(x.name) == 0
    assert (plan.roots[k_out.name], plan.roots[v_out.name]) == ("k", "v")
    assert plan.offset(k_out.name) is plan.offset("x") is None
    assert plan.arena_bytes == 320


def test_a_view_of_an_input_is_not_in_the_arena(builder: GraphBuilder) -> None:
    heads = builder.op("split_heads", builder.input("x", DType.FLOAT32, (T, 8)), num_heads=2)
    builder.output("y", builder.op("silu", heads))
    plan = plan_of(builder)
    assert plan.roots[heads.name] == "x"
    assert plan.offset("silu") == 0


def test_a_chain_runs_in_place(builder: GraphBuilder) -> None:
    value = builder.input("x", DType.FLOAT32, (T, 8))
    for _ in range(5):
        value = builder.op("silu", value)
    builder.output("y", value)
    plan = plan_of(builder)
    assert len(plan.storages) == 1
    assert plan.arena_bytes == plan.lower_bound_bytes == 320


@pytest.mark.parametrize("reuse", ["later", "output", "view", "twice", "other dtype"])
def test_nothing_is_taken_over_that_is_still_needed(builder: GraphBuilder, reuse: str) -> None:
    x = builder.op("silu", builder.input("x", DType.FLOAT32, (T, 8)))
    other = builder.op("split_heads", x, num_heads=1) if reuse == "view" else x
    if reuse == "twice":
        y = builder.op("add", x, x)
    elif reuse == "other dtype":
        y = builder.op("lm_head", x, builder.parameter("w", (8, 8)))
    else:
        y = builder.op("silu", x)
    builder.output("y", y)
    if reuse in ("later", "view"):
        builder.output("z", builder.op("silu", other))
    if reuse == "output":
        builder.output("x", x)
    plan = plan_of(builder)
    assert plan.roots[y.name] == y.name
    assert plan.offset(y.name) != plan.offset(x.name)


def test_two_outputs_take_over_two_inputs(builder: GraphBuilder) -> None:
    x, residual = (builder.op("silu", builder.input(name, DType.FLOAT32, (T, 8))) for name in "xr")
    out, total = builder.op("add_rms_norm", x, residual, builder.parameter("w", (8,)), eps=1e-6)
    builder.output("out", out)
    builder.output("total", total)
    plan = plan_of(builder)
    assert (plan.roots[out.name], plan.roots[total.name]) == (x.name, residual.name)
    assert plan.arena_bytes == 640


def test_a_value_that_nobody_reads_still_has_room(builder: GraphBuilder) -> None:
    x = builder.input("x", DType.FLOAT32, (T, 8))
    unused, used = builder.op("silu", x), builder.op("silu", x)
    builder.output("y", used)
    plan = plan_of(builder)
    assert plan.offset(unused.name) is not None
    assert plan.arena_bytes == 320


def test_an_empty_graph_needs_no_arena(builder: GraphBuilder) -> None:
    builder.output("x", builder.input("x", DType.FLOAT32, (T, 8)))
    assert plan_of(builder).arena_bytes == 0
