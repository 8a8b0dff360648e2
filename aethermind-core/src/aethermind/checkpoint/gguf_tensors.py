"""The tensors of a GGUF model under Hugging Face's names, from one .gguf file or from several parts.

`llama-gguf-split` cuts large models: the metadata are in the first file, tensors in all. The names are those that all
decoders of Llama's architecture share, in GGUF files and in Hugging Face's checkpoints.

llama.cpp stores some tensors as its kernels use them: A of a state-space model instead of its logarithm, projections
with other orders of rows or columns, vectors as matrices. Each has a `GgufTransform` that undoes this.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from aethermind.checkpoint.gguf import GgufFile
from aethermind.checkpoint.source import TensorInfo
from aethermind.errors import CheckpointError
from aethermind.ops.weight_format import QuantizedWeight, one_level_format, without_super_blocks
from aethermind.plugins.compatibility import deprecated_fields

__all__ = [
    "CONFIGURATION_TENSORS",
    "GgufNames",
    "GgufParts",
    "GgufTensors",
    "GgufTransform",
    "LONGROPE_FACTORS",
    "ROPE_FACTORS",
    "gguf_name",
    "hf_name",
    "in_layer",
    "inverse_order",
]

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class GgufTransform:
    """The changes with which a stored tensor is read, in this order.

    Attributes:
        is_flat: a stored matrix is read as a vector [n].
        rows: the stored rows in the order in which they are read; None for their own.
        columns: the same for columns. The columns of a block of a quantised tensor must remain neighbours.
        is_negative_exponential: the file stores −exp(x) of the tensor x.
    """

    is_flat: bool = False
    rows: Sequence[int] | None = None
    columns: Sequence[int] | None = None
    is_negative_exponential: bool = False

    def info(self, stored: TensorInfo) -> TensorInfo:
        """Describe the tensor that is read, given the `stored` one."""
        shape = (prod(stored.shape),) if self.is_flat else stored.shape
        weight_format = stored.weight_format
        if self.columns is not None and weight_format is not None and weight_format.super_block_size:
            weight_format = one_level_format(weight_format)
        return replace(stored, shape=shape, weight_format=weight_format)

    def apply(self, stored: Array | QuantizedWeight, name: str) -> Array | QuantizedWeight:
        """Return the tensor's values; CheckpointError with the `name` of a tensor whose sizes or values do not fit."""
        _check_order(self.rows, stored.shape[0], name)
        if self.columns is not None:
            _check_order(self.columns, stored.shape[1], name)
        if isinstance(stored, QuantizedWeight):
            weight = stored if self.rows is None else stored.take_rows(np.asarray(self.rows, np.int64))
            return weight if self.columns is None else _take_columns(weight, np.asarray(self.columns, np.int64), name)
        values = stored.reshape(-1) if self.is_flat else stored
        values = values if self.rows is None else values[np.asarray(self.rows, np.int64)]
        values = values if self.columns is None else values[:, np.asarray(self.columns, np.int64)]
        if not self.is_negative_exponential:
            return values
        if not (values < 0).all():
            raise CheckpointError(f"{name} has values that are not negative. Convert the model again.")
        logarithms: Array = np.log(-values)
        return logarithms


def inverse_order(order: Sequence[int]) -> tuple[int, ...]:
    """The inverse permutation: it undoes a reordering of rows by `order`."""
    return tuple(np.argsort(order).tolist())


def _check_order(order: Sequence[int] | None, count: int, name: str) -> None:
    """CheckpointError if an order is not one of `count` rows or columns."""
    if order is not None and len(order) != count:
        raise CheckpointError(
            f"{name} has {count} rows or columns where its metadata say {len(order)}. Convert the model again."
        )


