"""Weights in mxfp4 are read as transformers converts them, and tensors that do not fit are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from transformers.integrations.mxfp4 import _convert_moe_packed_tensors

from aethermind.checkpoint import Checkpoint, FusedSlice, StackedTensors
from aethermind.checkpoint.float_formats import Mxfp4Checkpoint
from aethermind.errors import CheckpointError
from aethermind.ops.weight_format import MXFP4, QuantizedWeight

RNG = np.random.default_rng(5)
BLOCKS = RNG.integers(0, 256, (3, 8, 2, 16), np.uint8)
SCALES = RNG.integers(110, 135, (3, 8, 2), np.uint8)
TENSORS = {"w_blocks": BLOCKS, "w_scales": SCALES, "w_bias": np.ones((3, 8), np.float32)}


def stored(folder: Path, **changed: Any) -> Mxfp4Checkpoint:
    tensors = {name: array for name, array in {**TENSORS, **changed}.items() if array is not None}
    save_file(tensors, folder / "model.safetensors")
    return Mxfp4Checkpoint(Checkpoint.open(folder), "model")


def test_values_are_those_of_transformers(tmp_path: Path) -> None:
    checkpoint = stored(tmp_path)
    info, weight = checkpoint.info("w"), checkpoint.array("w")
    assert isinstance(weight, QuantizedWeight)
    assert (checkpoint.names, info.shape, info.weight_format) == (("w_bias", "w"), (3, 8, 64), MXFP4)
    assert info.num_bytes == BLOCKS.nbytes + SCALES.nbytes
    theirs = _convert_moe_packed_tensors(torch.tensor(BLOCKS), torch.tensor(SCALES), dtype=torch.float32)
    values = weight.format.dequantize(weight).reshape(3, 8, 64)
    np.testing.assert_array_equal(values, theirs.numpy().swapaxes(1, 2))  # theirs is [E, K, N]
    every_second = StackedTensors(checkpoint, {"odd": FusedSlice("w", begin=1, step=2)})
    odd = every_second.array("odd")
    assert isinstance(odd, QuantizedWeight)
    assert every_second.info("odd").shape == odd.shape == (12, 64)
    assert every_second.info("odd").num_bytes == info.num_bytes // 2
    np.testing.assert_array_equal(odd.format.dequantize(odd), values[:, 1::2].reshape(12, 64))


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"w_blocks": None, "w_scales": None}, "has no tensor \\*_blocks"),
        ({"w_scales": None}, "no tensor 'w_scales'"),
        ({"w_scales": SCALES[:, :4]}, r"w_blocks of U8 \[3, 8, 2, 16\] with _scales of U8 \[3, 4, 2\]"),
        ({"w_scales": SCALES.astype(np.float32)}, "with _scales of F32"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(tmp_path: Path, changed: dict[str, Any], says: str) -> None:
    with pytest.raises(CheckpointError, match=says):
        stored(tmp_path, **changed)


def test_scales_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    checkpoint = stored(tmp_path, w_scales=np.full_like(SCALES, 255))
    with pytest.raises(CheckpointError, match="w_scales: A scale of 255"):
        checkpoint.array("w")
