"""Checkpoints of torchao in safetensors, whose tensors are those of other formats under other names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.core.checkpoint.quantised_files import opened, read_layer

from aethermind.errors import CheckpointError, ConfigError

ROWS, COLUMNS = 40, 256
CONFIG = {"quant_method": "torchao", "quant_type": {"default": {}}}
RNG = np.random.default_rng(0)
CODES = RNG.integers(-128, 128, (ROWS, COLUMNS)).astype(np.int8)
FLOATS = (RNG.standard_normal((ROWS, COLUMNS)) * 60).astype(ml_dtypes.float8_e4m3fn)

Array = np.ndarray[Any, Any]


def scales(*shape: int) -> Array:
    return (RNG.uniform(0.5, 1, shape) * 0.01).astype(ml_dtypes.bfloat16)


@pytest.mark.parametrize("shape", [(1, 1), (ROWS, 1), (ROWS, 4)])
@pytest.mark.parametrize("is_symmetric", [True, False])
def test_integers(tmp_path: Path, shape: tuple[int, int], is_symmetric: bool) -> None:
    factors = scales(*shape)
    zeros = np.zeros(shape, np.int8) if is_symmetric else RNG.integers(-9, 9, shape).astype(np.int8)
    tensors = {
        "layer._weight_qdata": CODES,
        "layer._weight_scale": factors,
        "layer._weight_zero_point": zeros,
        "layer._weight_act_quant_scale": np.ones(1, np.float32),
        "layer.bias": np.ones(ROWS, np.float32),
    }
    view = opened(tmp_path, CONFIG, tensors)
    assert set(view.names) == {"layer.bias", "layer.weight"}
    found, format = read_layer(view)
    assert format == f"int8{'' if is_symmetric else '_zp'}{'_g64' if shape[1] == 4 else '_channel'}"
    of_values = (np.broadcast_to(part, (ROWS, shape[1])).repeat(COLUMNS // shape[1], 1) for part in (factors, zeros))
    wide_factors, wide_zeros = (part.astype(np.float64) for part in of_values)
    np.testing.assert_array_equal(found, (CODES - wide_zeros) * wide_factors)


@pytest.mark.parametrize(("shape", "format"), [((1, 1), "fp8"), ((ROWS, 1), "fp8"), ((ROWS, 8), "fp8_g32")])
def test_fp8(tmp_path: Path, shape: tuple[int, int], format: str) -> None:
    factors = scales(*shape).astype(np.float32)
    tensors = {"layer._weight_qdata": FLOATS, "layer._weight_scale": factors}
    found, name = read_layer(opened(tmp_path, CONFIG, tensors))
    assert name == format
    wide = np.broadcast_to(factors, (ROWS, shape[1])).repeat(COLUMNS // shape[1], 1)
    np.testing.assert_array_equal(found, FLOATS.astype(np.float32) * wide)


def test_both(tmp_path: Path) -> None:
    tensors = {
        "a._weight_qdata": CODES,
        "a._weight_scale": scales(ROWS, 1),
        "b._weight_qdata": FLOATS,
        "b._weight_scale": scales(ROWS, 1),
    }
    view = opened(tmp_path, CONFIG, tensors)
    assert {name: view.info(name).kind for name in view.names} == {"a.weight": "int8", "b.weight": "fp8"}


@pytest.mark.parametrize(
    "tensors",
    [
        {"layer._weight_qdata": np.zeros((ROWS, 2, 8, 4), np.int32), "layer._weight_scale": scales(4, ROWS)},
        {"layer._weight_qdata": CODES[:, ::2], "layer._weight_scale": scales(4, ROWS)},
    ],
)
def test_what_is_packed_for_one_kernel_is_refused(tmp_path: Path, tensors: dict[str, Array]) -> None:
    with pytest.raises(ConfigError, match="packed for one of its kernels"):
        opened(tmp_path, CONFIG, tensors)


def test_a_scale_of_activations_is_refused(tmp_path: Path) -> None:
    tensors = {
        "layer._weight_qdata": CODES,
        "layer._weight_scale": scales(ROWS, 1),
        "layer._weight_act_pre_scale": np.ones(COLUMNS, np.float32),
    }
    with pytest.raises(ConfigError, match="a scale of its activations"):
        opened(tmp_path, CONFIG, tensors)


def test_a_checkpoint_without_codes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no tensor \*\._weight_qdata"):
        opened(tmp_path, CONFIG, {"a.weight": np.ones((2, 2), np.float16)})
