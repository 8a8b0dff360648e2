"""What a plan knows of itself: the layer of each step."""

from __future__ import annotations

from itertools import groupby

from tests.core.graph.graphs import OPERATORS, dispatcher_of, model_builder

from aethermind.graph import Operand, Place, compile_graph
from aethermind.hal import DType
from aethermind.ops import SymDim, TensorType, resolve


def test_steps_belong_to_layers_and_those_between_two_of_a_layer_too() -> None:
    greatest = {"T": 4, "S": 1, "R": 1, "B": 1, "X": 1, "Y": 1, "Z": 1}
    plan = compile_graph(model_builder().finish(), OPERATORS, dispatcher_of(), "numpy", greatest).plan
    layers = plan.layers()
    assert [layer for layer, _ in groupby(layers)] == [None, 0, 1, None]
    by_source = dict(zip((step.source for step in plan.steps), layers, strict=True))
    assert by_source["model.layers.1.self_attn.paged_attention"] == 1
    assert by_source["gather_rows"] == 1
    assert by_source["lm_head"] is None


def test_an_operand_tells_its_shape_in_a_run() -> None:
    operand = Operand(Place.INPUT, "x", TensorType(DType.FLOAT32, (SymDim("T"), SymDim("S", 1), 7)))
    assert operand.shape_for({"T": 3, "S": 4, "R": 9}) == (3, 5, 7) == resolve(operand.shape, {"T": 3, "S": 4})
    weight = Operand(Place.CONSTANT, "w#packed", TensorType(DType.BFLOAT16, (5, 7)), packed_bytes=1000)
    assert weight.shape_for({}) == (5, 7)
