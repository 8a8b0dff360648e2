"""Layers in the formats of compressed-tensors against a dequantisation in float64 from the formats' description."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.core.checkpoint.quantised_files import check_values, opened, packed_words, read_layer, within_int8

from aethermind.errors import CheckpointError, ConfigError

ROWS, COLUMNS = 40, 256
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]

Array = np.ndarray[Any, Any]


def described(format: str = "pack-quantized", **weights: Any) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", **weights}}}
    return {"quant_method": "compressed-tensors", "format": format, "config_groups": groups, "ignore": ["lm_head"]}


def random_codes(bits: int, groups: int, dtype: Any = np.float16) -> tuple[Array, Array, Array]:
    """Codes from 0 and zero points, and scales that float16 has."""
    rng = np.random.default_rng(bits + groups)
    codes, zeros = rng.integers(0, 1 << bits, (ROWS, COLUMNS)), rng.integers(0, 1 << bits, (ROWS, groups))
    return codes, zeros, (rng.uniform(0.5, 1, (ROWS, groups)) * 0.01).astype(dtype)


def dequantised(codes: Array, zeros: Array | int, scales: Array) -> Array:
    group = np.arange(COLUMNS) // (COLUMNS // scales.shape[1])
    offsets = zeros if isinstance(zeros, int) else zeros[:, group]
    return scales.astype(np.float64)[:, group] * (codes - offsets)


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("has_zeros", [False, True])
@pytest.mark.parametrize("has_gaps", [False, True])
def test_packed_integers(tmp_path: Path, bits: int, groups: int, has_zeros: bool, has_gaps: bool) -> None:
    codes, zeros, scales = random_codes(bits, groups)
    tensors = {
        "layer.weight_packed": packed_words(codes, bits, has_gaps=has_gaps),
        "layer.weight_shape": np.array([ROWS, COLUMNS]),
        "layer.weight_scale": scales,
    }
    if has_zeros:
        tensors["layer.weight_zero_point"] = packed_words(zeros.T, bits, has_gaps=has_gaps).T
    wanted = dequantised(codes, zeros if has_zeros else 1 << (bits - 1), scales)
    found, format = read_layer(opened(tmp_path, described(num_bits=bits), tensors))
    suffix = {1: "_channel", 2: "_g128", 8: ""}[groups]
    assert format == f"int{4 if bits <= 4 else 8}{'_zp' if has_zeros else ''}{suffix}"
    np.testing.assert_array_equal(found, wanted)


def test_scales_in_bfloat16_are_exact(tmp_path: Path) -> None:
    codes, _, scales = random_codes(4, 2, ml_dtypes.bfloat16)
    tensors = {
        "layer.weight_packed": packed_words(codes, 4),
        "layer.weight_shape": np.array([ROWS, COLUMNS]),
        "layer.weight_scale": scales,
    }
    found, _ = read_layer(opened(tmp_path, described(), tensors))
    np.testing.assert_array_equal(found, dequantised(codes, 8, scales))


def test_scales_in_float32_are_rounded_in_a_weight_format_only(tmp_path: Path) -> None:
    codes, zeros, scales = random_codes(4, 2, np.float32)
    tensors = {
        "layer.weight_packed": packed_words(codes, 4),
        "layer.weight_shape": np.array([ROWS, COLUMNS]),
        "layer.weight_scale": scales,
        "layer.weight_zero_point": packed_words(zeros.T, 4).T,
    }
    view, wanted = opened(tmp_path, described(), tensors), dequantised(codes, zeros, scales)
    check_values(view, wanted)
    np.testing.assert_allclose(read_layer(view)[0], wanted, rtol=2.0**-11)


def test_columns_in_another_order_are_requantised_and_this_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    codes, zeros, scales = random_codes(4, 4)
    order = np.random.default_rng(0).permutation(np.arange(COLUMNS) // 64)
    tensors = {
        "layer.weight_packed": packed_words(codes, 4),
        "layer.weight_shape": np.array([ROWS, COLUMNS]),
        "layer.weight_scale": scales,
        "layer.weight_zero_point": packed_words(zeros.T, 4).T,
        "layer.weight_g_idx": order.astype(np.int32),
    }
    with caplog.at_level(logging.WARNING, "aethermind"):
        view = opened(tmp_path, described(actorder="group"), tensors)
        found, format = read_layer(view)
    assert format == "int8"
    assert "1 of its 1 quantised matrices have groups in an order" in caplog.text
    wanted = scales.astype(np.float64)[:, order] * (codes - zeros[:, order])
    within_int8(found, wanted)
    check_values(view, wanted)


@pytest.mark.parametrize("order", [np.full(COLUMNS, -1), np.arange(COLUMNS) // 64])
def test_an_order_that_changes_nothing_is_exact(tmp_path: Path, order: Array) -> None:
    codes, _, scales = random_codes(4, 4)
    tensors = {
        "layer.weight_packed": packed_words(codes, 4),
        "layer.weight_shape": np.array([ROWS, COLUMNS]),
        "layer.weight_scale": scales,
        "layer.weight_g_idx": order.astype(np.int32),
    }
    found, _ = read_layer(opened(tmp_path, described(), tensors))
    np.testing.assert_array_equal(found, dequantised(codes, 8, scales))


@pytest.mark.parametrize(("bits", "groups"), [(8, 1), (8, 2), (4, 1), (4, 2)])
@pytest.mark.parametrize("has_zeros", [False, True])
def test_whole_integers(tmp_path: Path, bits: int, groups: int, has_zeros: bool) -> None:
    codes, zeros, scales = random_codes(bits, groups)
    middle = 1 << (bits - 1)
    tensors = {
        "layer.weight": (codes - middle).astype(np.int8),
        "layer.weight_scale": scales,
        "layer.input_scale": np.ones(1, np.float32),
        "layer.input_zero_point": np.zeros(1, np.int8),
        "layer.k_scale": np.ones(1, np.float32),
        "norm.weight": np.ones(COLUMNS, np.float16),
    }
    if has_zeros:
        tensors["layer.weight_zero_point"] = (zeros - middle).astype(np.int8)
    view = opened(tmp_path, described("int-quantized", num_bits=bits), tensors)
    assert view.names == ("norm.weight", "layer.weight")
    found, format = read_layer(view)
    assert format.startswith(f"int{bits}")
    np.testing.assert_array_equal(found, dequantised(codes, zeros if has_zeros else middle, scales))


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (ROWS,)])
def test_scales_of_tensors_and_channels(tmp_path: Path, shape: tuple[int, ...]) -> None:
    codes, *_ = random_codes(8, 1)
    scales = np.random.default_rng(1).uniform(0.5, 1, shape).astype(np.float16)
    tensors = {"layer.weight": (codes - 128).astype(np.int8), "layer.weight_scale": np.array(scales)}
    found, format = read_layer(opened(tmp_path, described("int-quantized", num_bits=8), tensors))
    assert format == "int8_channel"
    np.testing.assert_array_equal(found, (codes - 128) * scales.astype(np.float64).reshape(-1, 1))


def pairs(codes: Array) -> Array:
    return (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)


@pytest.mark.parametrize("is_modelopt", [False, True])
def test_nvfp4_is_requantised(tmp_path: Path, is_modelopt: bool, caplog: pytest.LogCaptureFixture) -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 16, (ROWS, COLUMNS))
    scales = (rng.uniform(0.1, 1, (ROWS, COLUMNS // 16)) * 100).astype(ml_dtypes.float8_e4m3fn)
    factor = np.float32(0.0007)
    values = np.array(E2M1)[codes] * scales.astype(np.float64).repeat(16, axis=1)
    if is_modelopt:
        config = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
        tensors = {"layer.weight": pairs(codes), "layer.weight_scale_2": np.array(factor)}
        wanted = values * factor
    else:
        config = described("nvfp4-pack-quantized", type="float", group_size=16, strategy="tensor_group")
        tensors = {"layer.weight_packed": pairs(codes), "layer.weight_global_scale": np.array([1 / factor])}
        wanted = values / np.float32(1 / factor)
    tensors |= {"layer.weight_scale": scales, "layer.input_global_scale": np.ones(1, np.float32)}
    with caplog.at_level(logging.WARNING, "aethermind"):
        view = opened(tmp_path, config, tensors)
        found, format = read_layer(view)
    assert format == "int8"
    assert "are NVFP4, with a scale for each 16 values" in caplog.text
    within_int8(found, wanted)
    check_values(view, wanted)


def test_mxfp4_is_exact(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 16, (ROWS, COLUMNS))
    scales = rng.integers(100, 130, (ROWS, COLUMNS // 32)).astype(np.uint8)
    config = described("mxfp4-pack-quantized", type="float", group_size=32, strategy="group")
    tensors = {"layer.weight_packed": pairs(codes), "layer.weight_scale": scales}
    found, format = read_layer(opened(tmp_path, config, tensors))
    assert format == "mxfp4"
    np.testing.assert_array_equal(found, np.array(E2M1)[codes] * 2.0 ** (scales.repeat(32, axis=1) - 127.0))


@pytest.mark.parametrize("kind", ["mxfp8", "group", "block"])
def test_fp8_in_blocks_is_exact(tmp_path: Path, kind: str) -> None:
    rng = np.random.default_rng(0)
    codes = (rng.standard_normal((ROWS, COLUMNS)) * 60).astype(ml_dtypes.float8_e4m3fn)
    exponents = rng.integers(100, 130, (ROWS, COLUMNS // 32)).astype(np.uint8)
    scales, of_rows, weights = {
        "mxfp8": (exponents, 2.0 ** (exponents.repeat(32, axis=1) - 127.0), {"strategy": "group", "group_size": 32}),
        "group": (
            s := rng.uniform(0, 1, (ROWS, 2)).astype(np.float32),
            s.repeat(128, 1),
            {"strategy": "group", "group_size": 128},
        ),
        "block": (
            b := rng.uniform(0, 1, (2, 4)).astype(np.float32),
            b.repeat(32, 0)[:ROWS].repeat(64, 1),
            {"strategy": "block", "block_structure": [32, 64]},
        ),
    }[kind]
    config = described("float-quantized", type="float", num_bits=8, **weights)
    found, format = read_layer(opened(tmp_path, config, {"layer.weight": codes, "layer.weight_scale": scales}))
    assert format == f"fp8_g{ {'mxfp8': 32, 'group': 128, 'block': 64}[kind] }"
    np.testing.assert_array_equal(found, codes.astype(np.float32) * of_rows.astype(np.float32))


def test_a_model_in_several_formats(tmp_path: Path) -> None:
    codes, _, scales = random_codes(4, 2)
    eight, _, of_rows = random_codes(8, 1)
    floats = (np.random.default_rng(0).standard_normal((ROWS, COLUMNS)) * 60).astype(ml_dtypes.float8_e4m3fn)
    config = {
        "quant_method": "compressed-tensors",
        "format": "mixed-precision",
        "config_groups": {
            "group_0": {"weights": {"num_bits": 4, "type": "int"}, "format": "pack-quantized"},
            "group_1": {"weights": {"num_bits": 8, "type": "int"}, "format": "int-quantized"},
            "group_2": {"weights": {"num_bits": 8, "type": "float"}, "format": "float-quantized"},
        },
    }
    tensors = {
        "a.weight_packed": packed_words(codes, 4),
        "a.weight_shape": np.array([ROWS, COLUMNS]),
        "a.weight_scale": scales,
        "b.weight": (eight - 128).astype(np.int8),
        "b.weight_scale": of_rows,
        "c.weight_packed": packed_words(eight, 8),
        "c.weight_shape": np.array([ROWS, COLUMNS]),
        "c.weight_scale": of_rows,
        "d.weight": floats,
        "d.weight_scale": np.ones((ROWS, 1), np.float32),
    }
    view = opened(tmp_path, config, tensors)
    assert set(view.names) == {f"{name}.weight" for name in "abcd"}
    np.testing.assert_array_equal(read_layer(view, "a.weight")[0], dequantised(codes, 8, scales))
    for name in ("b.weight", "c.weight"):
        np.testing.assert_array_equal(read_layer(view, name)[0], dequantised(eight, 128, of_rows))
    assert read_layer(view, "d.weight")[1] == "fp8"


PACKED = {
    "layer.weight_packed": np.zeros((ROWS, COLUMNS // 8), np.int32),
    "layer.weight_shape": np.array([ROWS, COLUMNS]),
    "layer.weight_scale": np.ones((ROWS, 2), np.float16),
}


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"layer.weight_shape": np.array([ROWS, 2**40])}, "does not belong to it"),
        ({"layer.weight_shape": np.array([ROWS + 1, COLUMNS])}, "does not belong to it"),
        ({"layer.weight_shape": np.array([ROWS, -1])}, "does not belong to it"),
        ({"layer.weight_shape": np.array([ROWS, 5])}, "words for 5 codes of 1 to 8 bits are expected"),
        ({"layer.weight_packed": np.zeros((ROWS, 32), np.int64)}, "layer.weight_packed of I64"),
        ({"layer.weight_scale": np.ones((ROWS, 3), np.float16)}, r"layer.weight_scale of F16 \[40, 3\]"),
        ({"layer.weight_scale": np.ones((2, ROWS), np.float16)}, r"layer.weight_scale of F16 \[2, 40\]"),
        ({"layer.weight_scale": np.ones((ROWS, 2), np.int32)}, "layer.weight_scale of I32"),
        ({"layer.weight_g_idx": np.zeros(3, np.int32)}, "a group for each of 256 columns"),
        ({"layer.weight_g_idx": np.arange(COLUMNS, dtype=np.int32)}, "beyond its 2 groups"),
        ({"layer.weight_zero_point": np.zeros((3, 2), np.int32)}, "zero points of 40 rows and 2 groups"),
        ({"layer.weight_scale": np.full((ROWS, 2), np.inf, np.float16)}, "not finite in float16"),
    ],
)
def test_parts_that_do_not_fit_are_refused(tmp_path: Path, changed: dict[str, Array], says: str) -> None:
    with pytest.raises(CheckpointError, match=says) as caught:
        opened(tmp_path, described(), {**PACKED, **changed}).array("layer.weight")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ({"layer.weight_packed": np.zeros((4, 16), np.uint8)}, "with no scales: this is neither NVFP4 nor MXFP4"),
        (
            {"layer.weight_packed": np.zeros((4, 16), np.uint8), "layer.weight_scale": np.zeros((4, 3), np.uint8)},
            r"scales of U8 \[4, 3\]",
        ),
        ({"layer.weight": np.full((4, 32), 9, np.int8), "layer.weight_scale": np.ones(4, np.float16)}, "beyond 4 bits"),
        ({"layer.weight": np.ones((4, 32), np.int8)}, "without weight_scale"),
        ({"layer.weight": np.ones((4, 32), np.float16)}, "has no quantised matrix"),
    ],
)
def test_other_tensors_are_refused(tmp_path: Path, tensors: dict[str, Array], says: str) -> None:
    with pytest.raises(CheckpointError, match=says):
        opened(tmp_path, described(), tensors).array("layer.weight")


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"format": "marlin-24"}, "stores sparse weights packed for one kernel"),
        ({"sparsity_config": {"format": "marlin-24"}}, "Take the model in the format sparse-24-bitmask"),
        ({"transform_config": {"config_groups": {"R1": {}}}}, "rotates activations"),
        ({"config_groups": {"group_0": {"weights": {"type": "int", "num_bits": 16}}}}, "weights of 16 bits"),
    ],
)
def test_what_cannot_be_computed_is_refused(tmp_path: Path, changed: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        opened(tmp_path, {**described(), **changed}, PACKED)
    assert opened(tmp_path, {**described(), "sparsity_config": {"format": "dense"}, "transform_config": {}}, PACKED)


def test_another_algorithm_of_modelopt_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="by ModelOpt to 'W4A16_AWQ'"):
        opened(tmp_path, {"quant_method": "modelopt", "quant_algo": "W4A16_AWQ"}, PACKED)
    with pytest.raises(CheckpointError, match="by ModelOpt, and has no quantised matrix"):
        opened(tmp_path, {"quant_method": "modelopt", "quant_algo": "FP8"}, {"a.weight": np.ones((2, 2), np.float16)})
