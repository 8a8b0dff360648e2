"""Memory planning: places a graph's intermediate values in one arena, a buffer that each run of a plan uses again.

Values that are alive at the same time get different bytes; others may share bytes, so the arena is small, and a run
allocates nothing. Views and in-place results share the storage that they alias. Placement is greedy, one storage after
another at its lowest free offset (Pisarchyk & Lee 2020, "Efficient Memory Management for Deep Neural Net Inference").
The best of several orders is used; the search ends at the first that reaches the lower bound (Joslin & Clements 1999,
"Squeaky Wheel Optimization").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

from aethermind.graph.ir import Graph, Node, Value
from aethermind.hal.memory import ALIGNMENT, align_up
from aethermind.ops.operator import OperatorRegistry
from aethermind.ops.schema import OperatorSchema

__all__ = ["MemoryPlan", "Storage", "plan_memory"]

_NUM_REORDERINGS = 64


@dataclass(slots=True)
class Storage:
    """Bytes of the arena that one or more values share, alive from node `first` to node `last` (indices).

    `name` is the value that owns them. `offset` is -1 until the storage is placed.
    """

    name: str
    nbytes: int
    first: int
    last: int
    offset: int = -1

    def overlaps(self, other: Storage) -> bool:
        """Whether both are alive at some node."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The memory of every value.

    `roots` maps each value to the value that owns its memory, and `storages[root]` is that memory if it is in the
    arena. `lower_bound_bytes` is the largest sum of the storages that are alive at one node: no arena can be smaller.
    """

    roots: Mapping[str, str]
    storages: Mapping[str, Storage]
    arena_bytes: int
    lower_bound_bytes: int

    def offset(self, name: str) -> int | None:
        """Return the byte offset of a value in the arena; None where its memory is an input, parameter or state."""
        storage = self.storages.get(self.roots[name])
        return storage.offset if storage else None


def plan_memory(graph: Graph, operators: OperatorRegistry, symbols: Mapping[str, int]) -> MemoryPlan:
    """Place every computed value of a graph. `symbols` maps the name of each symbolic dim to its largest size."""
    sharing = _Sharing(graph, symbols)
    for position, node in enumerate(graph.nodes):
        sharing.add(position, node, operators[node.operator].schema)
    storages = list(sharing.storages.values())
    lower_bound_bytes = _lower_bound(storages, len(graph.nodes))
    arena_bytes = _place(storages, lower_bound_bytes)
    return MemoryPlan(sharing.roots, sharing.storages, arena_bytes, lower_bound_bytes)


class _Sharing:
    """Finds the values that share a storage, node by node in the order of computation."""

    def __init__(self, graph: Graph, symbols: Mapping[str, int]) -> None:
        self.roots = {value.name: value.name for value in (*graph.inputs, *graph.parameters, *graph.states)}
        self.storages: dict[str, Storage] = {}
        self._symbols = symbols
        self._last_use = _last_uses(graph)

    def add(self, position: int, node: Node, schema: OperatorSchema) -> None:
        """Assign a storage to each output of a node: an input's where it aliases it or may reuse it, or a new one."""
        assigned: set[str] = set()
        for index, value in enumerate(node.outputs):
            spec = schema.outputs[index]
            if spec.alias is not None:
                root = self._root_of_input(node, schema, spec.alias)
                assert root is not None, "an aliased input cannot be absent"
            else:
                root = self._reusable_root(position, node, schema, spec.inplace, value)
                root = value.name if root is None or root in assigned else root
                assigned.add(root)
            self._assign(value, root, position)

    def _assign(self, value: Value, root: str, position: int) -> None:
        self.roots[value.name] = root
        last = self._last_use[value.name]
        if root == value.name:
            nbytes = value.type.nbytes(self._symbols)
            self.storages[root] = Storage(root, align_up(nbytes, ALIGNMENT), position, last)
        elif root in self.storages:
            self.storages[root].last = max(self.storages[root].last, last)

    def _root_of_input(self, node: Node, schema: OperatorSchema, name: str) -> str | None:
        source = node.inputs[[spec.name for spec in schema.inputs].index(name)]
        return None if source is None else self.roots[source.name]

    def _reusable_root(
        self, position: int, node: Node, schema: OperatorSchema, name: str | None, value: Value
    ) -> str | None:
        """Return the storage of the input called `name` if `value` may reuse it, else None.

        It may if nothing in that storage is used later, the kernel reads it as this input only, and types are equal.
        """
        root = None if name is None else self._root_of_input(node, schema, name)
        storage = None if root is None else self.storages.get(root)
        if storage is None or storage.last > position:
            return None
        readers = [source for source in node.inputs if source is not None and self.roots[source.name] == storage.name]
        return storage.name if [source.type for source in readers] == [value.type] else None


