"""Dummy weights: the right shapes, plausible values, the same for the same seed."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from aethermind.checkpoint import DummyCheckpoint
from aethermind.errors import CheckpointError, InvalidArgumentError

SHAPES = {
    "embed.weight": (3000, 512),  # longer than the random block, so that it repeats inside
    "layers.0.norm.weight": (64,),
    "layers.0.q_proj.weight": (64, 64),
    "layers.0.q_proj.bias": (64,),
    "layers.1.q_proj.weight": (64, 64),
    "scalar": (),
    "nothing": (0, 7),
}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "float8_e4m3fn"])
def test_shapes_dtypes_and_sizes(dtype: str) -> None:
    checkpoint = DummyCheckpoint(SHAPES, dtype)
    assert checkpoint.names == tuple(SHAPES)
    for name, shape in SHAPES.items():
        array = checkpoint.array(name)
        assert array.shape == checkpoint.info(name).shape == shape
        assert array.dtype == checkpoint.info(name).dtype == np.dtype(dtype)
        assert array.nbytes == checkpoint.info(name).num_bytes
        assert array.flags.c_contiguous
        assert not array.flags.writeable
    assert checkpoint.total_bytes == sum(checkpoint.array(name).nbytes for name in SHAPES)


def test_values_are_normal_and_norms_are_one() -> None:
    checkpoint = DummyCheckpoint(SHAPES, np.dtype(ml_dtypes.bfloat16), std=0.5)
    values = checkpoint.array("embed.weight").astype(np.float64)
    assert abs(values.mean()) < 0.01
    assert abs(values.std() - 0.5) < 0.01
    assert (np.abs(values) < 0.5).mean() == pytest.approx(0.683, abs=0.01)
    assert (checkpoint.array("layers.0.norm.weight") == 1).all()
    assert 0 < np.abs(checkpoint.array("layers.0.q_proj.bias").astype(np.float64)).max() < 3


def test_tensors_and_rows_differ() -> None:
    checkpoint = DummyCheckpoint(SHAPES, "float32")
    one, two = checkpoint.array("layers.0.q_proj.weight"), checkpoint.array("layers.1.q_proj.weight")
    assert not np.array_equal(one, two)
    assert len(np.unique(checkpoint.array("embed.weight"), axis=0)) == 3000


def test_values_depend_on_the_seed() -> None:
    def values(seed: int) -> list[bytes]:
        checkpoint = DummyCheckpoint(SHAPES, "float32", seed=seed)
        return [checkpoint.array(name).tobytes() for name in SHAPES]

    assert values(3) == values(3)
    assert values(3) != values(4)


def test_a_tensor_does_not_depend_on_the_others() -> None:
    name = "layers.0.q_proj.weight"
    alone = DummyCheckpoint({name: SHAPES[name]}, "float32")
    assert np.array_equal(alone.array(name), DummyCheckpoint(SHAPES, "float32").array(name))


def test_memory_is_the_size_of_the_largest_tensor() -> None:
    shapes = {f"layers.{i}.weight": (1024, 1024) for i in range(1000)}
    checkpoint = DummyCheckpoint(shapes, "float32")
    bases = {id(checkpoint.array(name).base) for name in shapes}
    assert checkpoint.total_bytes == 1000 * 2**22
    assert len(bases) == 1


def test_unknown_name() -> None:
    with pytest.raises(CheckpointError, match="no tensor 'x' among its 7"):
        DummyCheckpoint(SHAPES, "float32").array("x")


@pytest.mark.parametrize("dtype", ["int8", "complex64", "nonsense"])
def test_other_dtypes_are_refused(dtype: str) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"cannot have dtype {dtype}; choose one of .*bfloat16"):
        DummyCheckpoint(SHAPES, dtype)
