"""Writes a model quantised as compressed-tensors: a folder in the Hugging Face layout."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from aethermind.checkpoint.quantized_tensors import dequantized
from aethermind.checkpoint.safetensors_writer import TensorGroup, TensorSpec, write_safetensors
from aethermind.checkpoint.source import dtype_names
from aethermind.engine.quantize.matrices import ModelMatrices, dense_values, encode_by_rows, find_matrices
from aethermind.errors import InvalidArgumentError
from aethermind.model.source import DirectorySource

if TYPE_CHECKING:
    from aethermind.checkpoint.compressed_tensors_writer import CompressedTensorsScheme
    from aethermind.checkpoint.source import StoredTensors
    from aethermind.engine.loading.compiled_model import CompiledModel

__all__ = ["CompressedTensorsModel"]

Array = npt.NDArray[Any]

_WEIGHT = ".weight"
_FLOATS = ("BF16", "F16", "F32")
_MAX_LISTED = 3
"""Maximum number of matrices that an error message names."""
_QUANTIZATION_FILES = ("quantize_config.json", "quant_config.json", "quantization_config.json", "recipe.yaml")
_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx", ".index.json")
_NOT_COPIED = ("config.json", "README.md", *_QUANTIZATION_FILES)
"""Files that describe the source's weights, or that are written anew."""
_FOLDERS = re.compile(r"additional_chat_templates|\d+_[A-Z][A-Za-z]*")
"""Folders of chat templates and of sentence-transformers' modules."""


