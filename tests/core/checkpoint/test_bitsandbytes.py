"""Layers of bitsandbytes against a dequantisation in float64 from the description of its files."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.core.checkpoint.quantised_files import check_values, opened, read_layer, within_int8

from aethermind.errors import CheckpointError

ROWS, COLUMNS = 24, 96
CONFIG = {"quant_method": "bitsandbytes", "load_in_4bit": True, "_load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}

Array = np.ndarray[Any, Any]


def four_bits(kind: str = "nf4", block_size: int = 64, nested: int = 0) -> tuple[dict[str, Array], Array]:
    """The tensors of a layer, and its values."""
    rng = np.random.default_rng(block_size + nested)
    num_values = ROWS * COLUMNS
    codes = rng.integers(0, 16, num_values)
    levels = np.sort(rng.uniform(-1, 1, 16)).astype(np.float32)
    num_blocks = -(-num_values // block_size)
    state: dict[str, Any] = {"quant_type": kind, "blocksize": block_size, "dtype": "bfloat16", "shape": [ROWS, COLUMNS]}
    tensors = {
        "": (codes[::2] << 4 | codes[1::2]).astype(np.uint8)[:, None],
        ".quant_map": levels,
    }
    if nested:
        of_codes = np.sort(rng.uniform(-1, 1, 256)).astype(np.float32)
        stored = rng.integers(0, 256, num_blocks).astype(np.uint8)
        factors = rng.uniform(0.01, 0.02, -(-num_blocks // nested)).astype(np.float32)
        state |= {"nested_blocksize": nested, "nested_dtype": "float32", "nested_offset": 0.05}
        tensors |= {".absmax": stored, ".nested_absmax": factors, ".nested_quant_map": of_codes}
        absmax = of_codes[stored].astype(np.float64) * factors.repeat(nested)[:num_blocks] + 0.05
    else:
        absmax = rng.uniform(0.01, 0.1, num_blocks).astype(np.float32)
        tensors[".absmax"] = absmax
    tensors[f".quant_state.bitsandbytes__{kind}"] = np.frombuffer(json.dumps(state).encode(), np.uint8)
    values = levels[codes] * absmax.astype(np.float64).repeat(block_size)[:num_values]
    return {f"layer.weight{end}": tensor for end, tensor in tensors.items()}, values.reshape(ROWS, COLUMNS)


@pytest.mark.parametrize(
    ("kind", "block_size", "nested"),
    [
        ("nf4", 64, 0),
        ("fp4", 64, 0),
        ("nf4", 128, 0),
        ("nf4", 4096, 0),
        ("nf4", 64, 256),
        ("nf4", 64, 7),
        ("fp4", 32, 16),
    ],
)
def test_four_bits_are_requantised_and_this_is_said(
    tmp_path: Path, kind: str, block_size: int, nested: int, caplog: pytest.LogCaptureFixture
) -> None:
    tensors, values = four_bits(kind, block_size, nested)
    with caplog.at_level(logging.WARNING, "aethermind"):
        view = opened(tmp_path, CONFIG, {**tensors, "norm.weight": np.ones(3, np.float32)})
    assert view.names == ("norm.weight", "layer.weight")
    assert f"1 of its 1 quantised matrices are {kind}" in caplog.text
    found, format = read_layer(view)
    assert (format, view.info("layer.weight").kind) == ("int8", kind)
    within_int8(found, values)
    check_values(view, values)


@pytest.mark.parametrize("storage", [np.float32, np.float16, np.uint16])
def test_bytes_may_be_stored_as_numbers_of_any_type(tmp_path: Path, storage: Any) -> None:
    tensors, values = four_bits()
    tensors["layer.weight"] = tensors["layer.weight"].view(np.uint8).reshape(-1).view(storage)[:, None]
    within_int8(read_layer(opened(tmp_path, CONFIG, tensors))[0], values)


def test_int8_is_exact_but_for_the_rounding_of_scales(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(-127, 128, (ROWS, COLUMNS)).astype(np.int8)
    scb = rng.uniform(0.05, 0.5, ROWS).astype(np.float32)
    tensors = {"layer.weight": codes, "layer.SCB": scb, "layer.weight_format": np.zeros((), np.uint8)}
    view = opened(tmp_path, {"load_in_8bit": True}, tensors)
    found, format = read_layer(view)
    assert format == "int8_channel"
    check_values(view, codes * (scb / 127.0)[:, None])
    scales = (scb / np.float32(127)).astype(np.float16)
    np.testing.assert_array_equal(found, codes * scales.astype(np.float64)[:, None])
    np.testing.assert_allclose(found, codes * (scb / 127.0)[:, None], rtol=2.0**-11)


def with_state(**changed: Any) -> dict[str, Array]:
    state = {"blocksize": 64, "shape": [ROWS, COLUMNS], **changed}
    return {"layer.weight.quant_state.bitsandbytes__nf4": np.frombuffer(json.dumps(state).encode(), np.uint8)}


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (with_state(shape=[ROWS, 2 * COLUMNS]), "of 1152 bytes, where its quant_state says"),
        (with_state(shape=[2**62, 2**62]), "of 1152 bytes"),
        (with_state(shape=[ROWS]), "does not describe a matrix"),
        (with_state(shape=None), "does not describe a matrix"),
        (with_state(blocksize=0), "sizes are positive numbers"),
        (with_state(blocksize=128), "36 numbers of F32|18 numbers of F32"),
        (with_state(nested_offset="x"), "does not describe a matrix"),
        (with_state(nested_offset=10**400), "does not describe a matrix"),
        ({"layer.weight.quant_state.bitsandbytes__nf4": np.full(9, 0xFF, np.uint8)}, "does not describe a matrix"),
        ({"layer.weight.quant_map": np.zeros((2, 7), np.float32)}, "16 numbers of F32 are expected"),
        ({"layer.weight.absmax": np.zeros(36, np.uint8)}, "36 numbers of F32 are expected"),
        ({"layer.weight.nested_absmax": np.zeros(1, np.float32)}, "36 numbers of U8 are expected"),
        ({"layer.weight.absmax": np.full(36, np.nan, np.float32)}, "not finite"),
        ({"layer.weight": np.zeros((3, 3), np.uint8)}, "of 9 bytes"),
    ],
)
def test_parts_that_do_not_fit_are_refused(tmp_path: Path, changed: dict[str, Array], says: str) -> None:
    with pytest.raises(CheckpointError, match=says) as caught:
        opened(tmp_path, CONFIG, {**four_bits()[0], **changed}).array("layer.weight")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ({"layer.weight": np.ones((2, 2), np.float16)}, "would quantise them while it loads them"),
        ({"layer.SCB": np.ones(2, np.float32)}, "is missing with SCB"),
        ({"layer.SCB": np.ones(2, np.float32), "layer.weight": np.ones((3, 32), np.int8)}, r"SCB \[2\]"),
        (
            {
                "layer.SCB": np.ones(2, np.float32),
                "layer.weight": np.ones((2, 32), np.int8),
                "layer.weight_format": np.ones(1, np.uint8),
            },
            "layout of one kind of GPU",
        ),
        ({"layer.SCB": np.full(2, np.inf, np.float32), "layer.weight": np.ones((2, 32), np.int8)}, "not finite"),
    ],
)
def test_other_tensors_are_refused(tmp_path: Path, tensors: dict[str, Array], says: str) -> None:
    with pytest.raises(CheckpointError, match=says):
        opened(tmp_path, CONFIG, tensors).array("layer.weight")
