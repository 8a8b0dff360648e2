"""An engine's LoRA adapters: read, checked against the model, and concatenated for its graphs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from aethermind.engine.loading.adapter_choice import AdapterChoice
from aethermind.engine.loading.adapter_slots import AdapterReader, AdapterSlots, in_dtype, weights_of_slots
from aethermind.errors import InvalidArgumentError
from aethermind.graph.ir import Graph
from aethermind.graph.low_rank import part_names, with_adapters
from aethermind.hal.dtype import DType
from aethermind.ops.operator import OperatorRegistry
from aethermind.ops.schema import TensorType

if TYPE_CHECKING:
    from aethermind.checkpoint.lora_adapter import Adapter
    from aethermind.checkpoint.source import StoredTensors
    from aethermind.engine.loading.tensor_parallel import TensorParallel

__all__ = ["Adapters"]

Array = Any


@dataclass(frozen=True, slots=True)
class Adapters:
    """Adapters by name, in the order of their numbers.

    Attributes:
        ranks: the sum of all adapters' ranks, by weight.
        parameters: what graphs with adapters have in addition to the model's parameters (see `graph.low_rank`).
        capacity: the number of adapters that graphs have.
        slots: where adapters are loaded while the engine runs; None if all are loaded with the model.
    """

    choices: Mapping[str, AdapterChoice]
    ranks: Mapping[str, int]
    parameters: Mapping[str, Array]
    capacity: int
    slots: AdapterSlots | None = None

    @classmethod
    def read(
        cls,
        paths: Mapping[str, str],
        graph: Graph,
        operators: OperatorRegistry,
        dtype: DType,
        remapped: tuple[StoredTensors, StoredTensors] | None = None,
    ) -> Self:
        """Read adapters by name, from directories or the Hugging Face Hub, for a graph that computes in `dtype`.

        An adapter has the names and shapes of the checkpoint. `remapped` are the checkpoint in the graph's names and as
        it is stored, where these differ; weights that are not rows of one stored matrix cannot be adapted.

        ConfigError and CheckpointError say what is wrong with a directory, or what does not fit the model.
        """
        reader = AdapterReader.of(graph, operators, remapped)
        adapters = {name: reader.read(path) for name, path in paths.items()}
        ranks: dict[str, int] = {}
        parameters: dict[str, Array] = {}
        for weight in reader.matrices:
            if any(weight in adapter.updates for adapter in adapters.values()):
                joined = _joined(weight, adapters, dtype)
                ranks[weight] = len(joined[0])
                parameters.update(zip(part_names(weight), joined, strict=True))
        choices = {
            name: AdapterChoice(number, b"adapter " + adapter.digest)
            for number, (name, adapter) in enumerate(adapters.items())
        }
        return cls(choices, ranks, parameters, len(choices))

    @classmethod
    def with_slots(
        cls,
        paths: Mapping[str, str],
        graph: Graph,
        operators: OperatorRegistry,
        dtype: DType,
        remapped: tuple[StoredTensors, StoredTensors] | None = None,
        *,
        max_loras: int,
        max_rank: int,
    ) -> Self:
        """Like `read`, with `max_loras` slots for adapters of up to `max_rank`, of which `paths` take the first."""
        reader = AdapterReader.of(graph, operators, remapped)
        weights = weights_of_slots(graph, operators, reader, max_loras, max_rank)
        slots = AdapterSlots(reader, weights, max_loras, max_rank, dtype)
        for name, path in paths.items():
            slots.load(name, path, ())
        return cls(slots.choices, slots.ranks, slots.parameters, max_loras, slots)

    @property
    def types(self) -> dict[str, TensorType]:
        """The dtypes and shapes of `parameters`."""
        return {name: TensorType(DType.of_numpy(array.dtype), array.shape) for name, array in self.parameters.items()}

    def add_to(self, graph: Graph, operators: OperatorRegistry) -> Graph:
        """Add the adapters' low-rank products to a graph."""
        return with_adapters(graph, operators, self.ranks, self.capacity)

    def divided(self, parallel: TensorParallel, adapted: Graph) -> Adapters:
        """Add one tensor-parallel rank's parts of the parameters; `adapted` is a graph that contains the parameters."""
        parallel.divide(adapted)
        parts = {
            name: part.of(self.parameters[part.parameter])
            for name, part in parallel.parts.items()
            if part.parameter in self.parameters
        }
        return replace(self, parameters={**self.parameters, **parts})

    def choose(self, name: str) -> AdapterChoice:
        """The adapter of that name; InvalidArgumentError for an unknown one lists the adapters."""
        if name not in self.choices:
            loaded = f"there are {', '.join(self.choices)}" if self.choices else "none is loaded"
            raise InvalidArgumentError(f"There is no adapter {name!r:.100}; {loaded}.")
        return self.choices[name]


def _joined(weight: str, adapters: Mapping[str, Adapter], dtype: DType) -> tuple[Array, Array, Array]:
    """Concatenate `down`, `up` and `cu_ranks` of a weight over all adapters; one that does not change it has rank 0."""
    import numpy as np

    downs, ups, cuts = [], [], [0]
    for name, adapter in adapters.items():
        update = adapter.updates.get(weight)
        cuts.append(cuts[-1] + (0 if update is None else update.rank))
        if update is not None:
            downs.append(in_dtype(dtype, update.down, name, weight))
            ups.append(in_dtype(dtype, update.up, name, weight))
    return np.concatenate(downs), np.concatenate(ups), np.array(cuts, np.int32)
