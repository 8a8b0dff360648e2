"""Sparse matrices of compressed-tensors against the dense ones that they are made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.core.checkpoint.quantised_files import opened, read_layer

from aethermind.errors import CheckpointError

Array = np.ndarray[Any, Any]

ROWS, COLUMNS = 24, 72
RNG = np.random.default_rng(0)


def two_of_four() -> Array:
    """A mask of two places in each four of a row."""
    ranks = RNG.random((ROWS, COLUMNS // 4, 4)).argsort(axis=-1)
    return (ranks < 2).reshape(ROWS, COLUMNS)


def compressed(dense: Array, mask: Array) -> dict[str, Array]:
    return {
        "layer.compressed": dense[mask].reshape(ROWS, COLUMNS // 2),
        "layer.bitmask": np.packbits(mask, axis=1, bitorder="little"),
        "layer.shape": np.array([[ROWS], [COLUMNS]]),
    }


def config(format: str = "sparse-24-bitmask", **groups: Any) -> dict[str, Any]:
    return {"quant_method": "compressed-tensors", "sparsity_config": {"format": format}, "config_groups": groups}


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_unquantised_matrices(tmp_path: Path, dtype: Any) -> None:
    mask = two_of_four()
    dense = np.where(mask, RNG.standard_normal(mask.shape), 0).astype(dtype)
    view = opened(tmp_path, config(), {**compressed(dense, mask), "norm.weight": np.ones(3, dtype)})
    assert set(view.names) == {"layer.weight", "norm.weight"}
    assert (view.info("layer.weight").shape, view.info("layer.weight").dtype) == (dense.shape, dense.dtype)
    np.testing.assert_array_equal(view.array("layer.weight"), dense)


def test_any_places_of_a_row(tmp_path: Path) -> None:
    mask = RNG.random((ROWS, COLUMNS)) < 0.3
    dense = np.where(mask, RNG.standard_normal(mask.shape), 0).astype(np.float32)
    tensors = {
        "layer.compressed": dense[mask],
        "layer.bitmask": np.packbits(mask, axis=1, bitorder="little"),
        "layer.shape": np.array([ROWS, COLUMNS]),
        "layer.row_offsets": np.zeros(ROWS, np.int64),
    }
    view = opened(tmp_path, config("sparse-bitmask"), tensors)
    assert view.names == ("layer.weight",)
    np.testing.assert_array_equal(view.array("layer.weight"), dense)


def test_codes_of_fp8_and_int8(tmp_path: Path) -> None:
    mask = two_of_four()
    scales = RNG.uniform(0.01, 0.1, (ROWS, 1)).astype(np.float32)
    for number, codes in enumerate((RNG.integers(-100, 100, mask.shape), RNG.standard_normal(mask.shape) * 50)):
        dtype = np.int8 if number == 0 else ml_dtypes.float8_e4m3fn
        dense = np.where(mask, codes, 0).astype(dtype)
        folder = tmp_path / str(number)
        folder.mkdir()
        weights = {"num_bits": 8, "type": "int" if number == 0 else "float", "strategy": "channel"}
        described = config(group_0={"weights": weights})
        view = opened(folder, described, {**compressed(dense, mask), "layer.weight_scale": scales})
        found, format = read_layer(view)
        assert format == ("int8_channel" if number == 0 else "fp8")
        np.testing.assert_allclose(found, dense.astype(np.float64) * scales, rtol=2.0**-10)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"layer.bitmask": np.zeros((ROWS, COLUMNS // 8), np.uint8)}, "of 0 values, of which 864 are stored"),
        ({"layer.bitmask": np.zeros((ROWS, 2), np.uint8)}, "do not belong together"),
        ({"layer.shape": np.array([ROWS])}, "do not belong together"),
        ({"layer.shape": np.array([2**40, 2**40])}, "do not belong together"),
    ],
)
def test_parts_that_do_not_fit_are_refused(tmp_path: Path, changed: dict[str, Array], says: str) -> None:
    mask = two_of_four()
    tensors = compressed(np.ones(mask.shape, np.float16), mask)
    with pytest.raises(CheckpointError, match=says) as caught:
        opened(tmp_path, config(), {**tensors, **changed}).array("layer.weight")
    assert "\n" not in str(caught.value)


def test_a_checkpoint_without_sparse_tensors_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no tensor \*\.compressed"):
        opened(tmp_path, config(), {"a.weight": np.ones((2, 2), np.float16)})
