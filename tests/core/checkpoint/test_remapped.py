"""A checkpoint in a model's layout has the same values and correct descriptions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from aethermind.checkpoint import AdaptedTensors, Checkpoint, TensorSlice
from aethermind.errors import CheckpointError

WHOLE = np.arange(24, dtype=np.float32).reshape(4, 6)
BIAS = np.arange(6, dtype=np.float16)


@pytest.fixture
def stored(tmp_path: Path) -> Checkpoint:
    save_file({"attn": WHOLE, "bias": BIAS, "other": BIAS}, tmp_path / "model.safetensors")
    return Checkpoint.open(tmp_path)


def adapted(stored: Checkpoint) -> AdaptedTensors:
    parts = {
        "q": TensorSlice("attn", True, 0, 2),
        "rest": TensorSlice("attn", True, 2),
        "rows": TensorSlice("attn", begin=1, end=3),
        "b": TensorSlice("bias", True),
        "missing": TensorSlice("nowhere"),
    }
    return AdaptedTensors(stored, parts)


def test_adapted_tensors_have_the_sliced_values_and_descriptions(stored: Checkpoint) -> None:
    tensors = adapted(stored)
    wanted = {"q": WHOLE.T[:2], "rest": WHOLE.T[2:], "rows": WHOLE[1:3], "b": BIAS, "other": BIAS}
    assert set(tensors.names) == set(wanted)
    for name, values in wanted.items():
        info = tensors.info(name)
        assert (info.shape, info.dtype, info.num_bytes) == (values.shape, values.dtype, values.nbytes)
        np.testing.assert_array_equal(tensors.array(name), values)
    assert tensors.total_bytes == sum(values.nbytes for values in wanted.values())
    assert tensors.paths == stored.paths


def test_slices_of_missing_tensors_are_left_out(stored: Checkpoint) -> None:
    with pytest.raises(CheckpointError, match="no tensor 'missing'"):
        adapted(stored).array("missing")


def test_a_row_is_added_to_every_row(stored: Checkpoint) -> None:
    tensors = AdaptedTensors(stored, {"sum": TensorSlice("attn", added="attn")})
    assert tensors.names == ("sum", "bias", "other")
    assert tensors.info("sum").shape == WHOLE.shape
    np.testing.assert_array_equal(tensors.array("sum"), WHOLE + WHOLE[0])
