"""GGUF's quantised blocks as weights, against the dequantisation of the library that defines the format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest

from aethermind.checkpoint.gguf import GgufFile
from aethermind.checkpoint.gguf_blocks import BLOCK_TYPES
from aethermind.errors import CheckpointError
from aethermind.ops.weight_format import QuantizedWeight

Array = np.ndarray[Any, Any]

ROWS, COLUMNS = 5, 768
BY_NAME = {block.name: block for block in BLOCK_TYPES.values()}
HALVES = {"Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q4_K": (0, 2), "Q5_K": (0, 2),
          "Q6_K": (208,), "Q2_K": (80, 82), "Q3_K": (108,), "IQ4_NL": (0,), "IQ4_XS": (0,),
          "MXFP4": (), "NVFP4": (), "IQ1_S": (0,), "IQ1_M": (), "IQ2_XXS": (0,), "IQ2_XS": (0,), "IQ2_S": (0,),
          "IQ3_XXS": (0,), "IQ3_S": (0,), "TQ1_0": (52,), "TQ2_0": (64,), "Q1_0": (0,), "Q8_K": ()}  # fmt: skip
"""Where in a block float16 numbers lie."""


def random_blocks(name: str) -> Array:
    """Any bytes are codes and 6-bit scales; float16 numbers are of the size that they have in weights."""
    type = gguf.GGMLQuantizationType[name]
    block, nbytes = gguf.GGML_QUANT_SIZES[type]
    rng = np.random.default_rng(int(type))
    blocks = rng.integers(0, 256, (ROWS * COLUMNS // block, nbytes), np.uint8)
    for begin in HALVES[name]:
        values = (rng.standard_normal(len(blocks)) * 0.01).astype(np.float16)
        blocks[:, begin : begin + 2] = values.view(np.uint8).reshape(-1, 2)
    if name == "MXFP4":
        blocks[:, 0] = rng.integers(0, 253, len(blocks))  # exponents of float32 numbers
    if name == "NVFP4":
        blocks[:, :4] &= 0x7F  # without a sign
    if name == "Q8_K":
        blocks[:, :4] = (rng.standard_normal(len(blocks)) * 0.01).astype(np.float32)[:, None].view(np.uint8)
    if name == "IQ1_M":  # the bits of a float16 number are the highest of four words
        scale = (rng.standard_normal(len(blocks)) * 0.01).astype(np.float16).view(np.uint16)
        words = blocks[:, 48:56].copy().view(np.uint16) & 0x0FFF
        words |= (scale[:, None] >> np.array([0, 4, 8, 12], np.uint16) & 15) << 12
        blocks[:, 48:56] = words.view(np.uint8)
    return blocks.reshape(ROWS, -1)


def written(path: Path, name: str, stored: Array) -> GgufFile:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("w", stored, raw_dtype=gguf.GGMLQuantizationType[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GgufFile(path)


def read(path: Path, name: str, stored: Array) -> Array:
    file = written(path, name, stored)
    info, weight = file.info("w"), file.array("w")
    assert isinstance(weight, QuantizedWeight)
    assert (info.shape, info.kind, info.weight_format) == ((ROWS, COLUMNS), name, weight.format)
    assert info.num_bytes == stored.nbytes
    assert weight.format == BY_NAME[name].format
    values: Array = weight.format.dequantize(weight)
    return values


def theirs(name: str, stored: Array) -> Array:
    if name in ("Q1_0", "Q8_K"):  # which the library does not dequantise
        blocks = stored.reshape(-1, BY_NAME[name].num_bytes)
        if name == "Q8_K":
            codes, scales = blocks[:, 4:260].view(np.int8), blocks[:, :4].copy().view(np.float32)
        else:
            bits = blocks[:, 2:].repeat(8, axis=1) >> np.tile(np.arange(8, dtype=np.uint8), 16) & 1
            codes, scales = 2.0 * bits - 1, blocks[:, :2].copy().view(np.float16).astype(np.float32)
        return (codes * scales).astype(np.float32).reshape(ROWS, COLUMNS)
    values: Array = gguf.dequantize(stored, gguf.GGMLQuantizationType[name])
    return values


def test_every_type_is_read_or_named() -> None:
    """But for numbers of types that are no longer given out."""
    plain = {"F32", "F16", "BF16", "F64", "I8", "I16", "I32", "I64"}
    assert {type.name for type in gguf.GGMLQuantizationType} - plain - set(BY_NAME) == {"Q8_1"}
    for number, block in BLOCK_TYPES.items():
        type = gguf.GGMLQuantizationType(number)
        assert (block.name, (block.num_values, block.num_bytes)) == (type.name, gguf.GGML_QUANT_SIZES[type])


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_values_are_those_of_the_library_rounded_once(tmp_path: Path, name: str) -> None:
    stored = random_blocks(name)
    file, wanted = written(tmp_path / "w.gguf", name, stored), theirs(name, stored)
    np.testing.assert_array_equal(file.values("w", np.float32), wanted)
    for dtype in (ml_dtypes.bfloat16, np.float16):
        if np.abs(wanted).max() < 65504 or dtype is not np.float16:
            np.testing.assert_array_equal(file.values("w", dtype), wanted.astype(dtype))


def test_values_beyond_float16_are_refused(tmp_path: Path) -> None:
    stored = random_blocks("Q6_K")
    stored[0, 208:210] = np.array([1e4], np.float16).view(np.uint8)
    stored[0, 192:208] = 127
    file = written(tmp_path / "w.gguf", "Q6_K", stored)
    assert np.isfinite(file.values("w", np.float32)).all()
    with pytest.raises(CheckpointError, match=r"'w' of type Q6_K with values that are not finite in float16"):
        file.values("w", "float16")


@pytest.mark.parametrize(
    "name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "IQ4_NL", "MXFP4", "TQ1_0", "TQ2_0", "Q1_0"]
)
def test_codes_and_scales_are_unchanged(tmp_path: Path, name: str) -> None:
    stored = random_blocks(name)
    np.testing.assert_array_equal(read(tmp_path / "w.gguf", name, stored), theirs(name, stored))


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4", "TQ1_0", "TQ2_0"])
def test_tensors_quantised_by_the_library(tmp_path: Path, name: str) -> None:
    array = (np.random.default_rng(0).standard_normal((ROWS, COLUMNS)) * 0.02).astype(np.float32)
    stored = gguf.quantize(array, gguf.GGMLQuantizationType[name])
    np.testing.assert_array_equal(read(tmp_path / "w.gguf", name, stored), theirs(name, stored))


def test_products_of_scales_are_rounded_to_float16(tmp_path: Path) -> None:
    stored = random_blocks("Q5_K")
    wanted, found = theirs("Q5_K", stored), read(tmp_path / "w.gguf", "Q5_K", stored)
    both = stored.reshape(-1, BY_NAME["Q5_K"].num_bytes)[:, :4].copy().view(np.float16).astype(np.float64)
    # Of a scale of up to 63 · d by the largest code, and of an offset of up to 63 · dmin.
    terms = 63 * (31 * np.abs(both[:, 0]) + np.abs(both[:, 1]))
    bound = (terms * 2.0**-11 + 32 * 2.0**-25).repeat(256).reshape(wanted.shape)
    assert (np.abs(found - wanted.astype(np.float64)) <= bound).all()
    assert np.linalg.norm(found - wanted) / np.linalg.norm(wanted) < 3e-4


@pytest.mark.parametrize("name", ["IQ4_XS", "IQ1_S", "IQ2_XXS", "IQ3_XXS", "IQ3_S", "Q8_K"])
def test_scales_are_rounded_to_float16(tmp_path: Path, name: str) -> None:
    stored = random_blocks(name)
    wanted, found = theirs(name, stored), read(tmp_path / "w.gguf", name, stored)
    assert (np.abs(found - wanted) <= np.abs(wanted) * 2.0**-11 + 127 * 2.0**-25).all()


def test_a_codebook_needs_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path / "w.gguf", "IQ2_XXS", random_blocks("IQ2_XXS"))
    monkeypatch.setattr("aethermind.checkpoint.gguf.find_spec", lambda name: None)
    with pytest.raises(CheckpointError, match=r"IQ2_XXS, whose codebook comes with .*aethermind-core\[gguf\]"):
        file.info("w")


@pytest.mark.parametrize("name", ["Q2_K", "Q3_K", "Q6_K", "IQ1_M", "IQ2_XS", "IQ2_S", "NVFP4"])
def test_requantised_values_are_off_by_half_a_step_of_int8(tmp_path: Path, name: str) -> None:
    stored = random_blocks(name)
    wanted, found = theirs(name, stored), read(tmp_path / "w.gguf", name, stored)
    largest = np.abs(wanted).reshape(ROWS, -1, 32).max(-1).repeat(32, axis=1)
    assert (np.abs(found - wanted) <= largest * (1 / 254 + 1e-3 / 127 + 2.0**-11) + 2.0**-24).all()


@pytest.mark.parametrize(
    ("name", "position", "bits", "says"),
    [
        ("Q8_0", 0, 0x7C00, "not finite"),
        ("Q4_1", 2, 0x7E00, "not finite"),
        ("Q4_K", 2, 0x7C00, "not finite"),
        ("Q5_K", 0, 0x7BFF, "not finite in float16"),
        ("Q6_K", 208, 0x7C00, "not finite"),
        ("Q6_K", 208, 0x7BFF, "magnitude"),
        ("Q2_K", 82, 0x7C00, "not finite"),
        ("Q3_K", 108, 0x7E00, "not finite"),
        ("IQ4_NL", 0, 0x7C00, "not finite"),
        ("IQ4_XS", 0, 0x7BFF, "not finite in float16"),
        ("IQ2_XXS", 0, 0x7BFF, "not finite in float16"),
        ("IQ2_XS", 0, 0x7C00, "not finite"),
        ("TQ2_0", 64, 0x7C00, "not finite"),
        ("MXFP4", 0, 0x77FF, "A scale of 255 cannot be read as mxfp4"),
    ],
)
def test_non_finite_scales_are_refused(tmp_path: Path, name: str, position: int, bits: int, says: str) -> None:
    stored = np.full_like(random_blocks(name), 0x77)
    stored[0, position : position + 2] = np.array([bits], np.uint16).view(np.uint8)
    with pytest.raises(CheckpointError, match=says) as caught:
        written(tmp_path / "w.gguf", name, stored).array("w")
    assert "'w'" in str(caught.value)
    assert "\n" not in str(caught.value)
