"""A cache of the launches of a plan's steps, keyed by the sizes that each step depends on."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import chain

from aethermind.graph.plan import Operand, Place, Plan, Step
from aethermind.ops.dims import Shape, SymDim
from aethermind_cuda.launch import Enqueue

__all__ = ["LaunchCache"]

_MAX_CACHED_SIZES = 32
"""LRU capacity per step."""


class LaunchCache:
    """Caches launches per step, so that a change of one size (such as the sampler's lists, which grow with every token)
    does not rebind the other steps.
    """

    def __init__(self, plan: Plan) -> None:
        positions = {name: position for position, name in enumerate(plan.symbols)}
        self._symbol_positions = [sorted(positions[name] for name in _symbols_of(plan, step)) for step in plan.steps]
        self._launches_by_step: list[OrderedDict[tuple[int, ...], list[Enqueue]]] = [OrderedDict() for _ in plan.steps]

    def get(
        self, position: int, symbols: tuple[int, ...], bind: Callable[[int, tuple[int, ...]], list[Enqueue]]
    ) -> list[Enqueue]:
        """Return the launches of a step for these symbols, cached or made by `bind`."""
        cached = self._launches_by_step[position]
        sizes = tuple([symbols[index] for index in self._symbol_positions[position]])
        launches = cached.get(sizes)
        if launches is None:
            launches = cached[sizes] = bind(position, symbols)
            if len(cached) > _MAX_CACHED_SIZES:
                cached.popitem(last=False)
        else:
            cached.move_to_end(sizes)
        return launches


def _symbols_of(plan: Plan, step: Step) -> set[str]:
    """The symbols that a step's shapes and addresses depend on; an input's address depends on the inputs before it."""
    operands = [operand for operand in (*step.inputs, *step.outputs) if operand is not None]
    found = {symbol for operand in operands for symbol in _symbols_in(operand.shape)}
    last = max((_input_position(plan, operand) for operand in operands), default=-1)
    before = list(plan.inputs.values())[: max(last, 0)]
    return found.union(chain.from_iterable(_symbols_in(type.shape) for type in before))


def _input_position(plan: Plan, operand: Operand) -> int:
    return list(plan.inputs).index(operand.name) if operand.place is Place.INPUT else -1


def _symbols_in(shape: Shape) -> set[str]:
    return {dim.symbol for dim in shape if isinstance(dim, SymDim)}
