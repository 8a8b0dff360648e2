"""Writes a model quantised as a GGUF file, with the block type of each tensor by a mixture such as Q4_K_M.

The rules of mixtures are llama.cpp's: matrices that lose the most accuracy get a type of more bits. Those are the
output projection (the embedding table, where they are tied), and in mixtures that end with M about half of the value
and down projections.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from aethermind.checkpoint.gguf_encoding import ENCODINGS
from aethermind.checkpoint.source import dtype_names
from aethermind.engine.quantize.matrices import dense_values, encode_by_rows, find_matrices

if TYPE_CHECKING:
    from aethermind.engine.loading.compiled_model import CompiledModel
    from aethermind.model.gguf_source import GgufSource

__all__ = ["GGUF_FORMATS", "GgufFormat", "GgufModel", "GgufTensor", "MetadataEntry", "requantised_file"]

_SENSITIVE_MATRIX = re.compile(r"blk\.(\d+)\.(attn_v|ffn_down)(?:_exps|_shexp)?\.")
_OTHER_TYPES = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
"""Types for rows whose length is not a multiple of 256."""


@dataclass(frozen=True, slots=True)
class GgufFormat:
    """A mixture of block types: that of most matrices, of the output, and of half of the sensitive ones in layers.

    `file_type` is its number in `general.file_type` (llama.cpp: LLAMA_FTYPE).
    """

    name: str
    file_type: int
    base: str
    output: str
    sensitive: str

    def type_of(self, name: str, columns: int, num_layers: int, *, is_output: bool) -> str:
        """Return the type of a matrix by its GGUF name; F16 if its rows are no multiples of a block."""
        sensitive = _SENSITIVE_MATRIX.match(name)
        type_name = self.base
        if is_output:
            type_name = self.output
        elif sensitive is not None and _has_more_bits(int(sensitive[1]), num_layers):
            type_name = self.sensitive
        if type_name in ENCODINGS and columns % ENCODINGS[type_name].num_values:
            type_name = _OTHER_TYPES.get(type_name, type_name)
        fits = type_name not in ENCODINGS or columns % ENCODINGS[type_name].num_values == 0
        return type_name if fits else "F16"


def _has_more_bits(layer: int, num_layers: int) -> bool:
    """Whether the sensitive matrices of a layer get more bits: in the first and last eighth, and in every third
    between.
    """
    eighth = num_layers // 8
    return layer < eighth or layer >= 7 * num_layers // 8 or (layer - eighth) % 3 == 2


GGUF_FORMATS: Mapping[str, GgufFormat] = MappingProxyType(
    {
        format.name: format
        for format in (
            GgufFormat("q4_0", 2, "Q4_0", "Q6_K", "Q4_0"),
            GgufFormat("q5_0", 8, "Q5_0", "Q6_K", "Q5_0"),
            GgufFormat("q8_0", 7, "Q8_0", "Q8_0", "Q8_0"),
            GgufFormat("q4_k_s", 14, "Q4_K", "Q6_K", "Q4_K"),
            GgufFormat("q4_k_m", 15, "Q4_K", "Q6_K", "Q6_K"),
            GgufFormat("q5_k_s", 16, "Q5_K", "Q6_K", "Q5_K"),
            GgufFormat("q5_k_m", 17, "Q5_K", "Q6_K", "Q6_K"),
            GgufFormat("q6_k", 18, "Q6_K", "Q6_K", "Q6_K"),
            GgufFormat("f16", 1, "F16", "F16", "F16"),
            GgufFormat("bf16", 32, "BF16", "BF16", "BF16"),
        )
    }
)
"""The mixtures by name."""


Array = npt.NDArray[Any]

_FILE_TYPE, _QUANTIZATION_VERSION = "general.file_type", "general.quantization_version"
_VERSION = 2
"""Value of `general.quantization_version`."""
_ALIGNMENT = 32
_PLAIN = ("F32", "F16", "BF16")
_NOT_COPIED = ("GGUF.", "split.", "quantize.imatrix.", "general.architecture", _FILE_TYPE, _QUANTIZATION_VERSION)


class MetadataEntry(NamedTuple):
    """A key of the metadata with its value, and the gguf library's types of the value and of an array's elements."""

    key: str
    value: Any
    type: Any
    element_type: Any = None


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor to write: GGUF's name, shape (outermost first) and type, and where its values come from.

    `values()` returns a vector or a matrix [N, K], to which a tensor of more dims is flattened. If `raw_bytes` is set,
    `values()` returns encoded bytes, which are copied. `parameter` is the model's parameter, whose importance is used.
    """

    name: str
    shape: tuple[int, ...]
    type_name: str
    values: Callable[[], Any]
    parameter: str | None = None
    raw_bytes: int | None = None

    @property
    def nbytes(self) -> int:
        """Size of the values in bytes."""
        if self.raw_bytes is not None:
            return self.raw_bytes
        encoding = ENCODINGS.get(self.type_name)
        if encoding is not None:
            return prod(self.shape[:-1]) * encoding.row_bytes(self.shape[-1])
        return prod(self.shape) * dtype_names()[self.type_name].itemsize

    def encoded(self, importance: Mapping[str, Array], pool: ThreadPoolExecutor) -> Array:
        """Return the encoded bytes of the tensor, uint8."""
        values = self.values()
        encoding = ENCODINGS.get(self.type_name)
        if self.raw_bytes is not None:
            return np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        if encoding is None:
            array = dense_values(values).astype(dtype_names()[self.type_name])
            return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        weights = importance.get(self.parameter or "")
        (blocks,) = encode_by_rows(pool, lambda part: [encoding.encode(part, weights)], values)
        return blocks


