"""Tensors that a converter rearranged, against the arrays that they were made from."""

from __future__ import annotations

import numpy as np
import pytest

from aethermind.checkpoint.gguf_tensors import GgufTransform, inverse_order
from aethermind.checkpoint.source import TensorInfo
from aethermind.errors import CheckpointError
from aethermind.ops.weight_format import QuantizedWeight, parse_format

RNG = np.random.default_rng(2)


def test_plain_values() -> None:
    logarithms, order = RNG.normal(size=6), RNG.permutation(6).tolist()
    stored = -np.exp(logarithms[order])[:, None]
    transform = GgufTransform(is_flat=True, rows=inverse_order(order), is_negative_exponential=True)
    np.testing.assert_allclose(transform.apply(stored, "a"), logarithms, rtol=1e-12)
    assert transform.info(TensorInfo("F32", (6, 1), 0, 24)) == TensorInfo("F32", (6,), 0, 24)


@pytest.mark.parametrize("format_name", ["int4_k", "int8", "int4_offset", "int4_zp"])
def test_columns_of_a_quantised_weight_move_with_their_blocks(format_name: str) -> None:
    format = parse_format(format_name)
    assert format is not None
    weight = format.quantize(RNG.normal(size=(3, 512)).astype(np.float32))
    blocks = RNG.permutation(16)
    columns = (blocks[:, None] * 32 + np.arange(32)).ravel()
    transform = GgufTransform(rows=(2, 0, 1), columns=columns.tolist())
    found = transform.apply(weight, "w")
    assert isinstance(found, QuantizedWeight)
    assert found.format == transform.info(TensorInfo("Q", (3, 512), 0, 0, format)).weight_format
    expected = format.dequantize(weight)[[2, 0, 1]][:, columns]
    np.testing.assert_allclose(found.format.dequantize(found), expected, atol=4e-3)


def test_what_does_not_fit_is_an_error() -> None:
    format = parse_format("int8")
    assert format is not None
    weight = format.quantize(np.ones((2, 64), np.float32))
    with pytest.raises(CheckpointError, match=r"w is quantised in blocks of 32 columns.*F16 or BF16"):
        GgufTransform(columns=tuple(reversed(range(64)))).apply(weight, "w")
    with pytest.raises(CheckpointError, match="w has 2 rows or columns where its metadata say 3"):
        GgufTransform(rows=(0, 1, 2)).apply(weight, "w")
    with pytest.raises(CheckpointError, match="a has values that are not negative"):
        GgufTransform(is_negative_exponential=True).apply(np.array([-1.0, 0.0]), "a")
