"""Adapters in a graph: rows without one stay as they are, others are as if the weights had been changed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.graph.graphs import OPERATORS, given_values, model_builder, random_builders, reference_values
from tests.scale import scaled

from aethermind.errors import ConfigError
from aethermind.graph import Graph, GraphBuilder
from aethermind.graph.ir import parse_graph
from aethermind.graph.low_rank import ADAPTERS, ROW_ADAPTERS, adaptable_weights, lora_parameter_names, with_adapters
from aethermind.hal import DType
from aethermind.ops.dims import SymDim, resolve

SYMBOLS = {"T": 5, "R": 2, "S": 2, "B": 3, "X": 0, "Y": 0, "Z": 0}
RANKS = (3, 1)
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def adapted(graph: Graph, weights: Any) -> Graph:
    return with_adapters(graph, OPERATORS, {name: sum(RANKS) for name in weights}, len(RANKS))


def with_parts(values: dict[str, Any], graph: Graph, adapters: list[int], rows: list[int]) -> dict[str, Any]:
    """Values of a graph with adapters: random matrices for what is new, and who has which."""
    rng = np.random.default_rng(1)
    found = {ADAPTERS: np.array(adapters, np.int32), ROW_ADAPTERS: np.array(rows, np.int32), **values}
    for value in graph.parameters:
        if value.name.endswith("/cu_ranks"):
            found[value.name] = np.cumsum([0, *RANKS]).astype(np.int32)
        elif value.name not in found:
            found[value.name] = rng.standard_normal(resolve(value.type.shape, {})).astype(np.float32) / 3
    return found


def merged(values: dict[str, Any], weights: Any, adapter: int) -> dict[str, Any]:
    """The same values with an adapter in the weights."""
    found = dict(values)
    for weight in weights:
        down, up, cuts = lora_parameter_names(weight)
        own = slice(*values[cuts][adapter : adapter + 2])
        found[weight] = values[weight] + values[up][own].T @ values[down][own]
    return found


@given(random_builders(), st.data())
@settings(deadline=None, max_examples=scaled(6000))
def test_without_an_adapter_every_value_stays_the_same_to_the_bit(builder: GraphBuilder, data: st.DataObject) -> None:
    graph = builder.finish()
    known = sorted(adaptable_weights(graph, OPERATORS))
    weights = data.draw(st.lists(st.sampled_from(known), unique=True)) if known else []
    new = adapted(graph, weights)
    before = given_values(builder, SYMBOLS)
    plain = reference_values(graph, before)
    after = reference_values(new, with_parts(before, new, [-1] * 5, [-1] * 2))
    assert new.outputs == graph.outputs
    assert parse_graph(str(new)) == new
    for name, value in graph.outputs.items():
        np.testing.assert_array_equal(after[value.name], plain[value.name], err_msg=name)


@pytest.mark.parametrize("architecture", ["Qwen2ForCausalLM", "Qwen3ForCausalLM", "LlamaForCausalLM"])
@pytest.mark.parametrize("projections", [PROJECTIONS, ("v_proj",), ("down_proj",), ("q_proj", "up_proj")], ids=str)
@pytest.mark.parametrize("adapter", [0, 1])
def test_with_an_adapter_a_model_is_the_one_with_changed_weights(
    architecture: str, projections: tuple[str, ...], adapter: int
) -> None:
    builder = model_builder(architecture)
    graph = builder.finish()
    weights = [name for name in adaptable_weights(graph, OPERATORS) if name.split(".")[-2] in projections]
    assert len(weights) == 2 * len(projections)
    new = adapted(graph, weights)
    values = with_parts(given_values(builder, SYMBOLS), new, [adapter] * 5, [adapter] * 2)
    found, wanted = reference_values(new, values), reference_values(graph, merged(values, weights, adapter))
    for name, value in graph.outputs.items():
        np.testing.assert_allclose(found[value.name], wanted[value.name], rtol=2e-4, atol=2e-4, err_msg=name)


def test_sequences_of_a_step_have_adapters_of_their_own() -> None:
    builder = model_builder()
    graph = builder.finish()
    weights = adaptable_weights(graph, OPERATORS)
    new = adapted(graph, weights)
    logits = graph.outputs["logits"].name
    given_ = given_values(builder, SYMBOLS)
    alone = [
        reference_values(new, with_parts(given_, new, [adapter] * 5, [adapter] * 2))[logits] for adapter in (1, -1)
    ]
    mixed = reference_values(new, with_parts(given_, new, [1, 1, 1, 1, -1], [1, -1]))[logits]
    np.testing.assert_allclose(mixed[0], alone[0][0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(mixed[1], alone[1][1], rtol=1e-4, atol=1e-5)


def operators_of(graph: Graph) -> list[str]:
    return [node.operator for node in graph.nodes]


def test_what_no_adapter_touches_stays_fused() -> None:
    graph = model_builder(num_hidden_layers=1).finish()
    down = adapted(graph, ["model.layers.0.mlp.down_proj.weight"])
    assert {"qkv_rope_cache_write", "gate_up_silu"} <= set(operators_of(down))
    assert "mlp_swiglu" not in operators_of(down)
    assert operators_of(down).count("add_low_rank") == 1
    assert [value.name for value in down.inputs][-1] == ROW_ADAPTERS  # the last layer's rows are those of logits
    attention = adapted(graph, ["model.layers.0.self_attn.q_proj.weight"])
    assert {"mlp_swiglu", "rope", "kv_cache_write"} <= set(operators_of(attention))
    assert [value.name for value in attention.inputs][-1] == ADAPTERS
    assert adapted(graph, []) == graph


def test_a_sum_has_the_name_that_its_product_had() -> None:
    graph = model_builder(num_hidden_layers=1).finish()
    new = adapted(graph, ["model.layers.0.self_attn.o_proj.weight"])
    (node,) = [node for node in new.nodes if node.operator == "add_low_rank"]
    assert node.outputs[0].name == "model.layers.0.self_attn.linear"
    assert [str(value) for value in node.inputs if value is not None] == [
        "%model.layers.0.self_attn.linear/linear",
        "%model.layers.0.self_attn.merge_heads",
        "@model.layers.0.self_attn.o_proj.weight/down",
        "@model.layers.0.self_attn.o_proj.weight/up",
        "@model.layers.0.self_attn.o_proj.weight/cu_ranks",
        "%adapters",
    ]


def test_linear_projections_can_be_adapted_and_nothing_else() -> None:
    graph = model_builder(num_hidden_layers=1, tie_word_embeddings=False).finish()
    found = adaptable_weights(graph, OPERATORS)
    assert sorted(name.split(".")[-2] for name in found) == sorted(PROJECTIONS)
    with pytest.raises(ConfigError, match=r"lm_head\.weight is read by lm_head, which an adapter cannot be added to"):
        adapted(graph, ["lm_head.weight"])


def test_a_product_of_other_rows_than_tokens_is_refused() -> None:
    builder = GraphBuilder("g", OPERATORS)
    x = builder.input("x", DType.FLOAT32, (SymDim("S"), 4))
    builder.output("out", builder.op("linear", x, builder.parameter("w", (3, 4))))
    with pytest.raises(ConfigError, match="linear has S rows, which are no tokens"):
        adapted(builder.finish(), ["w"])
