"""What is fuzzed: everything that a reader of checkpoints can be asked for, of files whose bytes may be anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from aethermind import Runtime
from aethermind.checkpoint.gguf import GgufFile
from aethermind.checkpoint.quantized_checkpoint import open_quantized
from aethermind.checkpoint.remapped import AdaptedTensors, TensorSlice
from aethermind.checkpoint.safetensors import SafetensorsFile
from aethermind.checkpoint.sharded_index import Checkpoint
from aethermind.checkpoint.source import TensorSource
from aethermind.errors import AetherMindError
from aethermind.text.bpe_vocabularies import read_tiktoken

__all__ = ["CONFIGS", "TARGETS", "read_gguf", "read_model", "read_safetensors", "survives"]


def read_safetensors(path: Path) -> None:
    """Open a .safetensors file and read every tensor in it."""
    file = SafetensorsFile(path)
    assert file.total_bytes + file.data_begin == path.stat().st_size
    assert all(isinstance(value, str) for value in file.metadata.values())
    _read_tensors(file)


def read_gguf(path: Path) -> None:
    """Open a .gguf file, walk through its metadata and read every tensor in it."""
    file = GgufFile(path)
    for value in file.metadata.values():
        if hasattr(value, "__iter__"):
            assert sum(1 for _ in value) == len(value)
    _read_tensors(file)


def read_model(path: Path) -> None:
    """Take a .gguf file for a model: its configuration, generation settings, tokenizer and tensors by our names."""
    source = _runtime().open_source(path)
    for question in (source.config, source.generation, source.tokenizer, lambda: _read_tensors(source.weights())):
        try:
            question()
        except AetherMindError as error:
            _check_sentence(error)


CONFIGS: Mapping[str, dict[str, Any]] = {
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 32, "dynamic": {"+:x": {}}},
    "gemm": {"quant_method": "awq", "bits": 4, "group_size": 32},
    "gemv": {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemv"},
    "gemv_fast": {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemv_fast"},
    "compressed": {"quant_method": "compressed-tensors"},
    "modelopt": {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"},
    "fp8": {"quant_method": "fp8", "weight_block_size": [2, 32]},
    "bitsandbytes": {"quant_method": "bitsandbytes"},
    "hqq": {"quant_method": "hqq"},
    "torchao": {"quant_method": "torchao"},
    "mxfp4": {"quant_method": "mxfp4"},
}
"""The quantization_config of tensors whose names begin with a key and a stroke."""


def read_quantised(path: Path) -> None:
    """Open a .safetensors file as a quantised checkpoint, by each method that its names begin with."""
    file = SafetensorsFile(path)
    for kind, config in CONFIGS.items():
        names = {name.removeprefix(f"{kind}/"): name for name in file.names if name.startswith(f"{kind}/")}
        if not names:
            continue
        parts = {name: TensorSlice(stored) for name, stored in names.items()}
        checkpoint = AdaptedTensors(Checkpoint(dict.fromkeys(file.names, file)), parts, only_parts=True)
        try:
            view = open_quantized(checkpoint, config, "model")
        except AetherMindError as error:
            _check_sentence(error)
            continue
        _read_tensors(view)


def read_tiktoken_file(path: Path) -> None:
    """Read a vocabulary in tiktoken's format."""
    read_tiktoken(path, (), {})


TARGETS: Mapping[str, Callable[[Path], None]] = {
    "safetensors": read_safetensors,
    "gguf": read_gguf,
    "gguf_model": read_model,
    "quantised": read_quantised,
    "tiktoken": read_tiktoken_file,
}


def survives(read: Callable[[Path], None], path: Path) -> bool:
    """Whether a file could be read; one of our own errors is the only thing that may be raised."""
    try:
        read(path)
    except AetherMindError as error:
        _check_sentence(error)
        return False
    return True


def _check_sentence(error: AetherMindError) -> None:
    text = str(error)
    assert text
    assert len(text) < 2000, f"an error of {len(text)} characters: {text[:200]}"


def _read_tensors(source: TensorSource) -> None:
    for name in source.names:
        try:
            info, array = source.info(name), source.array(name)
        except AetherMindError as error:
            _check_sentence(error)
            continue
        if isinstance(array, np.ndarray):
            assert array.shape == info.shape
            _touch(array)
        else:  # experts are described as [E, N, K]
            assert prod(array.shape) == prod(info.shape)
            _touch(array.format.dequantize(array))


def _touch(array: np.ndarray[Any, Any]) -> None:
    """Read the first and the last value, which faults where a view goes past its file."""
    if array.size:
        array.flat[0].tobytes(), array.flat[-1].tobytes()


@cache
def _runtime() -> Runtime:
    return Runtime.boot()
