"""A planned model's weights: its checkpoint, held against the parameters that the plan has."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from aethermind.engine.loading.base_model import HEAD, with_whole_names
from aethermind.engine.loading.planned_model import PlannedModel
from aethermind.engine.loading.tensor_parallel import PartialTensors
from aethermind.engine.weight_cache import WeightCache
from aethermind.errors import CheckpointError
from aethermind.graph.constants import ConstantStore
from aethermind.hal.mapped import drop_mapped_pages
from aethermind.model.architecture import AdaptsWeights
from aethermind.ops.schema import TensorType

if TYPE_CHECKING:
    from aethermind.checkpoint.source import TensorInfo, TensorSource
    from aethermind.model.input_processor import InputProcessor

__all__ = ["open_constants", "open_input_processor", "open_weights"]

_PIECE_BYTES = 4 << 20
_WEIGHT, _BIAS = ".weight", ".bias"
_CACHE_SCALES = ("*.k_scale", "*.v_scale")
"""What keys and values are divided by where a cache holds them in 8 bits: ours has scales of its own."""


def open_weights(planned: PlannedModel) -> TensorSource:
    """The checkpoint's tensors, and a rank's parts of them, checked against the model name by name.

    CheckpointError says what does not fit.
    """
    parts = {} if planned.parallel is None else planned.parallel.parts
    of_adapters = () if planned.adapters is None else planned.adapters.parameters
    types = {name: type for name, type in planned.parameter_types.items() if name not in parts}
    types |= {part.parameter: part.whole for part in parts.values() if part.parameter not in of_adapters}
    whole = _open_checkpoint(planned, types)
    return PartialTensors(whole, parts) if parts else whole


def open_constants(planned: PlannedModel, changed: Mapping[str, Any] | None = None) -> ConstantStore:
    """Where the plans of a model get their weights from; `changed` are parameters that differ from the checkpoint's."""
    kept = None if changed else WeightCache.of(planned)
    source, computed = open_weights(planned), {**planned.computed, **(changed or {})}
    types = planned.parameter_types
    if planned.adapters is not None:
        computed |= planned.adapters.parameters
        types |= planned.adapters.types
    opened = planned.open_device
    return ConstantStore(
        opened.backend,
        opened.device,
        lambda name: computed[name] if name in computed else source.array(name),
        types,
        kept,
    )


def _open_checkpoint(planned: PlannedModel, types: Mapping[str, TensorType]) -> TensorSource:
    from aethermind.checkpoint.dummy import DummyCheckpoint
    from aethermind.checkpoint.name_map import match_names

    shapes = {
        name: tuple(dim for dim in type.shape if isinstance(dim, int))
        for name, type in types.items()
        if name not in planned.computed
    }
    if planned.config.load_format == "dummy":
        return DummyCheckpoint(shapes, planned.dtype.numpy, planned.config.seed)
    checkpoint = with_whole_names(planned.source.weights(), shapes)
    if isinstance(planned.model, AdaptsWeights):
        checkpoint = planned.model.adapt(checkpoint)
    neutral = (*checkpoint.neutral_names, *_neutral_names(checkpoint, shapes), *_CACHE_SCALES)
    found = match_names(shapes, checkpoint, ignore=(*planned.ignored_names, *neutral))
    for name, info in found.items():
        if info.weight_format is None and info.dtype.kind in "biu" and types[name].dtype.is_floating:
            raise CheckpointError(
                f"{name} is stored in {info.dtype}: these are no weights but codes of some quantisation, of which "
                "config.json says nothing. Take the model itself, or quantised by gptq or awq, or as .gguf."
            )
    if planned.model.config.tie_word_embeddings and not planned.is_encoder:
        _check_tied(checkpoint, [name for name in checkpoint.names if name not in found], found)
    return checkpoint


def _neutral_names(checkpoint: TensorSource, shapes: Collection[str]) -> list[str]:
    """Biases of zeros, which some tools write for modules that have none; others would change what is computed."""
    import numpy as np

    extra = [name for name in checkpoint.names if name.endswith(_BIAS) and name not in shapes]
    biases = [name for name in extra if name.removesuffix(_BIAS) + _WEIGHT in shapes]
    return [name for name in biases if not np.any(np.asarray(checkpoint.array(name)))]


def _check_tied(checkpoint: TensorSource, unread: Iterable[str], read: Mapping[str, TensorInfo]) -> None:
    """CheckpointError where an output matrix, which a tied model does not read, is not that of its embeddings."""
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
    """Whether two tensors of one shape are the same to the bit, rounded to the narrower dtype where they have two; read
    in pieces whose memory is let go.
    """
    import numpy as np

    left, right = (np.ascontiguousarray(checkpoint.array(name)).reshape(-1) for name in names)
    narrow = min((left.dtype, right.dtype), key=lambda dtype: dtype.itemsize)
    num_values = _PIECE_BYTES // narrow.itemsize

    def bits(array: np.ndarray[Any, Any], at: int) -> np.ndarray[Any, Any]:
        return array[at : at + num_values].astype(narrow, copy=False).view(np.uint8)

    with np.errstate(over="ignore"):
        are_same = all(np.array_equal(bits(left, at), bits(right, at)) for at in range(0, left.size, num_values))
    for array in (left, right):
        drop_mapped_pages(array)
    return are_same


def open_input_processor(planned: PlannedModel) -> InputProcessor | None:
    """The model's input processor over its checkpoint, or None if no package has one."""
    create = planned.create_input_processor
    return None if create is None else create(planned.source.weights())
