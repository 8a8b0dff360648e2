"""An engine's LoRA adapters: read, checked against the model, and concatenated for its graphs.

Adapters are loaded with the model (`Adapters.read`), or also while the engine runs, into slots of a fixed number and
rank (`AdapterSlots`). The parameters of all slots are allocated when the model is loaded: those of slot `i` are rows
`i * max_rank` to `(i + 1) * max_rank` of each weight's `down` and `up` (see `graph.low_rank`), padded by zeros. So
plans and addresses remain, and loading an adapter writes its rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from aethermind.errors import CheckpointError, ConfigError, InvalidArgumentError
from aethermind.graph.ir import Graph
from aethermind.graph.low_rank import adaptable_weights, lora_parameter_names, with_adapters
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

__all__ = [
    "AdapterChoice",
    "AdapterReader",
    "AdapterSlots",
    "Adapters",
    "ChangedRows",
    "NO_ADAPTER",
    "in_dtype",
    "weights_of_slots",
]

Array = Any


class AdapterChoice(NamedTuple):
    """The LoRA adapter of a request: its number in the graphs, and a key for the prefix cache.

    Requests with different keys share no KV blocks.
    """

    number: int
    key: bytes


NO_ADAPTER = AdapterChoice(-1, b"")
"""The choice of a request without an adapter."""


class ChangedRows(NamedTuple):
    """New rows of a parameter from index `begin` on, and the array of the whole parameter."""

    parameter: str
    begin: int
    rows: Array
    whole: Array


@dataclass(frozen=True, slots=True)
class AdapterReader:
    """Reads adapters for one model.

    Attributes:
        matrices: the shapes [N, K] of the model's weights that may be adapted, by name.
        stored: the shapes of the checkpoint's matrices, whose names adapters use.
        rows: which rows of a stored matrix each weight is; None if the names are the same.
    """

    matrices: Mapping[str, tuple[int, int]]
    stored: Mapping[str, tuple[int, int]]
    rows: Mapping[str, StoredRows] | None

    @classmethod
    def of(
        cls, graph: Graph, operators: OperatorRegistry, remapped: tuple[StoredTensors, StoredTensors] | None
    ) -> AdapterReader:
        """Create the reader for a graph; `remapped` is as for `Adapters.read`."""
        shapes = {name: resolve(type.shape, {}) for name, type in adaptable_weights(graph, operators).items()}
        matrices = {name: (shape[0], shape[1]) for name, shape in shapes.items()}
        stored, rows = (matrices, None) if remapped is None else _stored_matrices(matrices, *remapped)
        return cls(matrices, stored, rows)

    def read(self, path: str) -> Adapter:
        """Read an adapter from a directory or the Hugging Face Hub.

        Raises ConfigError and CheckpointError if it is damaged or does not fit the model.
        """
        from aethermind.checkpoint.lora_adapter import Adapter

        adapter = Adapter.read(local_path(path, "adapter"), dict(self.stored))
        return adapter if self.rows is None else adapter.sliced(self.rows)


class AdapterSlots:
    """The adapter slots of an engine: which adapter each holds, and the parameters of all. Mutable.

    `choices` are the adapters that requests can name. An adapter that was unloaded keeps its slot until no request uses
    it.
    """

    def __init__(
        self, reader: AdapterReader, weights: Collection[str], num_slots: int, max_rank: int, dtype: DType
    ) -> None:
        import numpy as np

        self.num_slots = num_slots
        self.choices: dict[str, AdapterChoice] = {}
        self._reader = reader
        self._max_rank = max_rank
        self._dtype = dtype
        total_rank = num_slots * max_rank
        self.ranks = dict.fromkeys(weights, total_rank)
        self.parameters: dict[str, Array] = {}
        for weight in weights:
            num_outputs, num_inputs = reader.matrices[weight]
            arrays = (
                np.zeros((total_rank, num_inputs), dtype.numpy),
                np.zeros((total_rank, num_outputs), dtype.numpy),
                np.arange(0, total_rank + 1, max_rank, dtype=np.int32),
            )
            self.parameters.update(zip(lora_parameter_names(weight), arrays, strict=True))

    def load(self, name: str, path: str, in_use: Collection[int]) -> list[ChangedRows]:
        """Read an adapter into a free slot, under a new name; returns the changed rows of parameters.

        `in_use` are the slots of open requests. InvalidArgumentError if the name is taken or no slot is free;
        ConfigError and CheckpointError if the adapter does not fit the model or the slots.
        """
        if name in self.choices:
            raise InvalidArgumentError(f"The adapter {name!r:.100} is loaded already. Unload it first.")
        used_slots = {*in_use, *(choice.number for choice in self.choices.values())}
        number = next((number for number in range(self.num_slots) if number not in used_slots), None)
        if number is None:
            raise InvalidArgumentError(
                f"All {self.num_slots} slots for adapters are in use. Unload one of {', '.join(self.choices) or 'them'}"
                ", wait for its requests, or start with a larger max_loras."
            )
        adapter = self._reader.read(path)
        if unknown := sorted(adapter.updates.keys() - self.ranks.keys()):
            raise CheckpointError(f"The adapter {name} changes {unknown[0]}, which cannot be adapted while running.")
        rank = max(update.rank for update in adapter.updates.values())
        if rank > self._max_rank:
            raise ConfigError(
                f"The adapter {name} has rank {rank}, and slots have rank {self._max_rank}. Start with --max-lora-rank "
                f"{rank} or more."
            )
        changed = list(self._changed_rows(name, adapter, number))
        for _, begin, rows, whole in changed:
            whole[begin : begin + len(rows)] = rows
        self.choices[name] = AdapterChoice(number, b"adapter " + adapter.digest)
        return changed

    def unload(self, name: str) -> None:
        """Remove the name of an adapter; open requests keep its slot. InvalidArgumentError for an unknown name."""
        if name not in self.choices:
            loaded = f"there are {', '.join(self.choices)}" if self.choices else "none is loaded"
            raise InvalidArgumentError(f"There is no adapter {name!r:.100}; {loaded}.")
        del self.choices[name]

    def _changed_rows(self, name: str, adapter: Adapter, number: int) -> Iterator[ChangedRows]:
        import numpy as np

        begin = number * self._max_rank
        for weight in self.ranks:
            update = adapter.updates.get(weight)
            for side, parameter in zip(("down", "up"), lora_parameter_names(weight), strict=False):
                whole = self.parameters[parameter]
                rows = np.zeros((self._max_rank, whole.shape[1]), whole.dtype)
                if update is not None:
                    rows[: update.rank] = in_dtype(self._dtype, getattr(update, side), name, weight)
                yield ChangedRows(parameter, begin, rows, whole)


def weights_of_slots(
    graph: Graph, operators: OperatorRegistry, reader: AdapterReader, num_slots: int, max_rank: int
) -> list[str]:
    """Return the weights that adapters in slots may change: those of products whose rows are tokens."""
    weights = [name for name in reader.matrices if reader.rows is None or name in reader.rows]
    ranks = dict.fromkeys(weights, num_slots * max_rank)

    def can_adapt(names: Collection[str]) -> bool:
        try:
            with_adapters(graph, operators, {name: ranks[name] for name in names}, num_slots)
        except ConfigError:
            return False
        return True

    return weights if can_adapt(weights) else [name for name in weights if can_adapt([name])]


def in_dtype(dtype: DType, array: Array, name: str, weight: str) -> Array:
    """Convert what the adapter `name` adds to a weight to the dtype of the model; CheckpointError if it overflows."""
    import numpy as np

    with np.errstate(over="ignore"):
        converted = array.astype(dtype.numpy)
    if not np.isfinite(converted.astype(np.float32)).all():
        raise CheckpointError(
            f"What the adapter {name} adds to {weight} has values beyond {dtype}; pass bfloat16 or float32 as dtype."
        )
    return converted


def _stored_matrices(
    matrices: Mapping[str, tuple[int, int]], view: StoredTensors, stored: StoredTensors
) -> tuple[dict[str, tuple[int, int]], dict[str, StoredRows]]:
    """Return the shapes [N, K] of stored matrices by name, and by weight the rows of one that it is.

    `view` is the checkpoint in the graph's names, `stored` as it is stored. Weights that are not rows of one stored
    matrix are left out.
    """
    from aethermind.checkpoint.remapped import rows_of_stored

    names = set(stored.names)
    shapes: dict[str, tuple[int, int]] = {}
    rows: dict[str, StoredRows] = {}
    for weight, (_, num_inputs) in matrices.items():
        part = rows_of_stored(view, weight, stored)
        if part is not None and part.stored_name in names:
            num_rows, num_columns = stored.info(part.stored_name).shape  # [N, K], or stored as [K, N]
            shapes[part.stored_name] = (num_rows if num_columns == num_inputs else num_columns, num_inputs)
            rows[weight] = part
    return shapes, rows


@dataclass(frozen=True, slots=True)
class Adapters:
    """The LoRA adapters of a compiled model.

    Attributes:
        choices: the adapters that requests can name, in the order of their numbers.
        ranks: the sum of all adapters' ranks, by weight.
        parameters: the parameters that graphs with adapters have besides the model's (see `graph.low_rank`).
        capacity: the number of adapters for which graphs are compiled.
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

        An adapter has the names and shapes of the checkpoint. If these differ from the graph's, `remapped` is the
        checkpoint in the graph's names, and as it is stored. Weights that are not rows of one stored matrix cannot be
        adapted then.

        ConfigError and CheckpointError say what is wrong with a directory, or what does not fit the model.
        """
        reader = AdapterReader.of(graph, operators, remapped)
        adapters = {name: reader.read(path) for name, path in paths.items()}
        ranks: dict[str, int] = {}
        parameters: dict[str, Array] = {}
        for weight in reader.matrices:
            if any(weight in adapter.updates for adapter in adapters.values()):
                arrays = _concatenated(weight, adapters, dtype)
                ranks[weight] = len(arrays[0])
                parameters.update(zip(lora_parameter_names(weight), arrays, strict=True))
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
        """Return the adapters with one tensor-parallel rank's parts of the parameters.

        `adapted` is a graph that has these parameters.
        """
        parallel.divide(adapted)
        parts = {
            name: part.of(self.parameters[part.parameter])
            for name, part in parallel.parts.items()
            if part.parameter in self.parameters
        }
        return replace(self, parameters={**self.parameters, **parts})

    def choose(self, name: str) -> AdapterChoice:
        """Return the adapter of that name; InvalidArgumentError for an unknown one lists the adapters."""
        if name not in self.choices:
            loaded = f"there are {', '.join(self.choices)}" if self.choices else "none is loaded"
            raise InvalidArgumentError(f"There is no adapter {name!r:.100}; {loaded}.")
        return self.choices[name]


def _concatenated(weight: str, adapters: Mapping[str, Adapter], dtype: DType) -> tuple[Array, Array, Array]:
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
