"""LoRA adapters that are loaded and unloaded while an engine runs, into slots of a fixed number and rank.

The parameters of all slots are allocated when the model is loaded: those of slot `i` are rows `i * max_rank` to
`(i + 1) * max_rank` of each weight's `down` and `up` (see `graph.low_rank`), padded by zeros. So plans and addresses
remain, and loading an adapter writes its rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from aethermind.engine.loading.adapter_choice import AdapterChoice
from aethermind.errors import CheckpointError, ConfigError, InvalidArgumentError
from aethermind.graph.low_rank import adaptable_weights, part_names, with_adapters
from aethermind.model.hub import local_path
from aethermind.ops.dims import resolve

if TYPE_CHECKING:
    from aethermind.checkpoint.lora_adapter import Adapter
    from aethermind.checkpoint.remapped import StoredRows
    from aethermind.checkpoint.source import StoredTensors
    from aethermind.graph.ir import Graph
    from aethermind.hal.dtype import DType
    from aethermind.ops.operator import OperatorRegistry

__all__ = ["AdapterReader", "AdapterSlots", "ChangedRows", "in_dtype", "weights_of_slots"]

Array = Any


class ChangedRows(NamedTuple):
    """Rows of a parameter that have changed: from `begin` on, and the whole parameter."""

    parameter: str
    begin: int
    rows: Array
    whole: Array


@dataclass(frozen=True, slots=True)
class AdapterReader:
    """Reads adapters for one model.

    `matrices` are the model's weights that may be adapted, [N, K] by name; `stored` are those of the checkpoint, whose
    names adapters use, and `rows` which rows of them each weight is, if they differ.
    """

    matrices: Mapping[str, tuple[int, int]]
    stored: Mapping[str, tuple[int, int]]
    rows: Mapping[str, StoredRows] | None

    @classmethod
    def of(
        cls, graph: Graph, operators: OperatorRegistry, remapped: tuple[StoredTensors, StoredTensors] | None
    ) -> AdapterReader:
        """The reader for a graph; `remapped` as in `Adapters.read`."""
        shapes = {name: resolve(type.shape, {}) for name, type in adaptable_weights(graph, operators).items()}
        matrices = {name: (shape[0], shape[1]) for name, shape in shapes.items()}
        stored, rows = (matrices, None) if remapped is None else _stored_matrices(matrices, *remapped)
        return cls(matrices, stored, rows)

    def read(self, path: str) -> Adapter:
        """Read an adapter from a directory or the Hugging Face Hub. ConfigError and CheckpointError."""
        from aethermind.checkpoint.lora_adapter import Adapter

        adapter = Adapter.read(local_path(path, "adapter"), dict(self.stored))
        return adapter if self.rows is None else adapter.sliced(self.rows)


class AdapterSlots:
    """The slots of an engine: which adapter each holds, and their parameters. Mutable.

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
        total = num_slots * max_rank
        self.ranks = dict.fromkeys(weights, total)
        self.parameters: dict[str, Array] = {}
        for weight in weights:
            num_outputs, num_inputs = reader.matrices[weight]
            arrays = (
                np.zeros((total, num_inputs), dtype.numpy),
                np.zeros((total, num_outputs), dtype.numpy),
                np.arange(0, total + 1, max_rank, dtype=np.int32),
            )
            self.parameters.update(zip(part_names(weight), arrays, strict=True))

    def load(self, name: str, path: str, in_use: Collection[int]) -> list[ChangedRows]:
        """Read an adapter into a free slot, under a new name, and return what has changed.

        `in_use` are the slots of open requests. InvalidArgumentError if the name is taken or no slot is free;
        ConfigError and CheckpointError if the adapter does not fit the model or the slots.
        """
        if name in self.choices:
            raise InvalidArgumentError(f"The adapter {name!r:.100} is loaded already. Unload it first.")
        taken = {*in_use, *(choice.number for choice in self.choices.values())}
        number = next((number for number in range(self.num_slots) if number not in taken), None)
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
        changed = list(self._rows(name, adapter, number))
        for _, begin, rows, whole in changed:
            whole[begin : begin + len(rows)] = rows
        self.choices[name] = AdapterChoice(number, b"adapter " + adapter.digest)
        return changed

    def unload(self, name: str) -> None:
        """Forget an adapter; open requests keep it. InvalidArgumentError for an unknown name."""
        if name not in self.choices:
            loaded = f"there are {', '.join(self.choices)}" if self.choices else "none is loaded"
            raise InvalidArgumentError(f"There is no adapter {name!r:.100}; {loaded}.")
        del self.choices[name]

    def _rows(self, name: str, adapter: Adapter, number: int) -> Iterator[ChangedRows]:
        import numpy as np

        begin = number * self._max_rank
        for weight in self.ranks:
            update = adapter.updates.get(weight)
            for side, parameter in zip(("down", "up"), part_names(weight), strict=False):
                whole = self.parameters[parameter]
                rows = np.zeros((self._max_rank, whole.shape[1]), whole.dtype)
                if update is not None:
                    rows[: update.rank] = in_dtype(self._dtype, getattr(update, side), name, weight)
                yield ChangedRows(parameter, begin, rows, whole)


def weights_of_slots(
    graph: Graph, operators: OperatorRegistry, reader: AdapterReader, num_slots: int, max_rank: int
) -> list[str]:
    """The weights that every adapter of slots may change: those of products whose rows are tokens."""
    weights = [name for name in reader.matrices if reader.rows is None or name in reader.rows]
    ranks = dict.fromkeys(weights, num_slots * max_rank)

    def may_have(some: Collection[str]) -> bool:
        try:
            with_adapters(graph, operators, {name: ranks[name] for name in some}, num_slots)
        except ConfigError:
            return False
        return True

    return weights if may_have(weights) else [name for name in weights if may_have([name])]


def in_dtype(dtype: DType, array: Array, name: str, weight: str) -> Array:
    """What the adapter `name` adds to a weight, in the dtype of the model; CheckpointError if that overflows."""
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
