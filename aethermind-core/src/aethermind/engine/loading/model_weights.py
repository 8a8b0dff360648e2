"""A planned model's weights: its checkpoint, held against the parameters that the plan has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from aethermind.engine.loading.planned_model import PlannedModel
from aethermind.engine.loading.tensor_parallel import PartialTensors
from aethermind.engine.weight_cache import WeightCache
from aethermind.graph.constants import ConstantStore
from aethermind.model.architecture import AdaptsWeights
from aethermind.ops.schema import TensorType

if TYPE_CHECKING:
    from aethermind.checkpoint.source import TensorSource
    from aethermind.model.input_processor import InputProcessor

__all__ = ["open_constants", "open_input_processor", "open_weights"]


def open_weights(planned: PlannedModel) -> TensorSource:
    """The checkpoint's tensors, and a rank's parts of them, checked against the model name by name.

    CheckpointError says what does not fit.
    """
    parts = {} if planned.parallel is None else planned.parallel.parts
    types = {name: type for name, type in planned.parameter_types.items() if name not in parts}
    whole = _open_checkpoint(planned, types | {part.parameter: part.whole for part in parts.values()})
    return PartialTensors(whole, parts) if parts else whole


def open_constants(planned: PlannedModel, changed: Mapping[str, Any] | None = None) -> ConstantStore:
    """Where the plans of a model get their weights from; `changed` are parameters that differ from the checkpoint's."""
    kept = None if changed else WeightCache.of(planned)
    source, computed = open_weights(planned), {**planned.computed, **(changed or {})}
    opened = planned.open_device
    return ConstantStore(
        opened.backend,
        opened.device,
        lambda name: computed[name] if name in computed else source.array(name),
        planned.parameter_types,
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
    checkpoint = planned.source.weights()
    if isinstance(planned.model, AdaptsWeights):
        checkpoint = planned.model.adapt(checkpoint)
    match_names(shapes, checkpoint, ignore=(*planned.ignored_names, *checkpoint.neutral_names))
    return checkpoint


def open_input_processor(planned: PlannedModel) -> InputProcessor | None:
    """The model's input processor over its checkpoint, or None if no package has one."""
    create = planned.create_input_processor
    return None if create is None else create(planned.source.weights())
