"""Placing a graph's intermediate values in one arena, so that a step allocates nothing.

Values that are alive at the same time get different bytes; others share. Views and in-place results join the storage they alias.
Placement is greedy, largest first at the lowest free offset (Pisarchyk & Lee 2020, "Efficient Memory Management for Deep Neural Net
Inference"), tried in a few orders of which the best is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from aethermind.graph.ir import Graph, Node, Value, ValueKind
from aethermind.hal.layout import align_up, num_elements
from aethermind.ops.dims import resolve
from aethermind.ops.operator import OperatorRegistry

__all__ = ["MemoryPlan", "Storage", "plan_memory"]

ALIGNMENT = 64


@dataclass(slots=True)
class Storage:
    """Bytes that one or more values share, alive from node `first` to node `last`. Mutable while the plan is made."""

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
    """Where every value lives: `storages[root]` for values in the arena; `roots` maps each value to the value that owns its memory."""

    roots: Mapping[str, str]
    storages: Mapping[str, Storage]
    arena_bytes: int
    lower_bound_bytes: int

    def offset(self, name: str) -> int | None:
        """Byte offset of a value in the arena, or None when it lives in memory given from outside."""
        storage = self.storages.get(self.roots[name])
        return storage.offset if storage else None


def plan_memory(graph: Graph, operators: OperatorRegistry, symbols: Mapping[str, int]) -> MemoryPlan:
    """Place every computed value of a graph for symbols of at most these sizes."""
    last_use = _last_uses(graph)
    roots = {value.name: value.name for value in (*graph.inputs, *graph.parameters, *graph.states)}
    storages: dict[str, Storage] = {}
    for position, node in enumerate(graph.nodes):
        taken: set[str] = set()
        for index, value in enumerate(node.outputs):
            root = _shared_root(node, index, position, operators, roots, storages, last_use, taken, symbols)
            roots[value.name] = value.name if root is None else root
            if root is None:
                nbytes = align_up(_nbytes(value, symbols), ALIGNMENT)
                storages[value.name] = Storage(value.name, nbytes, position, last_use[value.name])
            elif root in storages:
                taken.add(root)
                storages[root].last = max(storages[root].last, last_use[value.name])
    arena_bytes = _place(list(storages.values()))
    return MemoryPlan(roots, storages, arena_bytes, _lower_bound(list(storages.values()), len(graph.nodes)))


def _last_uses(graph: Graph) -> dict[str, int]:
    last = {value.name: position for position, node in enumerate(graph.nodes) for value in node.outputs}
    for position, node in enumerate(graph.nodes):
        last.update((value.name, position) for value in node.inputs if value is not None)
    last.update((value.name, len(graph.nodes)) for value in graph.outputs.values())
    return last


def _shared_root(
    node: Node,
    index: int,
    position: int,
    operators: OperatorRegistry,
    roots: Mapping[str, str],
    storages: Mapping[str, Storage],
    last_use: Mapping[str, int],
    taken: set[str],
    symbols: Mapping[str, int],
) -> str | None:
    """The storage an output must join (an alias) or may take over (in place, when it dies here and has the same size)."""
    schema = operators[node.operator].schema
    spec = schema.outputs[index]
    names = [tensor.name for tensor in schema.inputs]
    if spec.alias is not None:
        source = node.inputs[names.index(spec.alias)]
        assert source is not None, "an aliased input cannot be absent"
        return roots[source.name]
    if spec.inplace is None:
        return None
    source = node.inputs[names.index(spec.inplace)]
    if source is None or source.kind is not ValueKind.COMPUTED:
        return None
    storage = storages.get(roots[source.name])
    if storage is None or storage.name in taken or storage.last > position:
        return None
    same_size = align_up(_nbytes(node.outputs[index], symbols), ALIGNMENT) == storage.nbytes
    return storage.name if same_size else None


def _nbytes(value: Value, symbols: Mapping[str, int]) -> int:
    return num_elements(resolve(value.type.shape, symbols)) * value.type.dtype.itemsize


def _place(storages: Sequence[Storage]) -> int:
    """Give every storage an offset, in the best of a few orders; returns the bytes of the arena."""
    orders: list[Callable[[Storage], tuple[int, ...]]] = [
        lambda s: (-s.nbytes, s.first),
        lambda s: (s.first - s.last, -s.nbytes),
        lambda s: (s.first, -s.nbytes),
        lambda s: (-s.nbytes * (s.last - s.first + 1), s.first),
    ]
    best: tuple[int, list[int]] | None = None
    for order in orders:
        size = _place_in_order(sorted(storages, key=order))
        if best is None or size < best[0]:
            best = (size, [storage.offset for storage in storages])
    assert best is not None
    for storage, offset in zip(storages, best[1], strict=True):
        storage.offset = offset
    return best[0]


def _place_in_order(storages: Sequence[Storage]) -> int:
    placed: list[Storage] = []
    for storage in storages:
        offset = 0
        for other in sorted((o for o in placed if o.overlaps(storage)), key=lambda o: o.offset):
            if other.offset >= offset + storage.nbytes:
                break
            offset = max(offset, other.offset + other.nbytes)
        storage.offset = offset
        placed.append(storage)
    return max((storage.offset + storage.nbytes for storage in placed), default=0)


def _lower_bound(storages: Sequence[Storage], num_nodes: int) -> int:
    """The most bytes alive at any one node: no placement can be smaller."""
    changes = [0] * (num_nodes + 2)
    for storage in storages:
        changes[storage.first] += storage.nbytes
        changes[storage.last + 1] -= storage.nbytes
    live = peak = 0
    for change in changes:
        live += change
        peak = max(peak, live)
    return peak
