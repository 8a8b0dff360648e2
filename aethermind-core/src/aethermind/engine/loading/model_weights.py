"""A compiled model's weights: its checkpoint, checked against the parameters of the plan."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from aethermind.checkpoint.quantized_tensors import dequantized
from aethermind.checkpoint.remapped import AdaptedTensors, TensorSlice
from aethermind.engine.loading.compiled_model import CompiledModel
from aethermind.engine.loading.tensor_parallel import PartialTensors
from aethermind.engine.weight_cache import WeightCache
from aethermind.errors import CheckpointError, InvalidArgumentError
from aethermind.graph.builder import stored_name
from aethermind.graph.constants import ConstantStore, has_codes_of
from aethermind.hal.dtype import DType
from aethermind.hal.mapped import drop_mapped_pages
from aethermind.model.architecture import AdaptsWeights
from aethermind.ops.schema import TensorType

if TYPE_CHECKING:
    from aethermind.checkpoint.source import StoredTensors, TensorInfo, TensorSource
    from aethermind.graph.ir import Value
    from aethermind.hal.tensor import Tensor
    from aethermind.model.architecture import CausalLM, TextEncoder
    from aethermind.model.source import ModelSource
    from aethermind.ops.weight_format import WeightFormat

__all__ = ["is_base_model", "open_constants", "open_weights", "stored_formats", "stored_tensors"]

_PIECE_BYTES = 4 << 20
"""Bytes of tensors that are compared at a time."""
_WEIGHT, _BIAS = ".weight", ".bias"
_MTP = "mtp.*"
"""Tensors of a module for multi-token prediction, which the model itself does not read."""
_CACHE_SCALES = ("*.k_scale", "*.v_scale")
"""Scales of an 8-bit KV cache that a checkpoint may hold; the cache here computes its own scales."""


def open_weights(compiled: CompiledModel, stored: StoredTensors | None = None) -> TensorSource:
    """Open the checkpoint's tensors, and a tensor-parallel rank's parts of them.

    `stored` is the checkpoint, if it is open already. CheckpointError if names or shapes differ from those of the
    model's parameters.
    """
    parts = {} if compiled.parallel is None else compiled.parallel.parts
    whole = _open_checkpoint(compiled, _whole_types(compiled), stored)
    return PartialTensors(whole, parts) if parts else whole


def _whole_types(compiled: CompiledModel) -> dict[str, TensorType]:
    """Return the types of the parameters as they are in the checkpoint, before they are divided among ranks."""
    parts = {} if compiled.parallel is None else compiled.parallel.parts
    adapter_parameters = () if compiled.adapters is None else compiled.adapters.parameters
    types = {name: type for name, type in compiled.parameter_types.items() if name not in parts}
    undivided = {part.parameter: part.whole for part in parts.values()}
    undivided |= {} if compiled.parallel is None else compiled.parallel.of_rank_0
    types |= {name: type for name, type in undivided.items() if name not in adapter_parameters}
    return {name: type for name, type in types.items() if stored_name(name) == name}


class _Parameters:
    """Reads the parameters of a compiled model for constants in one weight format or another."""

    def __init__(self, compiled: CompiledModel, computed: Mapping[str, Any], types: Mapping[str, TensorType]) -> None:
        self._compiled = compiled
        self._computed = computed
        self._types = types
        self._parts = {} if compiled.parallel is None else compiled.parallel.parts
        self._checkpoint = None if compiled.config.load_format == "dummy" else compiled.source.weights()
        self._stored = open_weights(compiled, self._checkpoint)
        self._dequantized: dict[DType, TensorSource] = {}
        self._scales_before_cast = _scales_before_cast(compiled)

    def read(self, name: str, format: WeightFormat | None) -> Any:
        """Return a parameter for a constant in `format`, None for a dense one: quantised if its codes are of that
        format, else as its values, which are rounded once.

        InvalidArgumentError for embeddings that the dtype of activations cannot represent.
        """
        if name in self._computed:
            return self._computed[name]
        dtype = self._types[name].dtype
        whole = self._parts[name].parameter if name in self._parts else name
        stored = self._stored.info(stored_name(whole)).weight_format
        name = name if name in self._parts else stored_name(name)
        if format is not None and stored is not None and has_codes_of(stored, format):
            return self._stored.array(name)
        values = self._values(dtype if format is None else DType.FLOAT32).array(name)
        if whole in self._scales_before_cast:
            _check_castable(values, self._scales_before_cast[whole], self._compiled.dtype)
        return values

    def _values(self, dtype: DType) -> TensorSource:
        """The checkpoint with the values of quantised tensors in `dtype`."""
        if self._checkpoint is None:
            return self._stored
        if dtype not in self._dequantized:
            model, types = self._compiled.model, _whole_types(self._compiled)
            found: TensorSource = _in_names_of(dequantized(self._checkpoint, dtype.numpy), model, types)
            self._dequantized[dtype] = PartialTensors(found, self._parts) if self._parts else found
        return self._dequantized[dtype]


def _scales_before_cast(compiled: CompiledModel) -> dict[str, float]:
    """The embedding tables whose rows are cast to a dtype of smaller range, with the factor that scales them before."""
    if compiled.dtype is not DType.FLOAT16 or compiled.embedding_dtype in (None, DType.FLOAT16):
        return {}
    factors: dict[Value, tuple[str, float]] = {}
    found = {}
    for node in compiled.graphs.build().finish().nodes:
        source = node.inputs[0]
        if node.operator == "embedding" and (table := node.inputs[1]) is not None:
            factors[node.outputs[0]] = table.name, 1.0
        elif source in factors and node.operator == "scale":
            name, factor = factors[source]
            factors[node.outputs[0]] = name, factor * float(str(node.attributes["factor"]))
        elif source in factors and node.operator == "cast":
            name, found[name] = factors[source]
    return found


def _check_castable(table: Any, factor: float, dtype: DType) -> None:
    """InvalidArgumentError if scaled values of a table [rows, width] are beyond `dtype`."""
    import numpy as np

    num_rows = max(1, _PIECE_BYTES // max(1, table[:1].nbytes))
    pieces = (table[begin : begin + num_rows].astype(np.float32) for begin in range(0, len(table), num_rows))
    largest = factor * max((float(np.abs(piece).max(initial=0)) for piece in pieces), default=0.0)
    with np.errstate(over="ignore"):
        is_castable = np.isfinite(np.asarray(largest).astype(dtype.numpy))
    if not is_castable:
        scaled = "" if factor == 1 else f" times {factor:g}"
        raise InvalidArgumentError(
            f"Its values{scaled} are up to {largest:.4g}, beyond {dtype}, to which looked-up embeddings are cast; pass "
            "bfloat16 or float32 as dtype."
        )


def open_constants(compiled: CompiledModel, shared: Mapping[str, Tensor] | None = None) -> ConstantStore:
    """Open the store of constants from which a model's plans load their weights.

    `shared` are constants of another model, by key.
    """
    computed = dict(compiled.computed)
    if compiled.parallel is not None:
        parts = compiled.parallel.parts
        computed |= {
            name: part.of(computed[part.parameter]) for name, part in parts.items() if part.parameter in computed
        }
    types = compiled.parameter_types
    if compiled.adapters is not None:
        computed |= compiled.adapters.parameters
        types |= compiled.adapters.types
    opened = compiled.open_device
    return ConstantStore(
        opened.backend,
        opened.device,
        _Parameters(compiled, computed, types).read,
        types,
        WeightCache.of(compiled),
        shared,
    )


def stored_formats(source: ModelSource, model: CausalLM | TextEncoder) -> dict[str, WeightFormat]:
    """Return the formats of a checkpoint's quantised tensors, by the names of the model's parameters."""
    formats = source.weight_formats()
    if not formats or not isinstance(model, AdaptsWeights):
        return formats
    tensors = model.adapt(source.weights())
    found = {name: tensors.info(name).weight_format for name in tensors.names}
    return {name: format for name, format in found.items() if format is not None}


def stored_tensors(source: ModelSource, model: CausalLM | TextEncoder, wanted: Collection[str]) -> StoredTensors:
    """Return a checkpoint with the names of a model's parameters, `wanted`, without checking it against the model."""
    return _in_names_of(source.weights(), model, wanted)


