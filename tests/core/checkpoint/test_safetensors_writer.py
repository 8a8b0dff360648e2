"""Weights that are written tensor by tensor, read by the safetensors library and by this reader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open

from aethermind.checkpoint.safetensors_writer import TensorGroup, TensorSpec, write_safetensors
from aethermind.checkpoint.sharded_index import Checkpoint

RNG = np.random.default_rng(0)
ARRAYS = {
    "odd.bf16": RNG.standard_normal((3, 5)).astype(ml_dtypes.bfloat16),
    "words": RNG.integers(-9, 9, (4, 3)).astype(np.int32),
    "codes": RNG.integers(-9, 9, (7,)).astype(np.int8),
    "shape": np.array([4, 24], np.int64),
    "transposed": RNG.standard_normal((6, 4)).astype(np.float32).T,
    "empty": np.zeros((0, 3), np.float32),
    "scalar": np.array(1.5, np.float16),
}
DTYPES = {"odd.bf16": "BF16", "words": "I32", "codes": "I8", "shape": "I64", "scalar": "F16"}


def group(*names: str) -> TensorGroup:
    specs = tuple(TensorSpec(name, DTYPES.get(name, "F32"), ARRAYS[name].shape) for name in names)
    return TensorGroup(specs, lambda: [ARRAYS[name] for name in names])


def groups() -> list[TensorGroup]:
    return [group("words", "odd.bf16"), group("codes"), group("shape", "transposed"), group("empty"), group("scalar")]


def check(paths: list[Path]) -> None:
    found: dict[str, Any] = {}
    for path in paths:
        with safe_open(path, "np") as file:
            assert file.metadata() == {"format": "pt"}
            names = list(file.keys())
            found |= {name: file.get_tensor(name) for name in names}
    assert found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(found[name], array)


def test_one_file_has_all_tensors_and_they_are_aligned(tmp_path: Path) -> None:
    done = []
    write_safetensors(tmp_path, groups(), on_progress=lambda *at: done.append(at))
    check([tmp_path / "model.safetensors"])
    checkpoint = Checkpoint.open(tmp_path)
    assert all(checkpoint.array(name).flags.aligned for name in checkpoint.names)
    total = sum(array.nbytes for array in ARRAYS.values())
    assert done[-1] == (total, total)


@pytest.mark.parametrize("max_bytes", [1, 60, 150])
def test_large_weights_are_shards_with_an_index(tmp_path: Path, max_bytes: int) -> None:
    write_safetensors(tmp_path, groups(), max_shard_bytes=max_bytes)
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert 1 < len(shards) == int(shards[0].name[-17:-12])
    check(shards)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_size": sum(array.nbytes for array in ARRAYS.values())}
    checkpoint = Checkpoint.open(tmp_path)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(checkpoint.array(name), array)
