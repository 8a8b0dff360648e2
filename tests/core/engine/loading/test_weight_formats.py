"""The format of each parameter: matrices have the chosen one, the output projection its own, embeddings none."""

from __future__ import annotations

import pytest
from tests.core.graph.graphs import OPERATORS, model_builder

from aethermind import Runtime
from aethermind.engine.loading.loader import compile_model
from aethermind.engine.loading.weight_formats import WeightFormats, format_uses
from aethermind.errors import InvalidArgumentError
from aethermind.ops.weight_format import parse_format


def chosen(runtime: Runtime, quantization: str | None, lm_head: str | None = None) -> tuple[str | None, str | None]:
    found = WeightFormats.choose(runtime.weight_formats, quantization, lm_head)
    return tuple(None if one is None else one.name for one in (found.weights, found.lm_head))  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("quantization", "lm_head", "expected"),
    [
        (None, None, (None, None)),
        ("dense", None, (None, None)),
        ("int8", None, ("int8", "int8")),
        ("int8_channel", None, ("int8_channel", "int8_channel")),
        ("int4_zp_g128", None, ("int4_zp_g128", "int8")),
        ("int1", None, ("int1", "int8")),
        ("int4", "int4", ("int4", "int4")),
        ("int4", "dense", ("int4", None)),
        (None, "int4", (None, "int4")),
        ("dense", "int8", (None, "int8")),
    ],
)
def test_the_output_projection_has_its_own_format(
    runtime: Runtime, quantization: str | None, lm_head: str | None, expected: tuple[str | None, str | None]
) -> None:
    assert chosen(runtime, quantization, lm_head) == expected


@pytest.mark.parametrize("names", [("int3", None), (None, "int3"), ("int4", "int3")])
def test_unknown_names(runtime: Runtime, names: tuple[str | None, str | None]) -> None:
    with pytest.raises(InvalidArgumentError, match="'int3'"):
        chosen(runtime, *names)


@pytest.mark.parametrize("architecture", ["Qwen2ForCausalLM", "Qwen3ForCausalLM"])
@pytest.mark.parametrize("is_tied", [True, False])
def test_only_matrices_have_formats(runtime: Runtime, architecture: str, is_tied: bool) -> None:
    graph = model_builder(architecture, tie_word_embeddings=is_tied).finish()
    formats = WeightFormats.choose(runtime.weight_formats, "int4", None).of_parameters(graph, OPERATORS)
    head = "model.embed_tokens.weight" if is_tied else "lm_head.weight"
    assert formats[head].name == "int8"
    others = {value.name for value in graph.parameters if value.name.endswith("proj.weight")}
    assert {name for name, format in formats.items() if format.name == "int4"} == others
    assert formats.keys() == {head, *others}
    only_head = WeightFormats.choose(runtime.weight_formats, None, "int4").of_parameters(graph, OPERATORS)
    assert {name: format.name for name, format in only_head.items()} == {head: "int4"}
    without = WeightFormats.choose(runtime.weight_formats, "int4", "dense").of_parameters(graph, OPERATORS)
    assert without.keys() == others


def test_rows_of_a_tied_table_are_looked_up_in_accurate_formats(runtime: Runtime) -> None:
    """8 bits, or whatever the checkpoint holds; other tables are dense, as the embedding of an untied model is."""
    graph = model_builder("Qwen2ForCausalLM", tie_word_embeddings=True).finish()
    name = "model.embed_tokens.weight"
    int4, int8 = parse_format("int4"), parse_format("int8")
    assert int4 is not None
    assert int8 is not None
    for head, stored, expected in (
        ("int8", {}, int8),
        ("int8", {name: int4}, int8),
        ("int4", {}, None),
        ("int4", {name: int8}, None),
        (None, {name: int4}, int4),
        (None, {}, None),
    ):
        choice = WeightFormats.choose(runtime.weight_formats, None, head)
        formats = choice.of_parameters(graph, OPERATORS, stored)
        assert choice.of_rows(formats, stored).get(name) == expected


def test_checkpoint_formats_are_kept_by_default(runtime: Runtime) -> None:
    graph = model_builder("Qwen2ForCausalLM", tie_word_embeddings=False).finish()
    names = [value.name for value in graph.parameters if value.name.endswith("proj.weight")]
    stored = {names[0]: "int4_zp_g128", names[1]: "int8", "lm_head.weight": "int8", "model.norm.weight": "int8"}

    def found(quantization: str | None, lm_head: str | None) -> dict[str, str]:
        choice = WeightFormats.choose(runtime.weight_formats, quantization, lm_head)
        formats = {name: parse_format(format) for name, format in stored.items()}
        chosen = choice.of_parameters(graph, OPERATORS, {name: format for name, format in formats.items() if format})
        return {name: format.name for name, format in chosen.items()}

    kept = {names[0]: "int4_zp_g128", names[1]: "int8"}
    assert found(None, None) == {**kept, "lm_head.weight": "int8"}
    assert found(None, "int4") == {**kept, "lm_head.weight": "int4"}
    assert found(None, "dense") == kept
    assert found("dense", None) == {}
    assert found("int4", None) == {**dict.fromkeys(names, "int4"), "lm_head.weight": "int8"}


def test_uses_add_up(runtime: Runtime) -> None:
    compiled = compile_model(runtime, "demo", device="numpy", quantization="int4")
    four, eight = format_uses(compiled)
    assert (four.name, eight.name) == ("int4", "int8")
    assert (four.num_parameters, eight.num_parameters) == (7 * compiled.model.config.num_hidden_layers, 1)
    assert (four.num_dequantized, eight.num_dequantized) == (four.num_parameters, 1)
    config = compiled.model.config
    assert eight.num_values == config.vocab_size * config.hidden_size
    assert four.nbytes == four.num_values * 9 // 16
    assert (four.bits_per_weight, eight.bits_per_weight) == (4.5, 8.5)
    assert format_uses(compile_model(runtime, "demo", device="numpy")) == []
