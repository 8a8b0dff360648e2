"""A checkpoint seen as a model wants it holds the same values, and describes them truly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from aethermind.checkpoint import AdaptedTensors, Checkpoint, Part
from aethermind.errors import CheckpointError

WHOLE = np.arange(24, dtype=np.float32).reshape(4, 6)
BIAS = np.arange(6, dtype=np.float16)


@pytest.fixture
def stored(tmp_path: Path) -> Checkpoint:
    save_file({"attn": WHOLE, "bias": BIAS, "other": BIAS}, tmp_path / "model.safetensors")
    return Checkpoint.open(tmp_path)


def adapted(stored: Checkpoint) -> AdaptedTensors:
    parts = {
        "q": Part("attn", True, 0, 2),
        "rest": Part("attn", True, 2),
        "rows": Part("attn", begin=1, end=3),
        "b": Part("bias", True),
        "missing": Part("nowhere"),
    }
    return AdaptedTensors(stored, parts)


def test_values_and_descriptions(stored: Checkpoint) -> None:
    tensors = adapted(stored)
    wanted = {"q": WHOLE.T[:2], "rest": WHOLE.T[2:], "rows": WHOLE[1:3], "b": BIAS, "other": BIAS}
    assert set(tensors.names) == set(wanted)
    for name, values in wanted.items():
        info = tensors.info(name)
        assert (info.shape, info.dtype, info.num_bytes) == (values.shape, values.dtype, values.nbytes)
        np.testing.assert_array_equal(tensors.array(name), values)
    assert tensors.total_bytes == sum(values.nbytes for values in wanted.values())
    assert tensors.paths == stored.paths


def test_what_is_not_stored_is_left_to_the_check_of_names(stored: Checkpoint) -> None:
    with pytest.raises(CheckpointError, match="no tensor 'missing'"):
        adapted(stored).array("missing")


def test_a_row_added_to_every_other(stored: Checkpoint) -> None:
    tensors = AdaptedTensors(stored, {"sum": Part("attn", added="attn")})
    assert tensors.names == ("sum", "bias", "other")
    assert tensors.info("sum").shape == WHOLE.shape
    np.testing.assert_array_equal(tensors.array("sum"), WHOLE + WHOLE[0])
