"""What enqueues a plan's steps, remembered step by step under the sizes that it depends on."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import chain

from aethermind.graph.plan import Operand, Place, Plan, Step
from aethermind.ops.dims import Shape, SymDim

__all__ = ["BoundSteps", "Enqueue"]

_MOST_SIZES = 32
"""Of a step: those that came up last."""

Enqueue = Callable[[int], None]
"""Puts work on a stream, by the driver's handle."""


class BoundSteps:
    """Sizes change from run to run, and most only for some steps: where a sampler's lists grow with every token, what
    the model's own steps enqueue stays.
    """

    def __init__(self, plan: Plan) -> None:
        positions = {name: position for position, name in enumerate(plan.symbols)}
        self._depends = [sorted(positions[name] for name in _symbols_of(plan, step)) for step in plan.steps]
        self._bound: list[OrderedDict[tuple[int, ...], list[Enqueue]]] = [OrderedDict() for _ in plan.steps]

    def of_step(self, position: int, symbols: tuple[int, ...], bind: Callable[[], list[Enqueue]]) -> list[Enqueue]:
        """What enqueues a step in a run with these symbols: as remembered, or made by `bind`."""
        known, sizes = self._bound[position], tuple([symbols[index] for index in self._depends[position]])
        work = known.get(sizes)
        if work is None:
            work = known[sizes] = bind()
            if len(known) > _MOST_SIZES:
                known.popitem(last=False)
        else:
            known.move_to_end(sizes)
        return work


def _symbols_of(plan: Plan, step: Step) -> set[str]:
    """The symbols that a step's shapes and addresses depend on: an input lies behind all that come before it."""
    operands = [operand for operand in (*step.inputs, *step.outputs) if operand is not None]
    found = {symbol for operand in operands for symbol in _symbols_in(operand.shape)}
    last = max((_input_position(plan, operand) for operand in operands), default=-1)
    before = list(plan.inputs.values())[: max(last, 0)]
    return found.union(chain.from_iterable(_symbols_in(type.shape) for type in before))


def _input_position(plan: Plan, operand: Operand) -> int:
    return list(plan.inputs).index(operand.name) if operand.place is Place.INPUT else -1


def _symbols_in(shape: Shape) -> set[str]:
    return {dim.symbol for dim in shape if isinstance(dim, SymDim)}