@dataclass(frozen=True, slots=True)
class GgufModel:
    """A model to be written as one GGUF file."""

    architecture: str
    metadata: Sequence[MetadataEntry]
    tensors: Sequence[GgufTensor]
    format: GgufFormat
    check: Callable[[Path], None] = lambda _: None
    """Called with the file when its metadata and the first `num_settings` tensors are written."""
    num_settings: int = 0

    @property
    def _matrices(self) -> list[GgufTensor]:
        return [tensor for tensor in self.tensors if tensor.parameter is not None]

    @property
    def num_matrices(self) -> int:
        return len(self._matrices)

    @property
    def num_values(self) -> int:
        return sum(prod(tensor.shape) for tensor in self._matrices)

    @property
    def matrix_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._matrices)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    def write(
        self,
        path: Path,
        importance: Mapping[str, Array],
        num_threads: int,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Write the file; `importance` and `on_progress` are as for `CompressedTensorsModel.write`."""
        import gguf

        writer = gguf.GGUFWriter(path, self.architecture)
        for entry in self.metadata:
            writer.add_key_value(entry.key, entry.value, entry.type, entry.element_type)
        writer.add_file_type(self.format.file_type)
        writer.add_quantization_version(_VERSION)
        if importance:
            writer.add_uint32("quantize.imatrix.entries_count", len(importance))
        for tensor in self.tensors:
            type = gguf.GGMLQuantizationType[tensor.type_name]
            writer.add_tensor_info(tensor.name, tensor.shape, np.dtype(np.float32), tensor.nbytes, type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        writer.flush()
        with path.open("r+b") as file:  # a reader compares the sizes of tensors with that of the file
            file.truncate(path.stat().st_size + sum(tensor.nbytes + _ALIGNMENT for tensor in self.tensors))
        total, done = self.nbytes, 0
        try:
            with ThreadPoolExecutor(num_threads) as pool:
                for number, tensor in enumerate(self.tensors):
                    if number == self.num_settings:
                        writer.flush()
                        self.check(path)
                    writer.write_tensor_data(tensor.encoded(importance, pool))
                    done += tensor.nbytes
                    if on_progress is not None:
                        on_progress(done, total)
            assert writer.fout is not None
            writer.flush()
            writer.fout[0].truncate(writer.fout[0].tell())
        finally:
            writer.close()


def requantised_file(compiled: CompiledModel, source: GgufSource, format: GgufFormat) -> GgufModel:
    """Plan a file with the metadata and the tensors of another one; tensors other than matrices are copied."""
    import gguf

    stored = source.weights()
    matrices = find_matrices(compiled, stored)
    linear, outputs = (
        {stored.original_name(name): parameter for name, parameter in found.items()}
        for found in (matrices.linear, matrices.heads)
    )
    tables = {stored.original_name(name): name for name in matrices.tables}
    readers = [gguf.GGUFReader(path) for path in stored.paths]
    metadata = [
        MetadataEntry(key, field.contents(), field.types[0], field.types[1] if len(field.types) > 1 else None)
        for key, field in readers[0].fields.items()
        if not key.startswith(_NOT_COPIED)
    ]
    num_layers = compiled.model.config.num_hidden_layers
    tensors = []
    for tensor in (tensor for reader in readers for tensor in reader.tensors):
        shape = tuple(int(size) for size in reversed(tensor.shape))
        is_output = tensor.name in outputs or (tensor.name in tables and not outputs)
        parameter = {**linear, **outputs, **tables}.get(tensor.name)
        if parameter is not None and len(shape) > 1:
            type_name = format.type_of(tensor.name, shape[-1], num_layers, is_output=is_output)
            values = partial(source.stored_values, tensor.name)
            tensors.append(GgufTensor(tensor.name, shape, type_name, values, parameter))
        else:
            stored_type = gguf.GGMLQuantizationType(tensor.tensor_type).name
            copied = partial(getattr, tensor, "data")
            tensors.append(GgufTensor(tensor.name, shape, stored_type, copied, raw_bytes=int(tensor.n_bytes)))
    return GgufModel(source.architecture, metadata, tensors, format)
