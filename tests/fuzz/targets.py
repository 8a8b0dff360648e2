"""What is fuzzed: everything that a reader of checkpoints can be asked for, of files whose bytes may be anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from aethermind import Runtime
from aethermind.checkpoint.gguf import GgufFile
from aethermind.checkpoint.safetensors import SafetensorsFile
from aethermind.checkpoint.source import TensorSource
from aethermind.errors import AetherMindError

__all__ = ["TARGETS", "read_gguf", "read_model", "read_safetensors", "survives"]


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


TARGETS: Mapping[str, Callable[[Path], None]] = {
    "safetensors": read_safetensors,
    "gguf": read_gguf,
    "gguf_model": read_model,
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
        assert tuple(array.shape) == info.shape
        if isinstance(array, np.ndarray):
            _touch(array)


def _touch(array: np.ndarray[Any, Any]) -> None:
    """Read the first and the last value, which faults where a view goes past its file."""
    if array.size:
        array.flat[0].tobytes(), array.flat[-1].tobytes()


@cache
def _runtime() -> Runtime:
    return Runtime.boot()
