"""From a graph to a plan: operands in their places, constants in the layouts that kernels want."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from tests.core.graph.graphs import OPERATORS, dispatcher_of, model_builder

from aethermind.dispatch import Dispatcher, Fallback, Kernel, Pack
from aethermind.dispatch.reference import reference_kernels
from aethermind.errors import KernelNotFoundError
from aethermind.graph import Compiled, GraphBuilder, Operand, Place, compile_graph
from aethermind.graph.plan import Constant
from aethermind.hal import DType
from aethermind.ops.dims import SymDim
from aethermind.ops.schema import TensorType
from aethermind.ops.weight_format import WeightFormat, parse_format

T = SymDim("T")
F32 = DType.FLOAT32


def compiled(builder: GraphBuilder, dispatcher: Dispatcher | None = None, **options: object) -> Compiled:
    return compile_graph(builder.finish(), OPERATORS, dispatcher or dispatcher_of(), "numpy", {"T": 9}, **options)  # type: ignore[arg-type]


@pytest.fixture
def builder() -> GraphBuilder:
    """y = rows of table, scaled by a constant, written to a cache by heads."""
    builder = GraphBuilder("g", OPERATORS)
    token_ids = builder.input("token_ids", DType.INT32, (T,))
    slots = builder.input("slots", DType.INT64, (T,))
    caches = [builder.state(name, F32, (3, 2, 4, 4)) for name in ("k", "v")]
    x = builder.op("embedding", token_ids, builder.parameter("table", (20, 8)))
    x = builder.op("rms_norm", x, builder.constant("scale", np.ones(8, np.float32)), eps=1e-6)
    heads = builder.op("split_heads", x, num_heads=2)
    k_out, _ = builder.op("kv_cache_write", heads, heads, slots, *caches)
    builder.output("heads", heads)
    builder.output("cache", k_out)
    builder.output("logits", builder.op("lm_head", x, builder.parameter("table", (20, 8))))
    return builder


def test_operands_know_their_places(builder: GraphBuilder) -> None:
    plan = compiled(builder).plan
    assert [step.kernel.operator for step in plan.steps] == ["embedding", "rms_norm", "kv_cache_write", "lm_head"]
    embedding, norm, write, head = plan.steps
    x = Operand(Place.ARENA, "", TensorType(F32, (T, 8)), embedding.outputs[0].offset_bytes)
    assert embedding.inputs == (
        Operand(Place.INPUT, "token_ids", TensorType(DType.INT32, (T,))),
        Operand(Place.CONSTANT, "table", TensorType(F32, (20, 8))),
    )
    assert embedding.outputs == norm.outputs == (x,)
    heads = replace(x, type=TensorType(F32, (T, 2, 4)))
    cache = TensorType(F32, (3, 2, 4, 4))
    slots = Operand(Place.INPUT, "slots", TensorType(DType.INT64, (T,)))
    states = (Operand(Place.STATE, "k", cache), Operand(Place.STATE, "v", cache))
    assert write.inputs == (heads, heads, slots, *states)
    assert write.outputs == states
    assert plan.outputs == {"heads": heads, "cache": states[0], "logits": head.outputs[0]}
    assert list(plan.operands())[:3] == [*embedding.inputs, x]


def test_a_plan_says_what_it_needs(builder: GraphBuilder) -> None:
    result = compiled(builder)
    plan = result.plan
    assert (plan.name, plan.symbols, plan.arena_bytes) == ("g", {"T": 9}, result.memory.arena_bytes)
    assert set(plan.inputs) == {"token_ids", "slots"}
    assert set(plan.states) == {"k", "v"}
    assert plan.constants == {"table": Constant("table"), "scale": Constant("scale")}
    assert len(result.resolutions) == len(plan.steps)
    assert result.fallbacks == ()


def test_steps_carry_attributes_in_schema_order_and_the_names_of_their_values(builder: GraphBuilder) -> None:
    _, norm, write, _ = compiled(builder).plan.steps
    assert norm.attribute_values() == (1e-6, 0.0)
    assert (norm.source, norm.names) == ("rms_norm", ("rms_norm",))
    assert write.names == ("kv_cache_write.k_out", "kv_cache_write.v_out")
    assert write.source == "kv_cache_write.k_out"


def test_absent_inputs_stay_absent() -> None:
    builder = GraphBuilder("g", OPERATORS)
    builder.output("y", builder.op("linear", builder.input("x", F32, (T, 8)), builder.parameter("w", (4, 8))))
    (step,) = compiled(builder).plan.steps
    assert step.inputs[2] is None


def packing(operator: str, **packs: str) -> Kernel:
    made = {name: Pack(layout, lambda shape, _: 4 * shape[0], lambda *_: None) for name, layout in packs.items()}
    return Kernel(operator, "numpy", f"packing/{operator}", frozenset({F32}), 9, function=print, packs=made)


def test_a_constant_is_wanted_once_per_layout() -> None:
    builder = GraphBuilder("g", OPERATORS)
    x, w = builder.input("x", F32, (T, 8)), builder.parameter("w", (8, 8))
    for operator in ("linear", "linear", "lm_head"):
        builder.output(f"out.{len(builder.finish().nodes)}", builder.op(operator, x, w))
    builder.output("w", w)
    kernels = [packing("linear", weight="panels"), packing("lm_head", weight="columns")]
    plan = compiled(builder, Dispatcher(kernels)).plan
    assert [step.inputs[1].name for step in plan.steps if step.inputs[1]] == ["w#panels", "w#panels", "w#columns"]
    assert plan.constants == {
        "w#panels": Constant("w", "panels"),
        "w#columns": Constant("w", "columns"),
        "w": Constant("w"),
    }
    assert plan.outputs["w"] == Operand(Place.CONSTANT, "w", TensorType(F32, (8, 8)))


def out_of_rows(layout: str, format: str = "dense") -> Kernel:
    """An embedding that reads another operator's layout of the table, and nothing else."""
    pack = Pack(layout, lambda shape, _: 4 * shape[0], lambda *_: None, weight_format=format)
    return replace(
        packing("embedding", table=layout),
        packs={"table": pack},
        weight_formats=frozenset({format}),
        supports=lambda signature: None if signature.packed.get("table") == layout else "nobody else has it",
    )