def _in_names_of(stored: StoredTensors, model: CausalLM | TextEncoder, wanted: Collection[str]) -> StoredTensors:
    stored = with_full_model_names(stored, wanted)
    return model.adapt(stored) if isinstance(model, AdaptsWeights) else stored


def remapped_checkpoint(
    source: ModelSource, model: CausalLM, wanted: Collection[str]
) -> tuple[StoredTensors, StoredTensors] | None:
    """Return a checkpoint with the names of a model's parameters, `wanted`, and as it is stored.

    None if the model reads it as it is stored.
    """
    if not isinstance(model, AdaptsWeights):
        return None
    stored = with_full_model_names(source.weights(), wanted)
    return model.adapt(stored), stored


def _open_checkpoint(
    compiled: CompiledModel, types: Mapping[str, TensorType], stored: StoredTensors | None
) -> TensorSource:
    from aethermind.checkpoint.dummy import DummyCheckpoint
    from aethermind.checkpoint.source import match_names

    shapes = {
        name: tuple(dim for dim in type.shape if isinstance(dim, int))
        for name, type in types.items()
        if name not in compiled.computed
    }
    if compiled.config.load_format == "dummy":
        return DummyCheckpoint(shapes, compiled.dtype.numpy, compiled.config.seed)
    checkpoint = _in_names_of(stored or compiled.source.weights(), compiled.model, shapes)
    ignored = (*_zero_bias_names(checkpoint), *_zero_biases(checkpoint, shapes), *_CACHE_SCALES, _MTP)
    found = match_names(shapes, checkpoint, ignore=(*compiled.ignored_names, *ignored))
    for name, info in found.items():
        if info.weight_format is None and info.dtype.kind in "biu" and types[name].dtype.is_floating:
            raise CheckpointError(
                f"{name} is stored in {info.dtype}: these are integer codes of a quantisation that "
                "config.json does not describe. Take the model itself, or quantised by gptq or awq, or as .gguf."
            )
    if compiled.model.config.tie_word_embeddings and not compiled.is_encoder:
        _check_tied(checkpoint, [name for name in checkpoint.names if name not in found], found)
    return checkpoint


