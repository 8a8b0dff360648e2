"""Experts that a checkpoint stores one by one, fused or quantised are one matrix per projection."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.core.checkpoint.packed_layers import random_layer

from aethermind.checkpoint import (
    Checkpoint,
    FusedSlice,
    HeadSlice,
    StackedTensors,
    TensorInfo,
    TensorStack,
    expert_stacks,
)
from aethermind.checkpoint.gptq_awq import PackedCheckpoint, read_packing
from aethermind.checkpoint.quantized_tensors import dequantized
from aethermind.errors import CheckpointError
from aethermind.ops.weight_format import QuantizedWeight, parse_format

MODULE = "model.layers.0.mlp.experts"
RNG = np.random.default_rng(3)
GATE, UP = RNG.standard_normal((2, 3, 5, 4)).astype(np.float32)  # [E, I, D]
DOWN = RNG.standard_normal((3, 4, 5)).astype(np.float32)  # [E, D, I]
STACKS = {
    f"{MODULE}.gate_proj.weight": GATE.reshape(15, 4),
    f"{MODULE}.up_proj.weight": UP.reshape(15, 4),
    f"{MODULE}.down_proj.weight": DOWN.reshape(12, 5),
}


def stored(folder: Path, tensors: dict[str, np.ndarray]) -> Checkpoint:
    save_file({name: np.ascontiguousarray(array) for name, array in tensors.items()}, folder / "model.safetensors")
    return Checkpoint.open(folder)


def one_by_one(names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"), module: str = MODULE):
    return {
        f"{module}.{expert}.{name}.weight": stack[expert]
        for name, stack in zip(names, (GATE, UP, DOWN), strict=True)
        for expert in range(3)
    }


def assert_are_stacks(checkpoint: Checkpoint, stacks: dict, others: tuple[str, ...] = ()) -> None:
    tensors = StackedTensors(checkpoint, stacks)
    assert set(tensors.names) == {*STACKS, *others}
    for name, values in STACKS.items():
        info = tensors.info(name)
        assert (info.shape, info.dtype, info.num_bytes) == (values.shape, values.dtype, values.nbytes)
        np.testing.assert_array_equal(tensors.array(name), values)
    assert tensors.paths == checkpoint.paths
    assert tensors.total_bytes == checkpoint.total_bytes


def test_experts_that_are_stored_one_by_one_are_stacked(tmp_path: Path) -> None:
    checkpoint = stored(tmp_path, {**one_by_one(), "router": GATE[0]})
    assert_are_stacks(checkpoint, expert_stacks(checkpoint, {MODULE: MODULE}, 3), ("router",))


def test_modules_and_projections_may_have_other_names(tmp_path: Path) -> None:
    checkpoint = stored(tmp_path, one_by_one(("w1", "w3", "w2"), "moe.experts"))
    names = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
    assert_are_stacks(checkpoint, expert_stacks(checkpoint, {MODULE: "moe.experts"}, 3, names))


def test_fused_projections_are_cut_apart(tmp_path: Path) -> None:
    fused = {f"{MODULE}.gate_up_proj": np.concatenate([GATE, UP], axis=1), f"{MODULE}.down_proj": DOWN}
    checkpoint = stored(tmp_path, fused)
    assert_are_stacks(checkpoint, expert_stacks(checkpoint, {MODULE: MODULE}, 3))


def test_fused_projections_may_be_transposed_and_interleaved(tmp_path: Path) -> None:
    interleaved = np.stack([GATE, UP], axis=2).reshape(3, 10, 4)
    checkpoint = stored(tmp_path, {"gate_up": interleaved.swapaxes(1, 2), "down": DOWN.swapaxes(1, 2)})
    stacks = {
        f"{MODULE}.gate_proj.weight": FusedSlice("gate_up", 0, None, 2, is_transposed=True),
        f"{MODULE}.up_proj.weight": FusedSlice("gate_up", 1, None, 2, is_transposed=True),
        f"{MODULE}.down_proj.weight": FusedSlice("down", is_transposed=True),
    }
    assert_are_stacks(checkpoint, stacks)


def test_a_fused_bias_is_a_vector(tmp_path: Path) -> None:
    bias = np.arange(12, dtype=np.float32).reshape(3, 4)
    tensors = StackedTensors(stored(tmp_path, {"bias": bias}), {"up": FusedSlice("bias", 1, None, 2)})
    assert tensors.info("up").shape == (6,)
    np.testing.assert_array_equal(tensors.array("up"), [1, 3, 5, 7, 9, 11])


def test_stacks_that_are_stored_as_such_remain(tmp_path: Path) -> None:
    checkpoint = stored(tmp_path, STACKS)
    assert expert_stacks(checkpoint, {MODULE: MODULE}, 3) == {}


def test_the_first_missing_expert_is_named(tmp_path: Path) -> None:
    tensors = one_by_one()
    del tensors[f"{MODULE}.1.up_proj.weight"], tensors[f"{MODULE}.2.up_proj.weight"]
    checkpoint = stored(tmp_path, tensors)
    with pytest.raises(
        CheckpointError, match=r"no tensor '.*experts\.1\.up_proj\.weight', but others of the 3 experts"
    ):
        expert_stacks(checkpoint, {MODULE: MODULE}, 3)


@pytest.mark.parametrize("other", [np.zeros((5, 3), np.float32), np.zeros((5, 4), np.float16)], ids=["shape", "dtype"])
def test_experts_of_a_layer_are_alike(tmp_path: Path, other: np.ndarray) -> None:
    checkpoint = stored(tmp_path, {"a": GATE[0], "b": GATE[1], "c": other})
    with pytest.raises(CheckpointError, match=r"^c is F\d+ \[5, \d\], where a is F32 \[5, 4\]"):
        StackedTensors(checkpoint, {"stack": TensorStack(("a", "b", "c"))}).info("stack")


def test_unknown_names_are_errors(tmp_path: Path) -> None:
    tensors = StackedTensors(stored(tmp_path, {"a": GATE[0], "b": GATE[1]}), {"stack": TensorStack(("a", "b"))})
    for name in ("a", "c"):
        with pytest.raises(CheckpointError, match=f"no tensor '{name}'"):
            tensors.array(name)
        with pytest.raises(CheckpointError, match=f"no tensor '{name}'"):
            tensors.info(name)


def packed(folder: Path, **options: bool) -> tuple[StackedTensors, np.ndarray]:
    """Three GPTQ experts in groups of 64; `e1` and the like are options of single experts."""
    layers = [random_layer(32, 128, seed=seed, is_symmetric=options.get(f"e{seed}", False)) for seed in range(3)]
    save_file(
        {f"e.{number}.w.{end}": part for number, layer in enumerate(layers) for end, part in layer.tensors.items()},
        folder / "model.safetensors",
    )
    described = {"quant_method": "gptq", "bits": 4, "group_size": 64}
    (folder / "config.json").write_text(json.dumps({"quantization_config": described}))
    checkpoint = PackedCheckpoint(Checkpoint.open(folder), read_packing(described, "model"), "model")
    stack = TensorStack(tuple(f"e.{number}.w.weight" for number in range(3)))
    return StackedTensors(checkpoint, {"stack": stack}), np.concatenate([layer.values for layer in layers])


def test_quantised_experts_are_stacked_in_their_format(tmp_path: Path) -> None:
    tensors, values = packed(tmp_path)
    stack, info = tensors.array("stack"), tensors.info("stack")
    assert isinstance(stack, QuantizedWeight)
    assert info.weight_format == stack.format
    assert (stack.format.name, info.shape, stack.shape) == ("int4_zp_g64", (96, 128), (96, 128))
    np.testing.assert_allclose(stack.format.dequantize(stack, "float64"), values, rtol=1e-6)


def test_experts_in_several_formats_are_dense(tmp_path: Path) -> None:
    tensors, values = packed(tmp_path, e1=True)
    stack, info = tensors.array("stack"), tensors.info("stack")
    assert isinstance(stack, np.ndarray)
    assert (info.weight_format, info.shape, info.dtype, stack.dtype) == (None, (96, 128), np.float16, np.float16)
    np.testing.assert_allclose(stack, values, rtol=2e-3)


@pytest.mark.parametrize("options", [{}, {"e1": True}])
def test_values_of_quantised_experts_are_rounded_once(tmp_path: Path, options: dict[str, bool]) -> None:
    tensors, values = packed(tmp_path, **options)
    stack = StackedTensors(dequantized(tensors.stored, np.float32), {"stack": tensors._stacks["stack"]})
    np.testing.assert_array_equal(stack.array("stack"), values.astype(np.float32))


HEADS = RNG.standard_normal((3 * 5, 64)).astype(np.float32)  # three heads of five rows


def heads_of(stored: Any) -> StackedTensors:
    parts = {"k": HeadSlice("b", 3, end=2, is_transposed=True), "v": HeadSlice("b", 3, begin=2)}
    return StackedTensors(stored, {**parts, "absent": HeadSlice("c", 3)})


def test_matrices_of_heads_are_taken_apart(tmp_path: Path) -> None:
    tensors = heads_of(stored(tmp_path, {"b": HEADS, "other": DOWN}))
    by_head = HEADS.reshape(3, 5, 64)
    wanted = {"k": by_head[:, :2].transpose(0, 2, 1).reshape(3 * 64, 2), "v": by_head[:, 2:].reshape(9, 64)}
    assert set(tensors.names) == {"k", "v", "other"}
    for name, values in wanted.items():
        info = tensors.info(name)
        assert (info.shape, info.dtype, info.num_bytes) == (values.shape, values.dtype, values.nbytes)
        np.testing.assert_array_equal(tensors.array(name), values)
    with pytest.raises(CheckpointError, match=r"b \[15, 64\] is not a matrix for each of 4 heads"):
        StackedTensors(stored(tmp_path, {"b": HEADS}), {"k": HeadSlice("b", 4)}).info("k")


def test_quantised_matrices_of_heads_stay_so_unless_they_are_transposed() -> None:
    format = parse_format("int8")
    assert format is not None
    weight = format.quantize(HEADS)

    class Quantised:
        names, paths, total_bytes, zero_bias_names = ("b",), (), weight.codes.nbytes, ()

        def info(self, name: str) -> TensorInfo:
            return TensorInfo("int8", weight.shape, 0, 15 * 68, format)

        def array(self, name: str) -> QuantizedWeight:
            return weight

    tensors = heads_of(Quantised())
    assert (tensors.info("v").weight_format, tensors.info("v").num_bytes) == (format, 9 * 68)
    values, transposed = tensors.array("v"), tensors.array("k")
    assert isinstance(values, QuantizedWeight)
    np.testing.assert_array_equal(values.codes, weight.codes.reshape(3, 5, 64)[:, 2:].reshape(9, 64))
    exact = format.dequantize(weight, "float16").reshape(3, 5, 64)[:, :2].transpose(0, 2, 1).reshape(192, 2)
    np.testing.assert_array_equal(transposed, exact)
    info = tensors.info("k")
    assert (info.dtype, info.shape, info.num_bytes) == (transposed.dtype, exact.shape, exact.nbytes)


def test_tensors_of_further_layers_are_left_out(tmp_path: Path) -> None:
    names = [f"model.layers.{layer}.a" for layer in (0, 9, 10)]
    tensors = StackedTensors(stored(tmp_path, {**dict.fromkeys(names, DOWN), "b": DOWN}), {}, num_layers=10)
    assert set(tensors.names) == {*names[:2], "b"}
