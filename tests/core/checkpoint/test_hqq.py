"""Layers of HQQ against a dequantisation in float64 from the description of its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.core.checkpoint.quantised_files import check_values, opened, read_layer, within_int8

from aethermind.errors import CheckpointError

ROWS, COLUMNS = 40, 256
CONFIG = {"quant_method": "hqq", "quant_config": {}}
PER_WORD = {8: 1, 6: 1, 5: 1, 4: 2, 3: 10, 2: 4, 1: 8}

Array = np.ndarray[Any, Any]


def text(word: str) -> Array:
    return np.frombuffer(word.encode(), np.uint8)


def layer(bits: int = 4, axis: int = 1, group_size: int = 64) -> tuple[dict[str, Array], Array]:
    """The tensors of a layer, and its values."""
    rng = np.random.default_rng(bits + axis)
    num_groups = ROWS * COLUMNS // group_size
    shape, across = ((num_groups, group_size), (-1, 1)) if axis else ((group_size, num_groups), (1, -1))
    codes = rng.integers(0, 1 << bits, shape)
    scales = (rng.uniform(0.5, 1, num_groups) * 0.01).astype(np.float16).reshape(across)
    zeros = rng.uniform(0, 1 << bits, num_groups).astype(np.float16).reshape(across)
    per_word, width = PER_WORD[bits], 8 if bits > 4 else bits
    padded = np.pad(codes, ((0, -shape[0] % per_word), (0, 0))).reshape(per_word, -1, shape[1])
    words = sum(part.astype(np.uint64) << np.uint64(width * i) for i, part in enumerate(padded[::-1]))
    tensors = {
        "W_q": words.astype(np.uint32).view(np.int32) if bits == 3 else words.astype(np.uint8),
        "scale": scales,
        "zero": zeros,
        "nbits": np.array(bits, np.int32),
        "axis": np.array(axis, np.int32),
        "group_size": np.array(group_size, np.int32),
        "shape": np.array([ROWS, COLUMNS]),
        "packing": text("3bit_32" if bits == 3 else f"{width}bit_u8"),
        "view_as_float": np.array(0, np.uint8),
        "quant_scale": np.array(0, np.uint8),
        "quant_zero": np.array(0, np.uint8),
        "unpack_view_dtype": text("torch.uint8"),
    }
    values = (codes - zeros.astype(np.float64)) * scales.astype(np.float64)
    return {f"layer.{name}": tensor for name, tensor in tensors.items()}, values.reshape(ROWS, COLUMNS)


@pytest.mark.parametrize("bits", PER_WORD)
@pytest.mark.parametrize("group_size", [32, 64, 128, COLUMNS])
def test_groups_of_a_row_become_a_format_with_offsets(tmp_path: Path, bits: int, group_size: int) -> None:
    tensors, values = layer(bits, 1, group_size)
    view = opened(tmp_path, CONFIG, {**tensors, "layer.bias": np.ones(ROWS, np.float16)})
    assert view.names == ("layer.bias", "layer.weight")
    found, format = read_layer(view)
    assert format == ("int8_offset" if bits > 4 else "int4_offset" if group_size == 32 else "int4_offset_g64")
    offsets = 0.01 * (1 << bits)  # of which float16 has eleven bits
    assert np.abs(found - values).max() <= offsets * 2.0**-11
    check_values(view, values)


@pytest.mark.parametrize("bits", PER_WORD)
@pytest.mark.parametrize(("axis", "group_size"), [(0, 64), (0, 20), (1, 16), (1, 512)])
def test_other_groups_are_requantised(tmp_path: Path, bits: int, axis: int, group_size: int) -> None:
    tensors, values = layer(bits, axis, group_size)
    view = opened(tmp_path, CONFIG, tensors)
    found, format = read_layer(view)
    assert format == "int8"
    within_int8(found, values)
    check_values(view, values)


def test_codes_may_be_stored_as_floats(tmp_path: Path) -> None:
    tensors, values = layer()
    tensors["layer.W_q"] = tensors["layer.W_q"].view(np.float16)
    np.testing.assert_allclose(read_layer(opened(tmp_path, CONFIG, tensors))[0], values, atol=1e-4)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"shape": np.array([ROWS, 2 * COLUMNS])}, "which take 10240 bytes"),
        ({"shape": np.array([2**40, 2**40])}, "of shape"),
        ({"shape": np.array([ROWS])}, "of shape"),
        ({"shape": np.array([np.nan, 1.0])}, "of shape"),
        ({"shape": np.array([np.inf, 1.0])}, "of shape"),
        ({"axis": np.array(2, np.int32)}, "axis 2"),
        ({"axis": np.array([1, 1], np.int32)}, "which is not a number"),
        ({"group_size": np.array(0, np.int32)}, "groups of 0"),
        ({"group_size": np.array(63, np.int32)}, "in groups of 63"),
        ({"nbits": np.array(np.nan, np.float32)}, "which is not a number"),
        ({"packing": text("marlin")}, "packing 'marlin'"),
        ({"quant_zero": np.array(1, np.uint8)}, "has quantised zeros"),
        ({"scale": np.ones(3, np.float16)}, r"with F16 \[3\] for scale, where 160 numbers"),
        ({"zero": np.ones(160, np.int32)}, r"with I32 \[160\] for zero"),
        ({"scale": np.full((160, 1), np.inf, np.float16)}, "not finite in float16"),
    ],
)
def test_notes_and_parts_that_do_not_fit_are_refused(tmp_path: Path, changed: dict[str, Array], says: str) -> None:
    tensors = layer()[0] | {f"layer.{name}": tensor for name, tensor in changed.items()}
    with pytest.raises(CheckpointError, match=says) as caught:
        opened(tmp_path, CONFIG, tensors).array("layer.weight")
    assert "\n" not in str(caught.value)


def test_a_checkpoint_without_codes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no tensor \*\.W_q"):
        opened(tmp_path, CONFIG, {"a.weight": np.ones((2, 2), np.float16)})