@pytest.mark.parametrize("is_tied", [True, False])
def test_rows_come_out_of_what_the_head_reads(is_tied: bool) -> None:
    builder = GraphBuilder("g", OPERATORS)
    table, ids = builder.parameter("table", (20, 8)), builder.input("ids", DType.INT32, (T,))
    x = builder.op("embedding", ids, table)
    builder.output("logits", builder.op("lm_head", x, table if is_tied else builder.parameter("head", (20, 8))))
    kernels = [out_of_rows("panels"), packing("lm_head", weight="panels"), *reference_kernels(OPERATORS, "numpy")]
    plan = compiled(builder, Dispatcher(kernels)).plan
    if is_tied:
        assert plan.constants == {"table#panels": Constant("table", "panels")}
        embedding, head = plan.steps
        assert embedding.inputs[1] == head.inputs[1]
    else:
        assert plan.constants == {"table": Constant("table"), "head#panels": Constant("head", "panels")}


def test_rows_come_out_of_what_another_graph_reads() -> None:
    builder = GraphBuilder("g", OPERATORS)
    table, ids = builder.parameter("table", (20, 8)), builder.input("ids", DType.INT32, (T,))
    builder.output("hidden_states", builder.op("embedding", ids, table))
    dispatcher = Dispatcher([out_of_rows("panels"), *reference_kernels(OPERATORS, "numpy")])
    assert set(compiled(builder, dispatcher).plan.constants) == {"table"}
    assert set(compiled(builder, dispatcher, packed={"table": "panels"}).plan.constants) == {"table#panels"}
    assert set(compiled(builder, dispatcher, packed={"table": "columns"}).plan.constants) == {"table"}


def test_rows_are_read_in_a_format_where_that_is_wanted_and_can_be() -> None:
    int8 = parse_format("int8")
    assert int8 is not None
    builder = GraphBuilder("g", OPERATORS)
    table, ids = builder.parameter("table", (20, 8)), builder.input("ids", DType.INT32, (T,))
    builder.output("logits", builder.op("lm_head", builder.op("embedding", ids, table), table))
    pack = Pack("codes", lambda shape, _: 4 * shape[0], lambda *_: None, weight_format="int8")
    head = replace(packing("lm_head"), packs={"weight": pack}, weight_formats=frozenset({"int8"}))
    any_format = reference_kernels(OPERATORS, "numpy")
    dense = [replace(kernel, weight_formats=frozenset({"dense"})) for kernel in any_format]
    formats = {"table": int8}

    def constants(*kernels: Kernel, row_formats: dict[str, WeightFormat]) -> set[str]:
        options = {"weight_formats": formats, "row_formats": row_formats}
        return set(compiled(builder, Dispatcher(kernels), **options).plan.constants)

    coded = partial(constants, row_formats=formats)
    assert coded(out_of_rows("codes", "int8"), head, *dense) == {"table#codes"}
    assert coded(head, *any_format) == {"table@int8", "table#codes"}
    assert coded(head, *dense) == {"table", "table#codes"}
    assert constants(out_of_rows("codes", "int8"), head, *dense, row_formats={}) == {"table", "table#codes"}


