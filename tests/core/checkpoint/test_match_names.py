"""The strict match between a model's parameters and a set of weights."""

from __future__ import annotations

import re

import pytest

from aethermind.checkpoint import DummyCheckpoint, match_names
from aethermind.errors import CheckpointError

SHAPES = {"embed.weight": (10, 4), "layers.0.norm.weight": (4,), "layers.0.mlp.weight": (8, 4)}


def test_a_match_is_in_the_model_s_order() -> None:
    checkpoint = DummyCheckpoint(dict(reversed(SHAPES.items())), "float32")
    matched = match_names(SHAPES, checkpoint)
    assert list(matched) == list(SHAPES)
    assert matched["embed.weight"] == checkpoint.info("embed.weight")


def test_ignored_names_are_optional() -> None:
    patterns = ["lm_head.weight", "*.rotary_emb.inv_freq"]
    more = {"lm_head.weight": (10, 4), "layers.0.rotary_emb.inv_freq": (2,)}
    assert list(match_names(SHAPES, DummyCheckpoint(SHAPES | more, "float32"), ignore=patterns)) == list(SHAPES)
    assert list(match_names(SHAPES, DummyCheckpoint(SHAPES, "float32"), ignore=patterns)) == list(SHAPES)


def test_ignored_patterns_do_not_excuse_missing_or_misshapen_names() -> None:
    with pytest.raises(CheckpointError, match="1 missing"):
        match_names({"a": (1,)}, DummyCheckpoint({}, "float32"), ignore=["*"])
    with pytest.raises(CheckpointError, match="1 misshapen"):
        match_names({"a": (1,)}, DummyCheckpoint({"a": (2,)}, "float32"), ignore=["*"])


def test_every_kind_of_mismatch_is_in_one_message() -> None:
    found = {"embed.weight": (10, 5), "layers.0.mlp.weight": (8, 4), "layers.0.mlp.bias": (8,), "scale": ()}
    expected = (
        "The checkpoint does not fit the model: of 3 expected tensors and 4 found, "
        "1 missing (layers.0.norm.weight [4]); "
        "1 misshapen (embed.weight [10, 5] instead of [10, 4]); "
        "2 unexpected (layers.0.mlp.bias [8], scale []). "
        "Check that config.json and the weights belong to the same model."
    )
    with pytest.raises(CheckpointError, match=f"^{re.escape(expected)}$"):
        match_names(SHAPES, DummyCheckpoint(found, "float32"))


def test_five_are_listed_and_the_rest_counted() -> None:
    shapes = {f"w{i}": (i,) for i in range(1, 9)}
    with pytest.raises(
        CheckpointError, match=re.escape("8 missing (w1 [1], w2 [2], w3 [3], w4 [4], w5 [5], and 3 more)")
    ):
        match_names(shapes, DummyCheckpoint({}, "float32"))
    with pytest.raises(CheckpointError, match=re.escape("5 missing (w1 [1], w2 [2], w3 [3], w4 [4], w5 [5])")):
        match_names(dict(list(shapes.items())[:5]), DummyCheckpoint({}, "float32"))


def test_packed_weights_without_a_description_name_the_file_that_is_missing() -> None:
    found = {"embed.weight": (10, 4), "layers.0.mlp.qweight": (1, 8), "layers.0.mlp.scales": (1, 8)}
    with pytest.raises(CheckpointError, match=r"GPTQ or AWQ: .*quantize_config\.json or quant_config\.json"):
        match_names(SHAPES, DummyCheckpoint(found, "float32"))