def _take_columns(weight: QuantizedWeight, columns: npt.NDArray[np.int64], name: str) -> QuantizedWeight:
    """Take columns in an order that keeps blocks together. Super-blocks, which it may split, become plain blocks."""
    size = weight.format.block
    blocks = columns[::size] // size if size and len(columns) % size == 0 else np.arange(0)
    if not np.array_equal((blocks[:, None] * size + np.arange(size)).ravel(), columns):
        raise CheckpointError(
            f"{name} is quantised in blocks of {size} columns, which its converter took apart. Take a file of the "
            "model in F16 or BF16."
        )
    weight = without_super_blocks(weight) if weight.format.super_block_size else weight
    parameters = (
        None if parameter is None else parameter[:, blocks]
        for parameter in (weight.scales, weight.zeros, weight.offsets)
    )
    return QuantizedWeight(weight.format, weight.codes[:, columns], *parameters)


_PART_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
_PART_COUNT, _PART_NUMBER = "split.count", "split.no"


class GgufParts:
    """Tensors by GGUF's names in one or more mapped files; implements `TensorSource`. Immutable."""

    def __init__(self, path: Path, arriving: Mapping[Path, GgufFile] = MappingProxyType({})) -> None:
        """Map the file at `path`, and the other parts beside it if it is the first of several.

        `arriving` are the files that are still being downloaded, by their paths.

        Raises:
            CheckpointError: it is not the first part; a part is missing or is another file's; a file is invalid.
        """
        self.path = path
        self._arriving = arriving
        first = arriving.get(path) or GgufFile(path)
        count = first.metadata.get(_PART_COUNT, 1)
        if not isinstance(count, int):
            first.fail(f"has {_PART_COUNT} {count!r:.40}, which is no number")
        self._files = [first, *(self._open_part(first, number, count) for number in range(1, count))]
        self._file_of_name: dict[str, GgufFile] = {}
        for file in self._files:
            for name in file.names:
                if name in self._file_of_name:
                    file.fail(f"has the tensor {name!r:.80}, which another part has, too")
                self._file_of_name[name] = file
        total = first.metadata.get("split.tensors.count", len(self._file_of_name))
        if total != len(self._file_of_name):
            first.fail(f"is cut into parts with {len(self._file_of_name)} tensors of {total!r:.40}")

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The metadata of the first part."""
        return self._files[0].metadata

    @property
    def paths(self) -> tuple[Path, ...]:
        """The paths of all parts, in order."""
        return tuple(file.path for file in self._files)

    @property
    def names(self) -> tuple[str, ...]:
        """Every tensor's name, in the order of the parts."""
        return tuple(self._file_of_name)

    @property
    def total_bytes(self) -> int:
        """Size of all values together. Raises CheckpointError for tensors of unsupported types."""
        return sum(file.total_bytes for file in self._files)

    def info(self, name: str) -> TensorInfo:
        """Describe a tensor; see `GgufFile.info`."""
        return self._file_of_name.get(name, self._files[0]).info(name)

    def array(self, name: str) -> npt.NDArray[Any] | QuantizedWeight:
        """A tensor's values; see `GgufFile.array`."""
        return self._file_of_name.get(name, self._files[0]).array(name)

    def values(self, name: str, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """A tensor's values, none of them quantised; see `GgufFile.values`."""
        return self._file_of_name.get(name, self._files[0]).values(name, dtype)

    def fail(self, problem: str) -> NoReturn:
        """Raise a CheckpointError about the first file."""
        self._files[0].fail(problem)

    def _open_part(self, first: GgufFile, number: int, count: int) -> GgufFile:
        match = _PART_NAME.fullmatch(self.path.name)
        if first.metadata.get(_PART_NUMBER, 0) != 0 or match is None or int(match["count"]) != count:
            raise CheckpointError(
                f"{self.path} is one of {count} parts of a model. Pass the first, whose name ends with "
                f"-00001-of-{count:05d}.gguf, with the others beside it."
            )
        path = self.path.with_name(f"{match['stem']}-{number + 1:05d}-of-{count:05d}{self.path.suffix}")
        if path not in self._arriving and not path.is_file():
            raise CheckpointError(f"{path}, part {number + 1} of {count} of the model, is not there. Fetch it as well.")
        part = self._arriving.get(path) or GgufFile(path)
        if (part.metadata.get(_PART_NUMBER), part.metadata.get(_PART_COUNT)) != (number, count):
            part.fail(f"is not part {number + 1} of {count}, as it is named")
        return part


ROPE_FACTORS = "rope_freqs.weight"
"""The divisor of each rotary frequency, float32 [head_dim / 2]: configuration that is stored as a tensor."""

LONGROPE_FACTORS = {"short_factor": "rope_factors_short.weight", "long_factor": "rope_factors_long.weight"}
"""The divisors of LongRoPE, for the original context and beyond it."""

CONFIGURATION_TENSORS = frozenset({ROPE_FACTORS, *LONGROPE_FACTORS.values()})

_SHARED_GATE = "mlp.shared_expert_gate"
"""A matrix of one row, which the converter stores as a vector."""
_GLOBAL_MODULES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER_MODULES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
    "ffn_gate_inp_shexp": _SHARED_GATE,
}
_TENSOR_NAME = re.compile(
    r"(?:blk\.(?P<layer>\d+)\.)?(?P<module>[a-z]\w*(?:\.[a-z]\w*)*?)(?:\.(?P<expert>\d+))?(?:\.(?P<kind>weight|bias))?"
)