def test_weights_in_a_format_come_packed_or_as_float32() -> None:
    """The embedding reads the table as it is, the head in its kernel's layout of int8, the projection dequantised."""
    int8, int4 = parse_format("int8"), parse_format("int4")
    assert int8 is not None
    assert int4 is not None
    builder = GraphBuilder("g", OPERATORS, DType.BFLOAT16)
    table, weight = builder.parameter("table", (9, 8)), builder.parameter("w", (8, 8))
    x = builder.op("linear", builder.op("embedding", builder.input("ids", DType.INT32, (T,)), table), weight)
    builder.output("logits", builder.op("lm_head", x, table))
    pack = Pack("panels_int8", lambda *_: 7, lambda *_: None, weight_format="int8")
    head = Kernel("lm_head", "numpy", "own", frozenset({DType.BFLOAT16}), 9, function=print, packs={"weight": pack},
                  weight_formats=frozenset({"int8"}))  # fmt: skip
    dispatcher = Dispatcher([head, *reference_kernels(OPERATORS, "numpy")])
    formats = {"table": int8, "w": int4}
    plan = compile_graph(builder.finish(), OPERATORS, dispatcher, "numpy", {"T": 9}, weight_formats=formats).plan
    assert plan.constants == {
        "table": Constant("table"),
        "w@int4": Constant("w", None, int4),
        "table#panels_int8": Constant("table", "panels_int8", int8),
    }
    _, by_linear, by_head = (step.inputs[1] for step in plan.steps)
    assert by_linear == Operand(Place.CONSTANT, "w@int4", TensorType(F32, (8, 8)))
    assert by_head == Operand(Place.CONSTANT, "table#panels_int8", TensorType(DType.BFLOAT16, (9, 8)), packed_bytes=7)
    assert (plan.constant_bytes(by_linear), plan.constant_bytes(by_head)) == (8 * 8 * 4, 9 * (8 + 2))


def test_a_pack_is_for_the_format_of_its_weight() -> None:
    builder = GraphBuilder("g", OPERATORS)
    builder.output("y", builder.op("linear", builder.input("x", F32, (T, 8)), builder.parameter("w", (4, 8))))
    int4 = parse_format("int4")
    assert int4 is not None
    wrong = replace(packing("linear", weight="panels"), weight_formats=frozenset({"int4"}))
    with pytest.raises(AssertionError, match="panels is for dense weights, not int4"):
        compiled(builder, Dispatcher([wrong]), weight_formats={"w": int4})


def test_parameters_that_no_step_reads_are_not_loaded() -> None:
    builder = GraphBuilder("g", OPERATORS)
    builder.parameter("idle", (4,))
    builder.output("y", builder.op("silu", builder.input("x", F32, (T, 8))))
    assert compiled(builder).plan.constants == {}


def test_fallbacks_follow_the_policy(builder: GraphBuilder) -> None:
    own = [kernel for kernel in reference_kernels(OPERATORS, "numpy") if kernel.operator != "embedding"]
    dispatcher = Dispatcher(own, reference_kernels(OPERATORS, "numpy"))
    assert compiled(builder, dispatcher, fallback=Fallback.ALLOW).fallbacks == ("embedding",)
    with pytest.raises(KernelNotFoundError, match="No kernel for operator embedding on numpy"):
        compiled(builder, dispatcher, fallback=Fallback.ERROR)


def test_without_fusion_every_intermediate_value_has_a_step() -> None:
    builder = model_builder()
    symbols = {"T": 4, "S": 2, "R": 2, "B": 2, "X": 0, "Y": 0, "Z": 0}
    fused = dispatcher_of(["mlp_swiglu", "qkv_rope_cache_write"])
    graph = builder.finish()
    whole = compile_graph(graph, OPERATORS, fused, "numpy", symbols)
    apart = compile_graph(graph, OPERATORS, fused, "numpy", symbols, fuse=False)
    assert "mlp_swiglu" in {step.kernel.operator for step in whole.plan.steps}
    assert "mlp_swiglu" not in {step.kernel.operator for step in apart.plan.steps}
    assert len(apart.plan.steps) > len(whole.plan.steps)