@dataclass(frozen=True, slots=True)
class CompressedTensorsModel:
    """A model to be written in the compressed-tensors format.

    `nbytes` is the size of its weights; `num_matrices`, `num_values` and `matrix_bytes` count the quantised matrices.
    """

    source: DirectorySource
    scheme: CompressedTensorsScheme
    stored: StoredTensors
    matrices: ModelMatrices
    dtype_name: str

    @classmethod
    def of(cls, compiled: CompiledModel, scheme: CompressedTensorsScheme) -> CompressedTensorsModel:
        """Plan the quantisation of a compiled model, without reading weights.

        InvalidArgumentError for a model that is not a directory, and for matrices that the scheme cannot store.
        """
        source = compiled.source
        if not isinstance(source, DirectorySource):
            raise InvalidArgumentError(
                f"{source.path} is GGUF, which has no Hugging Face configuration and tokenizer to write. Give the "
                "model's directory, or a format of GGUF, such as q4_k_m."
            )
        stored = source.weights()
        matrices = find_matrices(compiled, stored)
        if not matrices.linear:
            raise InvalidArgumentError(
                f"{source.path} has no linear layer whose weights are stored as one matrix [N, K]."
            )
        problems = {name: scheme.why_not_storable(_matrix_shape(stored, name)) for name in matrices.linear}
        misfits = [f"{name}: {problem}" for name, problem in problems.items() if problem]
        if misfits:
            rest = len(misfits) - _MAX_LISTED
            listed = "; ".join(misfits[:_MAX_LISTED]) + (f"; and {rest} more" if rest > 0 else "")
            raise InvalidArgumentError(
                f"{scheme.name} cannot store {len(misfits)} matrices of this model ({listed}). Choose a smaller group "
                "size, such as int4_g32, or int8_channel."
            )
        return cls(source, scheme, stored, matrices, _dtype_of(stored, matrices))

    @property
    def num_matrices(self) -> int:
        return len(self.matrices.linear)

    @property
    def num_values(self) -> int:
        return sum(int(np.prod(self.stored.info(name).shape)) for name in self.matrices.linear)

    @property
    def matrix_bytes(self) -> int:
        return sum(spec.nbytes for name in self.matrices.linear for spec in self._specs(name))

    @property
    def nbytes(self) -> int:
        return sum(spec.nbytes for name in self.stored.names for spec in self._specs(name))

    def write(
        self,
        directory: Path,
        importance: Mapping[str, Array],
        num_threads: int,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Write configuration, tokenizer and weights into an existing, empty directory.

        `importance` has the weights of squared errors, float32 [K], by the names of parameters (see `importance`); the
        default is 1. `on_progress` is called with bytes (done, total). InvalidArgumentError for values that a format
        cannot store, OSError if the disk is full.
        """
        _copy_files(self.source.path, directory)
        config = {name: value for name, value in self.source.config().items() if name != "quantization_config"}
        config["quantization_config"] = self.scheme.quantization_config(self._ignored())
        (directory / "config.json").write_text(
            json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
        )
        with ThreadPoolExecutor(num_threads) as pool:
            groups = [group for name in self.stored.names for group in self._groups(name, importance, pool)]
            write_safetensors(directory, groups, on_progress=on_progress)

    def _groups(self, name: str, importance: Mapping[str, Array], pool: ThreadPoolExecutor) -> list[TensorGroup]:
        parameter = self.matrices.linear.get(name)
        if parameter is None:
            return [TensorGroup(self._specs(name), lambda: [self._dense(name)])]
        shape_spec, shape = self.scheme.shape_spec(name), np.array(self.stored.info(name).shape, np.int64)
        encode = partial(self.scheme.encode, dtype_name=self._dtype(name), importance=importance.get(parameter))
        specs = self.scheme.specs(name, _matrix_shape(self.stored, name), self._dtype(name))
        values = dequantized(self.stored, np.float32)
        groups = [TensorGroup(specs, lambda: encode_by_rows(pool, encode, values.array(name)))]
        return groups if shape_spec is None else [*groups, TensorGroup((shape_spec,), lambda: [shape])]

    def _specs(self, name: str) -> tuple[TensorSpec, ...]:
        info = self.stored.info(name)
        if name not in self.matrices.linear:
            dtype_name = self.dtype_name if info.weight_format is not None else info.dtype_name
            return (TensorSpec(name, dtype_name, info.shape),)
        shape_spec = self.scheme.shape_spec(name)
        specs = self.scheme.specs(name, _matrix_shape(self.stored, name), self._dtype(name))
        return specs if shape_spec is None else (*specs, shape_spec)

    def _dense(self, name: str) -> Array:
        dtype = dtype_names()[self.dtype_name]
        return dense_values(dequantized(self.stored, dtype).array(name), dtype)

    def _dtype(self, name: str) -> str:
        """Return the dtype of a matrix's scales: the dtype of the matrix, if it is dense."""
        dtype_name = self.stored.info(name).dtype_name
        return dtype_name if dtype_name in _FLOATS else self.dtype_name

    def _ignored(self) -> list[str]:
        """Return the modules whose matrices are not quantised; readers assume that all other linear modules are."""
        dense = [
            name.removesuffix(_WEIGHT)
            for name in self.stored.names
            if name.endswith(_WEIGHT)
            and len(self.stored.info(name).shape) == 2
            and name not in self.matrices.linear
            and name not in self.matrices.tables
        ]
        return list(dict.fromkeys([*dense, "lm_head"]))


def _matrix_shape(stored: StoredTensors, name: str) -> tuple[int, int]:
    rows, columns = stored.info(name).shape
    return rows, columns


def _dtype_of(stored: StoredTensors, matrices: ModelMatrices) -> str:
    """Return the dtype of most matrices, or of most tensors if all matrices are quantised; BF16 if there is none."""
    for names in (matrices.linear, stored.names):
        counts = Counter(stored.info(name).dtype_name for name in names)
        found = [name for name, _ in counts.most_common() if name in _FLOATS]
        if found:
            return found[0]
    return "BF16"


def _copy_files(source: Path, directory: Path) -> None:
    """Copy all files but weights and files that describe them: tokenizer, templates, generation_config.json, code."""
    for entry in sorted(source.iterdir()):
        if entry.is_dir() and _FOLDERS.fullmatch(entry.name):
            shutil.copytree(entry, directory / entry.name)
        elif entry.is_file() and not (
            entry.name.startswith(".") or entry.name in _NOT_COPIED or entry.name.endswith(_WEIGHT_SUFFIXES)
        ):
            shutil.copyfile(entry, directory / entry.name)
