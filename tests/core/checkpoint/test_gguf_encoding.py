"""GGUF's block types as they are written, dequantised by the gguf library."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import pytest

from aethermind.checkpoint.gguf_encoding import ENCODINGS
from aethermind.errors import InvalidArgumentError
from aethermind.ops.quantization import fake_quantize
from aethermind.ops.weight_format import parse_format

Array = np.ndarray[Any, Any]

RNG = np.random.default_rng(3)
WEIGHTS = (RNG.standard_normal((20, 768)) * np.exp(RNG.standard_normal((20, 1))) * 0.02).astype(np.float32)
IMPORTANCE = np.exp(1.5 * RNG.standard_normal(768)).astype(np.float32)
WEIGHTS[4], WEIGHTS[5] = 0, np.abs(WEIGHTS[5])
MOST = {"Q4_0": 0.087, "Q5_0": 0.044, "Q5_1": 0.037, "Q8_0": 0.0055, "Q4_K": 0.075, "Q5_K": 0.038, "Q6_K": 0.022}
"""Relative errors of normal weights by root mean square."""


def dequantised(name: str, importance: Array | None = None) -> Array:
    encoding = ENCODINGS[name]
    blocks = encoding.encode(WEIGHTS, importance)
    assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]] == (encoding.num_values, encoding.num_bytes)
    assert gguf.GGMLQuantizationType[name] == encoding.number
    values: Array = gguf.dequantize(blocks, gguf.GGMLQuantizationType[name])
    return values


@pytest.mark.parametrize("name", sorted(ENCODINGS))
def test_the_library_reads_the_weights(name: str) -> None:
    errors = np.linalg.norm(dequantised(name) - WEIGHTS, axis=1)
    assert errors[4] == 0
    assert errors[5] < MOST[name] * np.linalg.norm(WEIGHTS[5])
    assert np.sqrt((errors**2).sum()) / np.linalg.norm(WEIGHTS) < MOST[name]
    try:
        blocks = gguf.quants.quantize(WEIGHTS, gguf.GGMLQuantizationType[name])
    except NotImplementedError:  # K-quants
        return
    of_library = gguf.dequantize(blocks, gguf.GGMLQuantizationType[name])
    assert np.linalg.norm(errors) <= 1.0001 * np.linalg.norm(of_library - WEIGHTS)


@pytest.mark.parametrize(("name", "format"), [("Q4_0", "int4"), ("Q8_0", "int8"), ("Q4_K", "int4_k")])
def test_blocks_hold_what_the_weight_format_holds(name: str, format: str) -> None:
    found = parse_format(format)
    assert found is not None
    np.testing.assert_allclose(dequantised(name), fake_quantize(found, WEIGHTS), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", sorted(ENCODINGS.keys() - {"Q8_0"}))
def test_importance_lowers_the_error_that_it_weighs(name: str) -> None:
    with_importance, without = (
        float((((dequantised(name, one) - WEIGHTS) ** 2) * IMPORTANCE).sum()) for one in (IMPORTANCE, None)
    )
    assert with_importance < 0.98 * without


def test_values_that_are_not_finite_are_refused() -> None:
    for encoding in ENCODINGS.values():
        with pytest.raises(InvalidArgumentError, match="not finite"):
            encoding.encode(np.full((1, 256), np.nan, np.float32))