def _last_uses(graph: Graph) -> dict[str, int]:
    """Return the index of the last node that reads each value; outputs of the graph are read after the last node."""
    last = {value.name: position for position, node in enumerate(graph.nodes) for value in node.outputs}
    for position, node in enumerate(graph.nodes):
        last.update((value.name, position) for value in node.inputs if value is not None)
    last.update((value.name, len(graph.nodes)) for value in graph.outputs.values())
    return last


_ORDERS: tuple[Callable[[Storage], tuple[int, ...]], ...] = (
    lambda storage: (-storage.nbytes, storage.first),
    lambda storage: (storage.first - storage.last, -storage.nbytes),
    lambda storage: (storage.first, -storage.nbytes),
    lambda storage: (-storage.nbytes * (storage.last - storage.first + 1), storage.first),
)
"""Sort keys of the placement orders: by size, by lifetime, by first use, by the product of size and lifetime."""


def _place(storages: Sequence[Storage], lower_bound_bytes: int) -> int:
    """Assign an offset to every storage; return the bytes of the arena."""
    best = min(_placements(storages, lower_bound_bytes), key=lambda placement: placement.arena_bytes)
    for storage, offset in zip(best.order, best.offsets, strict=True):
        storage.offset = offset
    return best.arena_bytes


def _placements(storages: Sequence[Storage], lower_bound_bytes: int) -> Iterator[_Placement]:
    """Yield placements in the orders of `_ORDERS`, then repeatedly one with the last one's highest storage first."""
    placement = _Placement([], [], 0)
    for attempt in range(len(_ORDERS) + _NUM_REORDERINGS):
        order = sorted(storages, key=_ORDERS[attempt]) if attempt < len(_ORDERS) else placement.highest_first()
        placement = _first_fit(order)
        yield placement
        if placement.arena_bytes == lower_bound_bytes:
            return


@dataclass(frozen=True, slots=True)
class _Placement:
    """Offsets of storages in the arena, in the order in which they were placed."""

    order: Sequence[Storage]
    offsets: Sequence[int]
    arena_bytes: int

    def highest_first(self) -> list[Storage]:
        """Return the order with the storage that reaches highest moved to the front."""
        ends = [offset + storage.nbytes for storage, offset in zip(self.order, self.offsets, strict=True)]
        highest = ends.index(self.arena_bytes)
        return [self.order[highest], *self.order[:highest], *self.order[highest + 1 :]]


def _first_fit(order: Sequence[Storage]) -> _Placement:
    """Place one storage after another at the lowest offset where no storage lies that is alive at the same time."""
    placed: list[tuple[int, Storage]] = []
    for storage in order:
        offset = 0
        conflicting = [(start, other) for start, other in placed if other.overlaps(storage)]
        for start, other in sorted(conflicting, key=itemgetter(0)):
            if start >= offset + storage.nbytes:
                break
            offset = max(offset, start + other.nbytes)
        placed.append((offset, storage))
    offsets = [offset for offset, _ in placed]
    return _Placement(order, offsets, max((offset + storage.nbytes for offset, storage in placed), default=0))


def _lower_bound(storages: Sequence[Storage], num_nodes: int) -> int:
    """Return the most bytes that are alive at one node."""
    changes = [0] * (num_nodes + 2)
    for storage in storages:
        changes[storage.first] += storage.nbytes
        changes[storage.last + 1] -= storage.nbytes
    live = peak = 0
    for change in changes:
        live += change
        peak = max(peak, live)
    return peak
