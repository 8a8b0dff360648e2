"""The adapters that an engine was given: read, held against the model, and laid one after the other for its graphs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from aethermind import env
from aethermind.engine.loading.adapter_choice import AdapterChoice
from aethermind.errors import CheckpointError, InvalidArgumentError
from aethermind.graph.ir import Graph
from aethermind.graph.low_rank import adaptable_weights, part_names, with_adapters
from aethermind.hal.dtype import DType
from aethermind.ops.dims import resolve
from aethermind.ops.operator import OperatorRegistry
from aethermind.ops.schema import TensorType

if TYPE_CHECKING:
    from aethermind.checkpoint.adapter import Adapter
    from aethermind.engine.loading.tensor_parallel import TensorParallel

__all__ = ["Adapters"]

Array = Any


@dataclass(frozen=True, slots=True)
class Adapters:
    """Adapters by name, in the order of their numbers. `ranks` are those of all together, by weight; `parameters` are
    what graphs with adapters have besides the model's (see `graph.low_rank`).
    """

    choices: Mapping[str, AdapterChoice]
    ranks: Mapping[str, int]
    parameters: Mapping[str, Array]

    @classmethod
    def read(cls, paths: Mapping[str, str], graph: Graph, operators: OperatorRegistry, dtype: DType) -> Self:
        """Read directories by name for the model of a graph that computes in `dtype`.

        ConfigError and CheckpointError say what is wrong with a directory, or does not fit the model.
        """
        from aethermind.checkpoint.adapter import Adapter

        shapes = {name: resolve(type.shape, {}) for name, type in adaptable_weights(graph, operators).items()}
        matrices = {name: (shape[0], shape[1]) for name, shape in shapes.items()}
        adapters = {name: Adapter.read(env.expand_home(path), matrices) for name, path in paths.items()}
        ranks: dict[str, int] = {}
        parameters: dict[str, Array] = {}
        for weight in matrices:
            if any(weight in adapter.updates for adapter in adapters.values()):
                joined = _joined(weight, adapters, dtype)
                ranks[weight] = len(joined[0])
                parameters.update(zip(part_names(weight), joined, strict=True))
        choices = {
            name: AdapterChoice(number, b"adapter " + adapter.digest)
            for number, (name, adapter) in enumerate(adapters.items())
        }
        return cls(choices, ranks, parameters)

    @property
    def types(self) -> dict[str, TensorType]:
        """The dtypes and shapes of `parameters`."""
        return {name: TensorType(DType.of_numpy(array.dtype), array.shape) for name, array in self.parameters.items()}

    def add_to(self, graph: Graph, operators: OperatorRegistry) -> Graph:
        """The graph with what adapters add."""
        return with_adapters(graph, operators, self.ranks, len(self.choices))

    def divided(self, parallel: TensorParallel, adapted: Graph) -> Adapters:
        """The same with a rank's parts of the parameters besides the whole ones; `adapted` is a graph that has them."""
        parallel.divide(adapted)
        parts = {
            name: part.of(self.parameters[part.parameter])
            for name, part in parallel.parts.items()
            if part.parameter in self.parameters
        }
        return replace(self, parameters={**self.parameters, **parts})

    def choose(self, name: str) -> AdapterChoice:
        """The adapter of that name; InvalidArgumentError names those there are."""
        if name not in self.choices:
            raise InvalidArgumentError(f"There is no adapter {name!r:.100}; there are {', '.join(self.choices)}.")
        return self.choices[name]


def _joined(weight: str, adapters: Mapping[str, Adapter], dtype: DType) -> tuple[Array, Array, Array]:
    """`down`, `up` and `cu_ranks` of all adapters of a weight; one that does not change it has no ranks there."""
    import numpy as np

    downs, ups, cuts = [], [], [0]
    for name, adapter in adapters.items():
        update = adapter.updates.get(weight)
        cuts.append(cuts[-1] + (0 if update is None else update.rank))
        if update is not None:
            downs.append(_in(dtype, update.down, name, weight))
            ups.append(_in(dtype, update.up, name, weight))
    return np.concatenate(downs), np.concatenate(ups), np.array(cuts, np.int32)


def _in(dtype: DType, array: Array, name: str, weight: str) -> Array:
    import numpy as np

    with np.errstate(over="ignore"):
        converted = array.astype(dtype.numpy)
    if not np.isfinite(converted.astype(np.float32)).all():
        raise CheckpointError(
            f"What the adapter {name} adds to {weight} has values beyond {dtype}; pass bfloat16 or float32 as dtype."
        )
    return converted
