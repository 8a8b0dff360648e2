"""GPTQ and AWQ layers against a dequantisation in float64, and every way in which they can be invalid."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from tests.core.checkpoint.packed_layers import Layer, random_layer
from tests.core.checkpoint.quantised_files import check_values, read_layer, within_int8
from tests.core.checkpoint.quantised_files import opened as open_files

from aethermind.checkpoint.gptq_awq import PackedCheckpoint, read_packing
from aethermind.checkpoint.sharded_index import Checkpoint
from aethermind.errors import AetherMindError, CheckpointError, ConfigError
from aethermind.ops.weight_format import QuantizedWeight

ROWS, COLUMNS = 48, 256
ROWS_OF_3_BITS = 64  # zero points of 32 rows fill whole words


def opened(directory: Path, described: dict[str, Any], *layers: Layer, **more: Any) -> PackedCheckpoint:
    tensors = {f"m{i}.{end}": tensor for i, layer in enumerate(layers) for end, tensor in layer.tensors.items()}
    safetensors.numpy.save_file({**tensors, **more}, directory / "model.safetensors")
    return PackedCheckpoint(Checkpoint.open(directory), read_packing(described, str(directory)), str(directory))


def gptq(**options: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": False, "sym": True, **options}


def awq(**options: Any) -> dict[str, Any]:
    return {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm", **options}


@pytest.mark.parametrize("group_size", [32, 64, 128, -1])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("is_symmetric", [True, False])
@pytest.mark.parametrize("layout", ["gptq", "gptq_v2"])
def test_gptq(tmp_path: Path, bits: int, group_size: int, is_symmetric: bool, layout: str) -> None:
    rows = ROWS_OF_3_BITS if bits == 3 else ROWS
    layer = random_layer(rows, COLUMNS, bits=bits, group_size=group_size, is_symmetric=is_symmetric,
                         zero_shift=layout == "gptq")  # fmt: skip
    described = gptq(bits=bits, group_size=group_size, checkpoint_format=layout, sym=is_symmetric)
    checkpoint = opened(tmp_path, described, layer)
    weight, info = checkpoint.array("m0.weight"), checkpoint.info("m0.weight")
    assert isinstance(weight, QuantizedWeight)
    assert (info.shape, info.weight_format, info.kind) == ((rows, COLUMNS), weight.format, "gptq")
    shift = "" if is_symmetric else "_zp"
    suffix = {32: "", -1: "_channel"}.get(group_size, f"_g{group_size}")
    assert weight.format.name == f"int{max(bits, 4)}{shift}{suffix}"
    assert weight.format.has_zero_point is not is_symmetric
    np.testing.assert_array_equal(weight.format.dequantize(weight), layer.values)


@pytest.mark.parametrize("group_size", [32, 128, -1])
@pytest.mark.parametrize("is_symmetric", [True, False])
def test_awq(tmp_path: Path, group_size: int, is_symmetric: bool) -> None:
    layer = random_layer(ROWS, COLUMNS, method="awq", group_size=group_size, is_symmetric=is_symmetric)
    checkpoint = opened(tmp_path, awq(group_size=group_size), layer)
    weight = checkpoint.array("m0.weight")
    assert isinstance(weight, QuantizedWeight)
    assert checkpoint.info("m0.weight").kind == "awq"
    assert weight.format.has_zero_point is not is_symmetric
    np.testing.assert_array_equal(weight.format.dequantize(weight), layer.values)


@pytest.mark.parametrize("version", ["gemv", "gemv_fast", "GEMV"])
@pytest.mark.parametrize("group_size", [32, 64, 128, -1])
@pytest.mark.parametrize("is_symmetric", [True, False])
def test_other_layouts_of_awq(tmp_path: Path, version: str, group_size: int, is_symmetric: bool) -> None:
    layer = random_layer(ROWS, COLUMNS, method=version.lower(), group_size=group_size, is_symmetric=is_symmetric)
    checkpoint = opened(tmp_path, awq(group_size=group_size, version=version), layer)
    values, format = read_layer(checkpoint, "m0.weight")
    assert ("_zp" in format) is not is_symmetric
    np.testing.assert_array_equal(values, layer.values)


def auto_round(packing: str, **options: Any) -> dict[str, Any]:
    return {"quant_method": "auto-round", "bits": 4, "group_size": 64, "packing_format": packing, **options}


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize(
    ("packing", "zero_shift"), [("auto_round:auto_gptq", 1), ("auto_round", 0), ("auto_round:gptqmodel", 0)]
)
def test_auto_round_in_gptqs_layouts(tmp_path: Path, bits: int, packing: str, zero_shift: int) -> None:
    layer = random_layer(64, COLUMNS, bits=bits, zero_shift=zero_shift)
    del layer.tensors["g_idx"]
    values, format = read_layer(opened(tmp_path, auto_round(packing, bits=bits, sym=False), layer), "m0.weight")
    assert format == f"int{4 if bits <= 4 else 8}_zp_g64"
    np.testing.assert_array_equal(values, layer.values)


def test_auto_round_in_awqs_layout(tmp_path: Path) -> None:
    layer = random_layer(ROWS, COLUMNS, method="awq")
    described = {**auto_round("auto_round:auto_awq", sym=False), "quant_method": "intel/auto-round"}
    np.testing.assert_array_equal(read_layer(opened(tmp_path, described, layer), "m0.weight")[0], layer.values)


def test_auto_round_in_the_layout_of_compressed_tensors(tmp_path: Path) -> None:
    codes = np.random.default_rng(0).integers(0, 256, (8, 32)).astype(np.uint8)
    tensors = {"layer.weight_packed": codes, "layer.weight_scale": np.full((8, 2), 120, np.uint8)}
    view = open_files(tmp_path, auto_round("auto_round:llm_compressor", group_size=32, data_type="mx_fp"), tensors)
    assert read_layer(view)[1] == "mxfp4"


@pytest.mark.parametrize("described", [{"dynamic": {"+:.*m1": {"bits": 8}}}, {"extra_config": {"m1": {"bits": 8}}}])
def test_modules_may_differ_in_bits_and_groups(tmp_path: Path, described: Any) -> None:
    layers = (
        random_layer(ROWS, COLUMNS, zero_shift=0),
        random_layer(ROWS, COLUMNS, bits=8, group_size=32, zero_shift=0),
        random_layer(ROWS, COLUMNS, bits=2, group_size=-1, zero_shift=0),
        random_layer(64, COLUMNS, bits=3, group_size=128, zero_shift=0),
    )
    is_auto_round = "extra_config" in described
    config = auto_round("auto_round") if is_auto_round else gptq(checkpoint_format="gptq_v2")
    checkpoint = opened(tmp_path, {**config, **described, "sym": False}, *layers)
    formats = ("int4_zp_g64", "int8_zp", "int4_zp_channel", "int4_zp_g128")
    for i, (layer, format) in enumerate(zip(layers, formats, strict=True)):
        values, found = read_layer(checkpoint, f"m{i}.weight")
        assert found == format
        np.testing.assert_array_equal(values, layer.values)


def test_reordered_columns_are_requantised(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    groups = np.random.default_rng(1).permutation(np.arange(COLUMNS) // 64)
    layers = random_layer(ROWS, COLUMNS, groups=groups), random_layer(ROWS, COLUMNS, seed=1)
    with caplog.at_level(logging.WARNING, "aethermind"):
        checkpoint = opened(tmp_path, gptq(desc_act=True), *layers)
    assert "1 of its 2 quantised matrices have groups in an order" in caplog.text
    values, format = read_layer(checkpoint, "m0.weight")
    assert (format, read_layer(checkpoint, "m1.weight")[1]) == ("int8", "int4_zp_g64")
    within_int8(values, layers[0].values)
    for number, layer in enumerate(layers):
        check_values(checkpoint, layer.values, f"m{number}.weight")


def test_unsupported_group_sizes_are_requantised(tmp_path: Path) -> None:
    layer = random_layer(ROWS, COLUMNS, group_size=16)
    within_int8(read_layer(opened(tmp_path, gptq(group_size=16), layer), "m0.weight")[0], layer.values)


def test_plain_tensors_are_unchanged_and_zero_biases_are_neutral(tmp_path: Path) -> None:
    layers = random_layer(ROWS, COLUMNS), random_layer(ROWS, COLUMNS, seed=1)
    ones, zeros = np.ones(ROWS, np.float16), np.zeros(ROWS, np.float16)
    more = {"m0.bias": ones, "m1.bias": zeros, "norm.bias": zeros, "norm.weight": ones}
    checkpoint = opened(tmp_path, gptq(), *layers, **more)
    assert set(checkpoint.names) == {*more, "m0.weight", "m1.weight"}
    assert checkpoint.zero_bias_names == ("m1.bias",)
    assert np.array_equal(checkpoint.array("m0.bias"), ones)
    assert checkpoint.total_bytes == sum(checkpoint.info(name).num_bytes for name in checkpoint.names)
    assert checkpoint.paths == (tmp_path / "model.safetensors",)
    with pytest.raises(CheckpointError, match=r"no tensor 'm2\.weight'"):
        checkpoint.array("m2.weight")


def test_files_written_by_the_tools() -> None:
    auto_gptq = read_packing({"bits": 4, "group_size": 128, "desc_act": False, "sym": True}, "m")
    assert (auto_gptq.method, auto_gptq.zero_shift, auto_gptq.group_size) == ("gptq", 1, 128)
    auto_awq = read_packing({"w_bit": 4, "q_group_size": 128, "zero_point": True, "version": "GEMM"}, "m")
    assert (auto_awq.method, auto_awq.zero_shift, auto_awq.group_size) == ("awq", 0, 128)


def test_other_spellings() -> None:
    spelled = {"quant_method": "GPTQ", "bits": "4", "group_size": None}
    assert read_packing(gptq(**spelled), "m") == read_packing(gptq(group_size=-1), "m")
    for more in (
        {"format": "gptq_v2"},
        {"checkpoint_format": "GPTQ_V2"},
        {"checkpoint_format": None, "format": "gptq_v2"},
    ):
        assert read_packing(gptq(**more), "m").zero_shift == 0
    assert read_packing(gptq(dynamic=None), "m") == read_packing(gptq(), "m")
    assert read_packing(awq(version=None), "m") == read_packing(awq(), "m")


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("label", [{"checkpoint_format": "gptq"}, {}, {"checkpoint_format": "gptq_v2"}])
@pytest.mark.parametrize("zero_shift", [0, 1])
@pytest.mark.parametrize("sym", [{"sym": True}, {}])
def test_symmetric_zero_points_are_the_middle_for_every_label(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, bits: int, label: Any, zero_shift: int, sym: Any
) -> None:
    rows = ROWS_OF_3_BITS if bits == 3 else ROWS
    layer = random_layer(rows, COLUMNS, bits=bits, is_symmetric=True, zero_shift=zero_shift)
    described = {"quant_method": "gptq", "bits": bits, "group_size": 64, **label, **sym}
    with caplog.at_level(logging.WARNING, "aethermind"):
        weight = opened(tmp_path, described, layer).array("m0.weight")
    assert isinstance(weight, QuantizedWeight)
    np.testing.assert_array_equal(weight.format.dequantize(weight), layer.values)
    is_told = (label.get("checkpoint_format") == "gptq_v2") == (zero_shift == 0)
    assert ("1 of its 1 packed matrices are not stored as checkpoint_format says" in caplog.text) is not is_told


@pytest.mark.parametrize("zero_shift", [0, 1])
def test_asymmetric_zero_points_follow_the_label(tmp_path: Path, zero_shift: int) -> None:
    """Also where all of a matrix happen to be the middle, or one beside it."""
    layer = random_layer(ROWS, COLUMNS, is_symmetric=True, zero_shift=zero_shift)
    stored_as_v1 = opened(tmp_path, gptq(sym=False), layer).array("m0.weight")
    assert isinstance(stored_as_v1, QuantizedWeight)
    values = stored_as_v1.format.dequantize(stored_as_v1)
    assert np.array_equal(values, layer.values) is (zero_shift == 1)


def test_a_requantised_matrix_is_read_by_the_same_zero_points(tmp_path: Path) -> None:
    groups = np.random.default_rng(1).permutation(np.arange(COLUMNS) // 64)
    layer = random_layer(ROWS, COLUMNS, groups=groups, is_symmetric=True, zero_shift=0)
    within_int8(read_layer(opened(tmp_path, gptq(desc_act=True), layer), "m0.weight")[0], layer.values)


@pytest.mark.parametrize(
    ("described", "says"),
    [
        ([4], "should be an object, not list"),
        ({"quant_method": "vptq"}, "by 'vptq'.*as quantization, or take it quantised by gptq, awq, "),
        ({"load_in_8bit": False}, "in a way that its quantization_config does not name"),
        ({"quant_method": ["gptq"]}, "which cannot be read"),
        (gptq(bits=5), "to 5 bits; 2 or 3 or 4 or 8"),
        (gptq(bits=True), "to True bits"),
        (gptq(bits=None), "to None bits"),
        (gptq(bits=4.0), "to 4.0 bits"),
        (gptq(bits=[4]), r"to \[4\] bits"),
        (awq(bits=8), "to 8 bits; 4 bits"),
        (gptq(group_size=0), "group_size of 0"),
        (gptq(group_size="128"), "group_size of '128'"),
        (gptq(group_size=-2), "group_size of -2"),
        (awq(version="marlin"), "in the layout 'marlin'"),
        (auto_round("auto_round", bits=16), "to 16 bits"),
        (awq(backend="llm-awq"), "in the layout 'llm-awq'"),
    ],
)
def test_unsupported_quantization_configs_are_refused(described: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        read_packing(described, "here")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "described", "says"),
    [
        ({"m0.qweight": np.zeros((16, ROWS), np.int32)}, gptq(), r"m0\.qzeros of I32 \[4, 6\], where I32 \[2, 6\]"),
        ({"m0.qweight": np.zeros((32, 40), np.int32)}, gptq(), r"m0\.qzeros of I32 \[4, 6\], where I32 \[4, 5\]"),
        ({"m0.qweight": np.zeros((32, ROWS), np.int64)}, gptq(), r"m0\.qweight of I64"),
        ({"m0.qweight": np.zeros(32, np.int32)}, gptq(), "two dimensions"),
        ({"m0.scales": np.zeros((5, ROWS), np.float16)}, gptq(), r"m0\.scales of F16 \[5, 48\], where F16 \[4, 48\]"),
        ({"m0.scales": np.zeros((4, ROWS), np.int16)}, gptq(), r"m0\.scales of I16"),
        ({"m0.g_idx": np.zeros(255, np.int32)}, gptq(), r"m0\.g_idx of I32 \[255\]"),
        ({"m0.g_idx": np.full(COLUMNS, 4, np.int32)}, gptq(), "beyond its 4 groups"),
        ({"m0.g_idx": np.full(COLUMNS, -1, np.int32)}, gptq(), "beyond its 4 groups"),
        ({}, gptq(group_size=96), "groups of 96 do not divide"),
        ({}, gptq(group_size=2**40), "do not divide"),
        ({}, gptq(bits=8), r"m0\.qzeros|m0\.g_idx"),
        ({}, awq(), "m0 with 32 columns, which groups of 64"),
        ({"m0.qzeros": None}, gptq(), r"no tensor 'm0\.qzeros'"),
        ({"m0.weight": np.zeros((2, 2), np.float16)}, gptq(), "both packed and unquantised"),
        ({f"m0.{end}": None for end in ("qweight", "qzeros", "scales", "g_idx")}, gptq(), "has no tensor"),
    ],
)
def test_inconsistent_parts_are_refused(
    tmp_path: Path, changed: dict[str, Any], described: dict[str, Any], says: str
) -> None:
    layer = random_layer(ROWS, COLUMNS)
    tensors = {f"m0.{end}": tensor for end, tensor in layer.tensors.items()} | {"x": np.zeros(1, np.float16)} | changed
    kept = Layer({}, layer.values)
    with pytest.raises(AetherMindError, match=says) as caught:
        opened(tmp_path, described, kept, **{name: tensor for name, tensor in tensors.items() if tensor is not None})
    assert "\n" not in str(caught.value)


def test_non_finite_scales_are_refused(tmp_path: Path) -> None:
    layer = random_layer(ROWS, COLUMNS)
    layer.tensors["scales"][1, 1] = np.inf
    with pytest.raises(CheckpointError, match=r"m0\.scales that are not finite"):
        opened(tmp_path, gptq(), layer).array("m0.weight")