@dataclass(frozen=True, slots=True)
class GgufNames:
    """A family's names of tensors that differ from Llama's; `model.gguf_family.GgufFamily` describes the fields."""

    modules: Mapping[str, str] = field(default_factory=dict)
    outside: Mapping[str, str] = field(default_factory=dict)
    layers: str = "model.layers"


def hf_name(name: str, names: GgufNames = GgufNames()) -> str:
    """Translate `blk.3.attn_q.weight` to `model.layers.3.self_attn.q_proj.weight`; unknown names remain unchanged.

    Old files have one tensor per expert, `blk.3.ffn_gate.5.weight`, which is
    `model.layers.3.mlp.experts.5.gate_proj.weight`.
    """
    match = _TENSOR_NAME.fullmatch(name)
    if match is None:
        return name
    layer, kind = match["layer"], match["kind"]
    prefix = "" if layer is None else f"{names.layers}.{layer}."
    common, family = (_GLOBAL_MODULES, names.outside) if layer is None else (_LAYER_MODULES, names.modules)
    tensor = family.get(in_layer(name))
    if tensor is not None:
        return prefix + tensor
    module = family.get(match["module"], common.get(match["module"]))
    if kind is None or module is None or (match["expert"] is not None and not module.startswith("mlp.")):
        return name
    if match["expert"] is not None:
        module = module.replace("mlp.", f"mlp.experts.{match['expert']}.", 1)
    return f"{prefix}{module}.{kind}"


def gguf_name(name: str, names: GgufNames = GgufNames()) -> str | None:
    """Translate `model.layers.3.self_attn.q_proj.weight` to `blk.3.attn_q.weight`, the inverse of `hf_name`; None for a
    name that no file has.
    """
    layer = re.match(rf"{re.escape(names.layers)}\.(\d+)\.", name)
    prefix = "" if layer is None else f"blk.{layer[1]}."
    rest = name if layer is None else name[layer.end() :]
    common, family = (_GLOBAL_MODULES, names.outside) if layer is None else (_LAYER_MODULES, names.modules)
    module, _, kind = rest.rpartition(".")
    candidates = [f"{prefix}{gguf}" for gguf, hf in family.items() if hf == rest]
    candidates += [f"{prefix}{gguf}.{kind}" for gguf, hf in (*family.items(), *common.items()) if hf == module]
    return next((candidate for candidate in candidates if hf_name(candidate, names) == name), None)


_MTP_TENSORS = {
    "nextn.enorm.weight": "enorm.weight",
    "nextn.hnorm.weight": "hnorm.weight",
    "nextn.eh_proj.weight": "eh_proj.weight",
    "nextn.shared_head_norm.weight": "norm.weight",
}
"""Tensors of MTP layers (llama.cpp: nextn), which draft tokens. Copies of the embeddings and the head are not read."""


