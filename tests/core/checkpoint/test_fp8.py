"""FP8 checkpoints are read as torch computes their values, and those that do not fit are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from aethermind.checkpoint import Checkpoint
from aethermind.checkpoint.float_formats import Fp8Checkpoint, read_block_size
from aethermind.errors import CheckpointError, ConfigError
from aethermind.model.source import DirectorySource
from aethermind.ops.weight_format import FP8, QuantizedWeight, fp8_in_blocks

torch.manual_seed(3)
CODES = (torch.randn(20, 48) * 60).clamp(-448, 448).to(torch.float8_e4m3fn)
NORM = torch.ones(48)
COMPRESSED = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "ignore": ["lm_head"],
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"type": "float", "num_bits": 8}}},
}
BLOCKS = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [16, 32]}


def opened(folder: Path, scales: dict[str, torch.Tensor], described: dict[str, Any]) -> DirectorySource:
    tensors = {"layer.weight": CODES, "norm.weight": NORM, "layer.input_scale": torch.tensor(0.5)}
    save_file(tensors | {f"layer.{name}": scale for name, scale in scales.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"quantization_config": described}))
    return DirectorySource(folder)


@pytest.mark.parametrize(
    ("scale", "described"),
    [
        (torch.rand(20, 1).to(torch.bfloat16), COMPRESSED),
        (torch.tensor(0.25), {"quant_method": "fp8", "activation_scheme": "static"}),
        (torch.rand(20), {"quant_method": "fbgemm_fp8"}),
    ],
    ids=["rows", "one", "vector"],
)
def test_scales_of_rows_and_of_matrices_are_exact(tmp_path: Path, scale: torch.Tensor, described: Any) -> None:
    source = opened(tmp_path, {"weight_scale": scale}, described)
    tensors = source.weights()
    weight = tensors.array("layer.weight")
    assert isinstance(weight, QuantizedWeight)
    assert source.weight_formats() == {"layer.weight": FP8}
    assert tensors.names == ("norm.weight", "layer.weight")
    of_rows = scale.float().reshape(-1, 1)
    np.testing.assert_array_equal(FP8.dequantize(weight), (CODES.float() * of_rows).numpy())
    assert tensors.info("layer.weight").num_bytes == CODES.numel() + scale.numel() * scale.element_size()


def test_blocks_are_exact(tmp_path: Path) -> None:
    scales = torch.rand(2, 2) + 0.1
    source = opened(tmp_path, {"weight_scale_inv": scales}, BLOCKS)
    weight = source.weights().array("layer.weight")
    assert isinstance(weight, QuantizedWeight)
    assert source.weight_formats() == {"layer.weight": fp8_in_blocks(32)}
    values = CODES.float() * scales.repeat_interleave(16, 0)[:20].repeat_interleave(32, 1)[:, :48]
    np.testing.assert_array_equal(weight.format.dequantize(weight), values.numpy())


def test_modelopt(tmp_path: Path) -> None:
    """The description may be a file of its own."""
    source = opened(tmp_path, {"weight_scale": torch.tensor(0.25)}, {"quant_method": "fp8"})
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "FP8"}}')
    weight = source.weights().array("layer.weight")
    assert isinstance(weight, QuantizedWeight)
    np.testing.assert_array_equal(FP8.dequantize(weight), CODES.float().numpy() * 0.25)


@pytest.mark.parametrize(
    ("scales", "described", "says"),
    [
        ({}, COMPRESSED, "float8_e4m3fn with no scales"),
        ({"weight_scale": torch.ones(3, 2)}, COMPRESSED, r"with scales of F32 \[3, 2\], which quantization_config"),
        ({"weight_scale_inv": torch.ones(2, 3)}, BLOCKS, r"with scales of F32 \[2, 3\]"),
        ({"weight_scale": torch.ones(20, dtype=torch.int32)}, COMPRESSED, "with scales of I32"),
        ({"weight_scale": torch.ones(1), "weight_scale_inv": torch.ones(1)}, BLOCKS, "expected. Fetch"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(tmp_path: Path, scales: Any, described: Any, says: str) -> None:
    with pytest.raises(CheckpointError, match=says):
        opened(tmp_path, scales, described).weights()


def test_values_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    tensors = opened(tmp_path, {"weight_scale": torch.full((20, 1), torch.inf)}, COMPRESSED).weights()
    with pytest.raises(CheckpointError, match=r"layer.weight with values that are not finite"):
        tensors.array("layer.weight")


def test_a_checkpoint_without_codes_is_refused(tmp_path: Path) -> None:
    save_file({"layer.weight": NORM}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="has no tensor of float8_e4m3fn"):
        Fp8Checkpoint(Checkpoint.open(tmp_path), None, "model")


@pytest.mark.parametrize(
    ("described", "says"),
    [
        ({"weight_block_size": [128]}, "has blocks of"),
        ({"weight_block_size": 128}, "has blocks of"),
        ({"weight_block_size": [[16], [32]]}, "has blocks of"),
    ],
)
def test_other_blocks_are_refused(described: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read_block_size(described, "model")
