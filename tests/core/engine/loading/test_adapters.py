"""Adapters of an engine: concatenated, each with its own rank, found by their names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.adapters import write_adapter
from tests.core.graph.graphs import OPERATORS, model_builder

from aethermind.engine.loading.adapters import Adapters
from aethermind.errors import CheckpointError, InvalidArgumentError
from aethermind.graph.low_rank import adaptable_weights, lora_parameter_names
from aethermind.hal import DType

GRAPH = model_builder(num_hidden_layers=1).finish()
SHAPES = {
    name.removesuffix(".weight"): (int(str(type.shape[0])), int(str(type.shape[1])))
    for name, type in adaptable_weights(GRAPH, OPERATORS).items()
}
Q, UP = (next(f"{name}.weight" for name in SHAPES if name.endswith(end)) for end in ("q_proj", "up_proj"))


def read(dtype: DType = DType.FLOAT32, **paths: Path) -> Adapters:
    return Adapters.read({name: str(path) for name, path in paths.items()}, GRAPH, OPERATORS, dtype)


def test_adapters_are_concatenated_by_rank(tmp_path: Path) -> None:
    first = write_adapter(tmp_path / "first", SHAPES, rank=3, targets=["q_proj"])
    second = write_adapter(tmp_path / "second", SHAPES, rank=2, targets=["q_proj", "up_proj"], seed=1)
    both, alone = read(first=first, second=second), read(second=second)
    assert both.ranks == {Q: 5, UP: 2}
    assert [both.parameters[name].shape for name in lora_parameter_names(Q)] == [(5, 12), (5, 24), (3,)]
    assert [both.parameters[lora_parameter_names(weight)[2]].tolist() for weight in (Q, UP)] == [[0, 3, 5], [0, 0, 2]]
    for ours, its in zip(lora_parameter_names(Q)[:2], lora_parameter_names(Q)[:2], strict=True):
        np.testing.assert_array_equal(both.parameters[ours][3:], alone.parameters[its])
    assert {str(type.dtype) for type in both.types.values()} == {"float32", "int32"}


def test_an_adapter_s_key_depends_on_its_content(tmp_path: Path) -> None:
    path = write_adapter(tmp_path / "a", SHAPES)
    other = write_adapter(tmp_path / "b", SHAPES, seed=1)
    found = read(x=other, y=path)
    assert (found.choose("x").number, found.choose("y").number) == (0, 1)
    assert found.choose("y").key == read(z=path).choose("z").key != found.choose("x").key
    with pytest.raises(InvalidArgumentError, match="There is no adapter 'z'; there are x, y"):
        found.choose("z")


def test_values_beyond_the_dtype_are_refused(tmp_path: Path) -> None:
    path = write_adapter(tmp_path, SHAPES, size=1e6)
    assert read(DType.BFLOAT16, x=path).parameters[lora_parameter_names(Q)[1]].dtype == DType.BFLOAT16.numpy
    with pytest.raises(CheckpointError, match=r"the adapter x adds to .* has values beyond float16; .* as dtype"):
        read(DType.FLOAT16, x=path)
