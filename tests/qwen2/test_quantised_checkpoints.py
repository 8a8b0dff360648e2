"""Checkpoints that come quantised, against transformers with weights dequantised by others' code, or in float64.

K-quants are random blocks; their products of scales, and Q6_K's values, are rounded once more (see `gguf_blocks`).
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import safetensors.torch
import torch
from tests.core.checkpoint.packed_layers import random_layer
from tests.end_to_end.gguf_files import write_gguf
from tests.qwen2.checkpoints import qwen2, reference_model

from aethermind import LLM, Runtime
from aethermind.checkpoint.gguf_tensors import hf_name
from aethermind.engine.text_pass import text_logits
from aethermind.testing.families import ModelCase
from aethermind.testing.families.transformers_reference import outputs_of

CheckpointOf = Callable[[ModelCase], Path]

_SHAPE = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2}
UNTIED = qwen2("quantised", **_SHAPE, vocab_size=160)
TIED = qwen2("quantised_tied", **_SHAPE, vocab_size=160, tie_word_embeddings=True)
TEXT = np.random.default_rng(4).integers(0, 131, 24).tolist()

_MODULES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


def spread(*types: str, **others: str) -> dict[str, str]:
    """The types in turn over the modules of both layers, so that those of a fused operator differ."""
    turns = {f"blk.{i}.{name}.weight": types[(i + j) % len(types)] for i in range(2) for j, name in enumerate(_MODULES)}
    return turns | {f"{name}.weight": type for name, type in others.items()}


def dequantised_model(directory: Path, path: Path) -> Any:
    """Transformers' model with the values that the library finds in a file."""
    model = copy.deepcopy(reference_model(directory))
    weights = dict(model.named_parameters(remove_duplicate=False))
    for tensor in gguf.GGUFReader(path).tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        weights[hf_name(tensor.name)].data = torch.from_numpy(np.array(values, np.float64))
    return model


def distance(
    directory: Path,
    expected: np.ndarray[Any, Any],
    runtime: Runtime,
    device: str = "numpy",
    quantization: str | None = None,
) -> float:
    settings: Any = {"dtype": "float32", "max_num_seqs": 32, "fallback": "allow", "quantization": quantization}
    with LLM(directory, device=device, runtime=runtime, **settings) as llm:
        actual = text_logits(llm.engine, TEXT)
    return float((np.abs(actual - expected).max(axis=1) / np.abs(expected).max(axis=1)).max())


@pytest.mark.parametrize(
    ("family", "quantised", "tolerance"),
    [
        (UNTIED, spread("Q8_0"), 1e-5),
        (UNTIED, spread("Q4_0", output="Q8_0", token_embd="Q4_0"), 1e-5),
        (TIED, spread("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", token_embd="Q8_0"), 1e-5),
        (UNTIED, spread("Q4_K", "Q5_K", output="F16"), 5e-3),
        (TIED, spread("Q4_K", "Q6_K", "Q4_K", token_embd="Q6_K"), 3e-2),
    ],
    ids=["q8_0", "q4_0", "mixed", "k", "k_mixed"],
)
def test_gguf(
    runtime: Runtime,
    checkpoint: CheckpointOf,
    family: ModelCase,
    quantised: Mapping[str, str],
    tolerance: float,
    tmp_path: Path,
) -> None:
    directory = checkpoint(family)
    path = write_gguf(directory, tmp_path / "model.gguf", quantised=quantised)
    expected = outputs_of(dequantised_model(directory, path), TEXT)
    assert distance(path, expected, runtime) < tolerance
    assert distance(path, expected, runtime, quantization="dense") < 1e-5


def write_packed(directory: Path, to: Path, described: Mapping[str, Any], **options: Any) -> Any:
    """A checkpoint with random packed projections; returns transformers' model with their values."""
    shutil.copytree(directory, to)
    model = copy.deepcopy(reference_model(directory))
    tensors = safetensors.torch.load_file(to / "model.safetensors")
    for seed, (name, module) in enumerate(model.model.named_modules()):
        if isinstance(module, torch.nn.Linear):
            layer = random_layer(*module.weight.shape, seed=seed, **options)
            module.weight.data = torch.from_numpy(layer.values.copy())
            del tensors[f"model.{name}.weight"]
            tensors |= {f"model.{name}.{end}": torch.from_numpy(tensor) for end, tensor in layer.tensors.items()}
            if module.bias is None:  # as AutoGPTQ writes them
                tensors[f"model.{name}.bias"] = torch.zeros(len(module.weight), dtype=torch.float16)
    safetensors.torch.save_file(tensors, to / "model.safetensors")
    config = json.loads((to / "config.json").read_text())
    (to / "config.json").write_text(json.dumps({**config, "quantization_config": dict(described)}))
    return model


_GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 64}
_ORDER = np.random.default_rng(2).permutation(np.arange(256) // 64)


@pytest.mark.parametrize(
    ("described", "options", "formats", "tolerance"),
    [
        (_GPTQ, {"is_symmetric": True}, ("int4_g64",), 1e-5),
        (_GPTQ, {}, ("int4_zp_g64",), 1e-5),
        ({**_GPTQ, "bits": 8, "checkpoint_format": "gptq_v2"}, {"bits": 8, "zero_shift": 0}, ("int8_zp_g64",), 1e-5),
        ({**_GPTQ, "desc_act": True}, {"groups": _ORDER}, ("int8",), 6e-2),
        ({**_GPTQ, "quant_method": "awq", "version": "gemm"}, {"method": "awq"}, ("int4_zp_g64",), 1e-5),
    ],
    ids=["gptq_symmetric", "gptq", "gptq_v2_8_bits", "gptq_act_order", "awq"],
)
def test_packed(
    runtime: Runtime,
    checkpoint: CheckpointOf,
    described: Mapping[str, Any],
    options: Mapping[str, Any],
    formats: tuple[str, ...],
    tolerance: float,
    tmp_path: Path,
) -> None:
    directory = tmp_path / "model"
    expected = outputs_of(write_packed(checkpoint(UNTIED), directory, described, **options), TEXT)
    assert distance(directory, expected, runtime) < tolerance
    with LLM(directory, device="numpy", fallback="allow", runtime=runtime) as llm:
        assert llm.info.weight_formats == formats
    with LLM(directory, device="numpy", fallback="allow", quantization="dense", runtime=runtime) as llm:
        assert llm.info.weight_formats == ()


def write_quantised(directory: Path, to: Path, described: Mapping[str, Any], quantise: Callable[..., Any]) -> Any:
    """A checkpoint whose projections are random and quantised; returns transformers' model with their values.

    `quantise(shape, seed)` returns the tensors of a projection by the ends of their names, and its values.
    """
    shutil.copytree(directory, to)
    model = copy.deepcopy(reference_model(directory))
    tensors = safetensors.torch.load_file(to / "model.safetensors")
    for seed, (name, module) in enumerate(model.model.named_modules()):
        if isinstance(module, torch.nn.Linear):
            parts, values = quantise(tuple(module.weight.shape), seed)
            module.weight.data = torch.from_numpy(values.astype(np.float64))
            del tensors[f"model.{name}.weight"]
            tensors |= {f"model.{name}.{end}": torch.from_numpy(part.copy()) for end, part in parts.items()}
    safetensors.torch.save_file(tensors, to / "model.safetensors")
    config = json.loads((to / "config.json").read_text())
    (to / "config.json").write_text(json.dumps({**config, "quantization_config": dict(described)}))
    return model


def packed_4_bits(shape: tuple[int, int], seed: int) -> tuple[dict[str, Any], Any]:
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 16, shape)
    scales = (rng.uniform(0.5, 1, (shape[0], shape[1] // 128)) * 0.01).astype(np.float16)
    words = (codes.reshape(shape[0], -1, 8) << np.arange(0, 32, 4)).sum(-1).astype(np.uint32).view(np.int32)
    parts = {"weight_packed": words, "weight_scale": scales, "weight_shape": np.array(shape)}
    return parts, (codes - 8) * scales.astype(np.float64).repeat(128, axis=1)


def whole_8_bits(shape: tuple[int, int], seed: int) -> tuple[dict[str, Any], Any]:
    rng = np.random.default_rng(seed)
    codes = rng.integers(-127, 128, shape).astype(np.int8)
    scales = (rng.uniform(0.5, 1, (shape[0], 1)) * 1e-3).astype(np.float16)
    parts = {"weight": codes, "weight_scale": scales, "input_scale": np.ones(1, np.float32)}
    return parts, codes * scales.astype(np.float64)


def normal_floats(shape: tuple[int, int], seed: int) -> tuple[dict[str, Any], Any]:
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 16, shape)
    levels = np.linspace(-1, 1, 16).astype(np.float32)
    absmax = rng.uniform(0.03, 0.06, codes.size // 64).astype(np.float32)
    state = json.dumps({"blocksize": 64, "shape": shape}).encode()
    packed = codes.reshape(-1, 2)
    parts = {
        "weight": (packed[:, :1] << 4 | packed[:, 1:]).astype(np.uint8),
        "weight.absmax": absmax,
        "weight.quant_map": levels,
        "weight.quant_state.bitsandbytes__nf4": np.frombuffer(state, np.uint8),
    }
    return parts, levels.astype(np.float64)[codes] * absmax.repeat(64).reshape(shape)


_COMPRESSED = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 4}}}}


@pytest.mark.parametrize(
    ("described", "quantise", "format", "tolerance"),
    [
        (_COMPRESSED, packed_4_bits, "int4_g128", 1e-5),
        ({"quant_method": "compressed-tensors", "format": "int-quantized"}, whole_8_bits, "int8_channel", 1e-5),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, normal_floats, "int8", 3e-2),
    ],
    ids=["compressed_tensors_w4a16", "compressed_tensors_w8a8", "bitsandbytes_nf4"],
)
def test_quantised(
    runtime: Runtime,
    checkpoint: CheckpointOf,
    described: Mapping[str, Any],
    quantise: Callable[..., Any],
    format: str,
    tolerance: float,
    tmp_path: Path,
) -> None:
    directory = tmp_path / "model"
    expected = outputs_of(write_quantised(checkpoint(UNTIED), directory, described, quantise), TEXT)
    assert distance(directory, expected, runtime) < tolerance
    with LLM(directory, device="numpy", fallback="allow", runtime=runtime) as llm:
        assert llm.info.weight_formats == (format,)


def test_every_device_computes_with_the_same_weights(
    device: str, checkpoint: CheckpointOf, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Kernels for any CPU leave activations as they are; those with byte dot products do not."""
    monkeypatch.setenv("AETHERMIND_CPU_ISA", "portable")
    directory = checkpoint(TIED)
    types = spread("Q4_0", "Q4_1", "Q4_K", "Q5_0", "Q5_K", "Q8_0", token_embd="Q8_0")
    path = write_gguf(directory, tmp_path / "model.gguf", quantised=types)
    expected = outputs_of(dequantised_model(directory, path), TEXT)
    assert distance(path, expected, Runtime.boot(), device) < 5e-3
