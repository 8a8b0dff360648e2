"""A checkpoint in a model's layout has the same values and correct descriptions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from aethermind.checkpoint import AdaptedTensors, Checkpoint, TensorInfo, TensorSlice, interleaved_heads
from aethermind.checkpoint.remapped import pair_order
from aethermind.errors import CheckpointError
from aethermind.ops.weight_format import QuantizedWeight, parse_format

WHOLE = np.arange(24, dtype=np.float32).reshape(4, 6)
BIAS = np.arange(6, dtype=np.float16)


@pytest.fixture
def stored(tmp_path: Path) -> Checkpoint:
    save_file({"attn": WHOLE, "bias": BIAS, "other": BIAS}, tmp_path / "model.safetensors")
    return Checkpoint.open(tmp_path)


def adapted(stored: Checkpoint) -> AdaptedTensors:
    parts = {
        "q": TensorSlice("attn", True, 0, 2),
        "rest": TensorSlice("attn", True, 2),
        "rows": TensorSlice("attn", begin=1, end=3),
        "b": TensorSlice("bias", True),
        "missing": TensorSlice("nowhere"),
    }
    return AdaptedTensors(stored, parts)


def test_adapted_tensors_have_the_sliced_values_and_descriptions(stored: Checkpoint) -> None:
    tensors = adapted(stored)
    wanted = {"q": WHOLE.T[:2], "rest": WHOLE.T[2:], "rows": WHOLE[1:3], "b": BIAS, "other": BIAS}
    assert set(tensors.names) == set(wanted)
    for name, values in wanted.items():
        info = tensors.info(name)
        assert (info.shape, info.dtype, info.num_bytes) == (values.shape, values.dtype, values.nbytes)
        np.testing.assert_array_equal(tensors.array(name), values)
    assert tensors.total_bytes == sum(values.nbytes for values in wanted.values())
    assert tensors.paths == stored.paths


def test_slices_of_missing_tensors_are_left_out(stored: Checkpoint) -> None:
    with pytest.raises(CheckpointError, match="no tensor 'missing'"):
        adapted(stored).array("missing")


def test_a_row_is_added_to_every_row(stored: Checkpoint) -> None:
    tensors = AdaptedTensors(stored, {"sum": TensorSlice("attn", added="attn")})
    assert tensors.names == ("sum", "bias", "other")
    assert tensors.info("sum").shape == WHOLE.shape
    np.testing.assert_array_equal(tensors.array("sum"), WHOLE + WHOLE[0])


def test_rows_of_interleaved_heads_are_put_in_the_order_of_halves(stored: Checkpoint) -> None:
    assert pair_order(2, 6) == (0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11)
    assert pair_order(1, 6, rotary_dim=4) == (0, 2, 1, 3, 4, 5)
    tensors = AdaptedTensors(stored, {"q": TensorSlice("attn", is_transposed=True, order=pair_order(1, 6, 4))})
    np.testing.assert_array_equal(tensors.array("q"), WHOLE.T[[0, 2, 1, 3, 4, 5]])
    slices = interleaved_heads(["a.q_proj.weight", "a.v_proj.weight", "a.q_proj.bias"], {"q_proj": 2}, 4)
    assert set(slices) == {"a.q_proj.weight", "a.q_proj.bias"}


def test_slices_may_take_rows_apart_if_together_they_take_all(stored: Checkpoint) -> None:
    parts = {"even": TensorSlice("attn", order=(0, 2)), "odd": TensorSlice("attn", order=(1, 3))}
    tensors = AdaptedTensors(stored, parts)
    assert (tensors.info("odd").shape, tensors.info("odd").num_bytes) == ((2, 6), 48)
    np.testing.assert_array_equal(tensors.array("odd"), WHOLE[[1, 3]])
    fewer = AdaptedTensors(stored, {"even": TensorSlice("attn", order=(0, 2))})
    assert fewer.info("even").shape == WHOLE.shape, "so that the check of shapes reports it"
    with pytest.raises(CheckpointError, match="attn has 4 rows where the model needs 6"):
        AdaptedTensors(stored, {"more": TensorSlice("attn", order=(0, 5))}).info("more")


def test_the_weight_of_a_convolution_is_transposed_to_a_matrix(tmp_path: Path) -> None:
    weight = np.arange(12, dtype=np.float32).reshape(4, 1, 3)
    save_file({"conv": weight, "row": weight[:1, 0]}, tmp_path / "model.safetensors")
    parts = {"w": TensorSlice("conv", is_transposed=True), "column": TensorSlice("row", is_transposed=True)}
    tensors = AdaptedTensors(Checkpoint.open(tmp_path), parts)
    assert (tensors.info("w").shape, tensors.info("column").shape) == ((3, 4), (3, 1))
    np.testing.assert_array_equal(tensors.array("w"), weight[:, 0].T)
    np.testing.assert_array_equal(tensors.array("column"), weight[:1, 0].T)


def test_rows_of_quantised_tensors_are_sliced_and_ordered() -> None:
    format = parse_format("int8")
    assert format is not None
    weight = format.quantize(np.random.default_rng(0).normal(size=(6, 64)).astype(np.float32))

    class Quantised:
        names, paths, total_bytes, zero_bias_names = ("w",), (), weight.codes.nbytes, ()

        def info(self, name: str) -> TensorInfo:
            return TensorInfo("int8", weight.shape, 0, 600, format)

        def array(self, name: str) -> QuantizedWeight:
            return weight

    parts = {"half": TensorSlice("w", begin=2, end=6, order=(0, 2, 1, 3)), "rest": TensorSlice("w", end=2)}
    tensors = AdaptedTensors(Quantised(), parts)
    info, half = tensors.info("half"), tensors.array("half")
    assert (info.shape, info.num_bytes, info.weight_format) == ((4, 64), 400, format)
    assert isinstance(half, QuantizedWeight)
    np.testing.assert_array_equal(half.codes, weight.codes[[2, 4, 3, 5]])
    with pytest.raises(CheckpointError, match="stored quantised"):
        AdaptedTensors(Quantised(), {"t": TensorSlice("w", is_transposed=True)}).array("t")