def _mtp_names(stored: Iterable[str], names: GgufNames, num_layers: int) -> dict[str, str]:
    """The stored tensors of layer `num_layers`, the first that drafts tokens, by their names in `model.mtp`."""
    names_by_mtp_name = {}
    for name in stored:
        if layer_of(name) == num_layers:
            name_in_layer = in_layer(name)
            if name_in_layer in _MTP_TENSORS:
                names_by_mtp_name[f"mtp.{_MTP_TENSORS[name_in_layer]}"] = name
            elif (renamed := hf_name(f"blk.0.{name_in_layer}", replace(names, layers="mtp.layers"))).startswith("mtp."):
                names_by_mtp_name[renamed] = name
    return names_by_mtp_name


def in_layer(name: str) -> str:
    """GGUF's name of a tensor without its layer: `attn_q.weight`."""
    return re.sub(r"^blk\.\d+\.", "", name)


def layer_of(name: str) -> int:
    """The number of the layer that a tensor belongs to; -1 for a tensor outside of layers."""
    match = re.match(r"blk\.(\d+)\.", name)
    return int(match[1]) if match else -1


@deprecated_fields(until="0.4", neutral_names="zero_bias_names")
class GgufTensors:
    """A GGUF file's tensors by Hugging Face's names; implements `StoredTensors`. Immutable."""

    def __init__(
        self,
        file: GgufParts,
        names: GgufNames = GgufNames(),
        transforms: Mapping[str, GgufTransform] = MappingProxyType({}),
        num_layers: int | None = None,
    ) -> None:
        """`names` are those of the file's family; `transforms` are for tensors of layers, by their names in a layer.

        Layers from number `num_layers` on draft tokens: the first has the names of an MTP module (see `model.mtp`),
        the others are left out.
        CheckpointError if a tensor that is read has an unsupported type.
        """
        self._file = file
        readable = [name for name in file.names if name not in CONFIGURATION_TENSORS]
        model_names = [name for name in readable if num_layers is None or layer_of(name) < num_layers]
        self._originals = {hf_name(name, names): name for name in model_names}
        if num_layers is not None:
            self._originals |= _mtp_names(readable, names, num_layers)
        self._transforms = transforms
        self._dtype: npt.DTypeLike | None = None
        for name in self._originals.values():
            file.info(name)

    def dequantized(self, dtype: npt.DTypeLike) -> GgufTensors:
        """Return the tensors with the values of quantised ones, rounded once to `dtype`; see `GgufFile.values`."""
        view = copy(self)
        view._dtype = dtype
        return view

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files that hold the tensors."""
        return self._file.paths

    @property
    def names(self) -> tuple[str, ...]:
        """Every tensor's name, in the file's order, those of an MTP module last."""
        return tuple(self._originals)

    @property
    def zero_bias_names(self) -> tuple[str, ...]:
        """Empty: converters to GGUF add no tensors."""
        return ()

    @property
    def total_bytes(self) -> int:
        """Size of all values of the file, those that are not read included."""
        return self._file.total_bytes

    def info(self, name: str) -> TensorInfo:
        """Describe a tensor. Raises CheckpointError for an unknown name."""
        original = self.original_name(name)
        info = self._file.info(original)
        transform = self._transforms.get(in_layer(original))
        if transform is not None:
            return transform.info(info)
        is_row = name.endswith(f"{_SHARED_GATE}.weight") and len(info.shape) == 1
        return replace(info, shape=(1, *info.shape)) if is_row else info

    def array(self, name: str) -> npt.NDArray[Any] | QuantizedWeight:
        """A tensor's values, a read-only view of the mapped file unless they are rearranged; a quantised tensor is a
        QuantizedWeight.

        Raises CheckpointError for an unknown name, and for a tensor that cannot be rearranged.
        """
        original = self.original_name(name)
        dtype = self._dtype
        values = self._file.array(original) if dtype is None else self._file.values(original, dtype)
        transform = self._transforms.get(in_layer(original))
        if transform is not None:
            return transform.apply(values, f"{self._file.path} has a tensor {original!r:.80} that")
        return values if isinstance(values, QuantizedWeight) else values.reshape(self.info(name).shape)

    def original_name(self, name: str) -> str:
        """Return GGUF's name of a tensor. Raises CheckpointError for an unknown name."""
        original = self._originals.get(name)
        if original is None:
            raise CheckpointError(f"{self._file.path} has no tensor {name!r} among its {len(self._originals)}.")
        return original