def _zero_bias_names(checkpoint: StoredTensors) -> tuple[str, ...]:
    """Return `zero_bias_names`, which has its former name `neutral_names` in older implementations of the interface."""
    names: tuple[str, ...] | None = getattr(checkpoint, "zero_bias_names", None)
    return checkpoint.neutral_names if names is None else names  # type: ignore[attr-defined]


def _zero_biases(checkpoint: TensorSource, shapes: Collection[str]) -> list[str]:
    """Return biases of zeros, which some tools write for modules without a bias. They are ignored."""
    import numpy as np

    extra = [name for name in checkpoint.names if name.endswith(_BIAS) and name not in shapes]
    biases = [name for name in extra if name.removesuffix(_BIAS) + _WEIGHT in shapes]
    return [name for name in biases if not np.any(np.asarray(checkpoint.array(name)))]


def _check_tied(checkpoint: TensorSource, unread: Iterable[str], read: Mapping[str, TensorInfo]) -> None:
    """CheckpointError if a tied model's checkpoint has an output matrix that differs from its embeddings."""
    if HEAD not in unread or checkpoint.info(HEAD).weight_format is not None:
        return
    head = checkpoint.info(HEAD)
    alike = [name for name, info in read.items() if info.shape == head.shape and info.weight_format is None]
    if not any(_are_same(checkpoint, HEAD, name) for name in alike):
        raise CheckpointError(
            f"config.json ties the output to the embeddings, and the checkpoint has a {HEAD} of other values. Set "
            f"tie_word_embeddings to false in config.json, or take {HEAD} out of the checkpoint."
        )


def _are_same(checkpoint: TensorSource, *names: str) -> bool:
    """Whether two tensors of one shape are equal bit by bit, after both are rounded to the narrower dtype.

    They are read piece by piece, and their mapped pages are dropped afterwards.
    """
    import numpy as np

    left, right = (np.ascontiguousarray(checkpoint.array(name)).reshape(-1) for name in names)
    narrow = min((left.dtype, right.dtype), key=lambda dtype: dtype.itemsize)
    num_values = _PIECE_BYTES // narrow.itemsize

    def bits(array: np.ndarray[Any, Any], begin: int) -> np.ndarray[Any, Any]:
        return array[begin : begin + num_values].astype(narrow, copy=False).view(np.uint8)

    with np.errstate(over="ignore"):
        are_same = all(
            np.array_equal(bits(left, begin), bits(right, begin)) for begin in range(0, left.size, num_values)
        )
    for array in (left, right):
        drop_mapped_pages(array)
    return are_same


HEAD = "lm_head.weight"
_PREFIX = "model."
_EMBEDDINGS = "embed_tokens.weight"
_EXPERTS = ".experts."
"""Part of the names of experts, which the checkpoint stores one by one; the model's parameters are stacks of them."""


def is_base_model(source: ModelSource, wanted: Collection[str]) -> bool:
    """Whether a checkpoint is of a base model, without the output matrix that is among the `wanted` names.

    A full model has `model.embed_tokens.weight` and `lm_head.weight`. A base model (transformers: AutoModel), as which
    text encoders are published, has `embed_tokens.weight` and no output matrix.
    """
    if not {HEAD, _PREFIX + _EMBEDDINGS} <= set(wanted):
        return False
    try:
        stored = source.names()
    except CheckpointError:  # opening the weights raises it again
        return False
    return _EMBEDDINGS in stored and HEAD not in stored


def with_full_model_names(stored: StoredTensors, wanted: Collection[str]) -> StoredTensors:
    """Rename a base model's tensors to the names of a full model, and the only matrix of a tied model to its
    embeddings.

    Of the two names of a tied matrix, safetensors' `save_model` keeps the alphabetically first: the output matrix.
    """
    names = set(stored.names)
    if (
        _PREFIX + _EMBEDDINGS in wanted
        and HEAD not in wanted
        and HEAD in names
        and not names & {_EMBEDDINGS, _PREFIX + _EMBEDDINGS}
    ):
        return AdaptedTensors(stored, {_PREFIX + _EMBEDDINGS: TensorSlice(HEAD)})
    if _EMBEDDINGS not in names or any(name.startswith(_PREFIX) for name in names):
        return stored
    renamed = [name for name in names if _PREFIX + name in wanted or _EXPERTS in name]
    return AdaptedTensors(stored, {_PREFIX + name: TensorSlice(name) for name in renamed})
