"""Codes of 4 bits in the order of tensor cores, packed value by value from the layout of an `mma.m16n8k16` operand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.core.checkpoint.quantised_files import check_values, opened, read_layer

from aethermind.errors import CheckpointError, ConfigError
from aethermind.model.source import DirectorySource

Array = np.ndarray[Any, Any]

RNG = np.random.default_rng(0)
MARLIN = {"quant_method": "gptq", "bits": 4, "group_size": 128, "checkpoint_format": "marlin", "sym": True}
TORCHAO = {"quant_method": "torchao", "quant_type": {"default": {}}}
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The place among the eight codes of a lane that is at each place of a word."""


def held(lane: int) -> list[tuple[int, int]]:
    """The rows k and the column n of a 16 x 8 operand that a lane holds, in the order of its registers."""
    return [(2 * (lane % 4) + row, lane // 4) for row in (0, 1, 8, 9)]


def word(codes: list[int]) -> int:
    return sum(int(codes[place]) << 4 * index for index, place in enumerate(ORDER))


def marlin(rows: int, columns: int, num_groups: int) -> tuple[dict[str, Array], Array]:
    """The tensors of a layer [N, K], and its values."""
    codes = RNG.integers(0, 16, (rows, columns))
    scales = (RNG.uniform(0.5, 1, (num_groups, rows)) * 0.01).astype(np.float16)
    words = []
    for first_k in range(0, columns, 16):
        for first_n in range(0, rows, 64):
            for lane in range(32):
                for tile in range(first_n, first_n + 64, 16):
                    both = [(k, tile + block + n) for block in (0, 8) for k, n in held(lane)]
                    words.append(word([codes[n, first_k + k] for k, n in both]))
    if num_groups > 1:
        order = [first + 8 * step for first in range(8) for step in range(8)]
    else:
        order = [2 * first + step for first in range(4) for step in (0, 1, 8, 9, 16, 17, 24, 25)]
    shuffled = scales.reshape(-1, len(order))[:, order].reshape(scales.shape)
    packed = np.array(words, np.uint32).view(np.int32).reshape(columns // 16, 2 * rows)
    of_columns = np.repeat(scales.astype(np.float64), columns // num_groups, axis=0).T
    tensors = {"layer.B": packed, "layer.s": shuffled, "layer.workspace": np.zeros(16, np.int32)}
    return tensors, (codes - 8) * of_columns


@pytest.mark.parametrize(("columns", "num_groups", "format"), [(256, 2, "int4_g128"), (128, 1, "int4_channel")])
@pytest.mark.parametrize("named", [{}, {"checkpoint_format": None, "is_marlin_format": True}])
def test_marlins_layout_is_exact(tmp_path: Path, columns: int, num_groups: int, format: str, named: Any) -> None:
    tensors, values = marlin(128, columns, num_groups)
    view = opened(tmp_path, {**MARLIN, **named}, {**tensors, "layer.bias": np.ones(128, np.float16)})
    assert set(view.names) == {"layer.bias", "layer.weight"}
    found, name = read_layer(view)
    assert name == format
    np.testing.assert_array_equal(found, values)


@pytest.mark.parametrize(
    ("changed", "described", "says"),
    [
        ({"layer.s": np.ones((2, 64), np.float16)}, {}, "which is not Marlin's layout"),
        ({"layer.s": np.ones((3, 128), np.float16)}, {}, "which is not Marlin's layout"),
        ({"layer.B": np.ones((16, 250), np.int32)}, {}, "which is not Marlin's layout"),
        ({"layer.s": np.full((2, 128), np.inf, np.float16)}, {}, "not finite"),
        ({}, {"bits": 8}, "4 bits can be read"),
    ],
)
def test_what_is_not_marlins_layout_is_refused(tmp_path: Path, changed: Any, described: Any, says: str) -> None:
    tensors = {"layer.B": np.ones((16, 256), np.int32), "layer.s": np.ones((2, 128), np.float16), **changed}
    with pytest.raises((CheckpointError, ConfigError), match=says) as caught:
        opened(tmp_path, {**MARLIN, **described}, tensors).array("layer.weight")
    assert "\n" not in str(caught.value)


def test_marlins_config_without_its_tensors_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no tensor \*\.B"):
        opened(tmp_path, MARLIN, {"a.weight": np.ones((2, 2), np.float16)})


def numbers(rows: int, columns: int, group_size: int) -> tuple[Array, Array, Array, Array]:
    """Codes from 0 [N, K], scales and zeros [N, groups], and the values, scale · (code − 8) + zero."""
    codes = RNG.integers(0, 16, (rows, columns))
    scales = (RNG.uniform(0.5, 1, (rows, columns // group_size)) * 0.01).astype(ml_dtypes.bfloat16)
    zeros = (RNG.standard_normal(scales.shape) * 0.01).astype(ml_dtypes.bfloat16)
    wide = (np.repeat(side.astype(np.float64), group_size, axis=1) for side in (scales, zeros))
    factors, offsets = wide
    return codes, scales, zeros, factors * (codes - 8) + offsets


def near(found: Array, wanted: Array) -> None:
    """Offsets are rounded to float16: of up to 0.15, so by 2⁻¹⁴ at most."""
    assert np.abs(found - wanted).max() <= 2.0**-14


@pytest.mark.parametrize(
    ("group_size", "format"), [(32, "int4_offset"), (64, "int4_offset_g64"), (128, "int4_offset_g64")]
)
def test_torchaos_plain_int4(tmp_path: Path, group_size: int, format: str) -> None:
    codes, scales, zeros, values = numbers(24, 256, group_size)
    signed = (codes - 8) & 15
    tensors = {
        "layer._weight_qdata": (signed[:, ::2] | signed[:, 1::2] << 4).astype(np.uint8).view(np.int8),
        "layer._weight_scale": scales.T,
        "layer._weight_zero_point": zeros.T,
    }
    view = opened(tmp_path, TORCHAO, {**tensors, "norm.weight": np.ones(3, np.float32)})
    assert set(view.names) == {"layer.weight", "norm.weight"}
    found, name = read_layer(view)
    assert name == format
    near(found, values)
    check_values(view, values)


@pytest.mark.parametrize("shape", [None, (13, 640)])
def test_torchaos_int4_in_tiles(tmp_path: Path, shape: tuple[int, int] | None) -> None:
    """Padded to 16 rows and 1024 columns."""
    codes, scales, zeros, values = numbers(16, 1024, 64)
    data = np.array(
        [
            [
                [
                    [
                        word([codes[tile + n, block + k + first] for first in (0, 16) for k, n in held(lane)])
                        for block in range(outer, outer + 128, 32)
                    ]
                    for lane in range(32)
                ]
                for outer in range(0, 1024, 128)
            ]
            for tile in range(0, 16, 8)
        ],
        np.uint32,
    )
    tensors = {
        "layer._weight_qdata": data.view(np.int32),
        "layer._weight_scale_and_zero": np.ascontiguousarray(np.stack([scales, zeros], -1).transpose(1, 0, 2)),
        "other._weight_qdata": RNG.integers(-9, 9, (4, 32)).astype(np.int8),
        "other._weight_scale": np.ones((4, 1), np.float32),
    }
    described = {"layer._weight": json.dumps({"_type": "Int4TilePackedTo4dTensor", "_data": {"shape": shape}})}
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt", **(described if shape else {})})
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": TORCHAO}))
    view = DirectorySource(tmp_path).weights()
    wanted = values if shape is None else values[: shape[0], : shape[1]]
    assert {name: view.info(name).shape for name in view.names} == {
        "layer.weight": wanted.shape,
        "other.weight": (4, 32),
    }
    near(read_layer(view)[0], wanted)
    check_values(view, wanted)


@pytest.mark.parametrize(
    "tensors",
    [
        {"_qdata": np.zeros((2, 2, 32, 2), np.int32), "_scale_and_zero": np.ones((4, 16, 2), np.float32)},
        {"_qdata": np.zeros((2, 2, 32, 4), np.int32), "_scale_and_zero": np.ones((4, 15, 2), np.float32)},
        {"_qdata": np.zeros((2, 2, 32, 4), np.int32), "_scale_and_zero": np.ones((16, 16, 2), np.float32)},
        {"_qdata": np.zeros((4, 64), np.int8), **dict.fromkeys(("_scale", "_zero_point"), np.ones((2, 3), np.float32))},
        {"_qdata": np.zeros((4, 64), np.int8), **dict.fromkeys(("_scale", "_zero_point"), np.ones((3, 4), np.float32))},
    ],
)  # fmt: skip
def test_what_is_no_int4_of_torchao_is_refused(tmp_path: Path, tensors: dict[str, Array]) -> None:
    with pytest.raises(CheckpointError, match="which is no matrix of 4 bits in groups of 32 columns or more"):
        opened(tmp_path, TORCHAO, {f"layer._weight{name}": tensor for name, tensor in tensors.items()})
