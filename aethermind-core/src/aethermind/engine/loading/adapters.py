"""An engine's LoRA adapters: read, checked against the model, and concatenated for its graphs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from aethermind.engine.loading.adapter_choice import AdapterChoice
from aethermind.errors import CheckpointError, InvalidArgumentError
from aethermind.graph.ir import Graph
from aethermind.graph.low_rank import adaptable_weights, part_names, with_adapters
from aethermind.hal.dtype import DType
from aethermind.model.hub import local_path
from aethermind.ops.dims import resolve
from aethermind.ops.operator import OperatorRegistry
from aethermind.ops.schema import TensorType

if TYPE_CHECKING:
    from aethermind.checkpoint.lora_adapter import Adapter
    from aethermind.checkpoint.remapped import StoredRows
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
    """

    choices: Mapping[str, AdapterChoice]
    ranks: Mapping[str, int]
    parameters: Mapping[str, Array]

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
        from aethermind.checkpoint.lora_adapter import Adapter

        shapes = {name: resolve(type.shape, {}) for name, type in adaptable_weights(graph, operators).items()}
        matrices = {name: (shape[0], shape[1]) for name, shape in shapes.items()}
        stored, rows = (matrices, None) if remapped is None else _stored_matrices(matrices, *remapped)
        adapters = {name: Adapter.read(local_path(path, "adapter"), stored) for name, path in paths.items()}
        if rows is not None:
            adapters = {name: adapter.sliced(rows) for name, adapter in adapters.items()}
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
        """Add the adapters' low-rank products to a graph."""
        return with_adapters(graph, operators, self.ranks, len(self.choices))

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
            raise InvalidArgumentError(f"There is no adapter {name!r:.100}; there are {', '.join(self.choices)}.")
        return self.choices[name]


def _stored_matrices(
    matrices: Mapping[str, tuple[int, int]], view: StoredTensors, stored: StoredTensors
) -> tuple[dict[str, tuple[int, int]], dict[str, StoredRows]]:
    """Return [N, K] of the stored matrices by name, and by weight which rows of them it is; weights that are not rows
    of one are left out.
    """
    from aethermind.checkpoint.remapped import rows_of_stored

    names = set(stored.names)
    found: dict[str, tuple[int, int]] = {}
    rows: dict[str, StoredRows] = {}
    for weight, (_, num_inputs) in matrices.items():
        one = rows_of_stored(view, weight, stored)
        if one is not None and one.stored_name in names:
            num_rows, num_columns = stored.info(one.stored_name).shape  # [N, K], or stored as [K, N]
            found[one.stored_name] = (num_rows if num_columns == num_inputs else num_columns, num_inputs)
            rows[weight] = one
    return found, rows


def _joined(weight: str, adapters: Mapping[str, Adapter], dtype: DType) -> tuple[Array, Array, Array]:
    """Concatenate `down`, `up` and `cu_ranks` of a weight over all adapters; one that does not change it has rank 0."""
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
