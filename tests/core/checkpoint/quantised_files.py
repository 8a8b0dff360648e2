"""Checkpoints of one quantised layer, opened as a model directory, and codes packed bit by bit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from aethermind.checkpoint.quantized_tensors import dequantized
from aethermind.checkpoint.source import StoredTensors
from aethermind.model.source import DirectorySource
from aethermind.ops.weight_format import QuantizedWeight

__all__ = ["check_values", "opened", "packed_words", "read_layer", "within_int8"]

Array = np.ndarray[Any, Any]


def opened(directory: Path, described: Any, tensors: Mapping[str, Array]) -> StoredTensors:
    """A model directory with these tensors and this quantization_config."""
    stored = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    save_file(stored, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps({"quantization_config": described}))
    return DirectorySource(directory).weights()


def read_layer(tensors: StoredTensors, name: str = "layer.weight") -> tuple[Array, str]:
    """The float32 values of a quantised matrix, and the name of its format, which is also that of its description."""
    weight = tensors.array(name)
    assert isinstance(weight, QuantizedWeight)
    assert (tensors.info(name).shape, tensors.info(name).weight_format) == (weight.shape, weight.format)
    values: Array = weight.format.dequantize(weight)
    return values, weight.format.name


def check_values(tensors: StoredTensors, wanted: Array, name: str = "layer.weight") -> None:
    """Assert that the values of a quantised matrix are these float64 ones, computed in float32 and rounded once."""
    exact = dequantized(tensors, np.float32).array(name)
    np.testing.assert_allclose(exact, wanted, rtol=4e-7, atol=1e-30)
    narrow = dequantized(tensors, ml_dtypes.bfloat16).array(name)
    np.testing.assert_array_equal(narrow, np.asarray(exact).astype(ml_dtypes.bfloat16))
    assert isinstance(tensors.array(name), QuantizedWeight)


def packed_words(codes: Array, bits: int, *, has_gaps: bool = False) -> Array:
    """Codes from 0, [rows, count], in int32 words, the first in the lowest bits; with gaps no code crosses words."""
    per_word = 32 // bits
    rows, count = codes.shape
    num_words = -(-count // per_word) if has_gaps else -(-count * bits // 32)
    words = np.zeros((rows, num_words), np.int64)
    for index in range(count):
        first = (index // per_word) * 32 + index % per_word * bits if has_gaps else index * bits
        for bit in range(bits):
            word, place = divmod(first + bit, 32)
            words[:, word] |= (codes[:, index].astype(np.int64) >> bit & 1) << place
    return words.astype(np.uint32).view(np.int32)


def within_int8(found: Array, wanted: Array) -> None:
    """Assert that values are those of int8 with a float16 scale for each 32: off by half a step at most."""
    largest = np.abs(wanted).reshape(len(wanted), -1, 32).max(-1).repeat(32, axis=1)
    assert (np.abs(found - wanted) <= largest * (1 / 254 + 1e-3 / 127 + 2.0**-11) + 2.0**-24).all()
    assert np.linalg.norm(found - wanted) < 0.01 * np.linalg.norm(wanted)
