"""Compilation of a graph to a plan: lowering, memory planning, binding of operands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aethermind.dispatch.dispatcher import Dispatcher, Fallback, Resolution
from aethermind.dispatch.kernel import Pack
from aethermind.graph.ir import Graph, Node, Value, ValueKind
from aethermind.graph.lowering import lower
from aethermind.graph.memory_plan import MemoryPlan, plan_memory
from aethermind.graph.plan import Constant, Operand, Place, Plan, Step
from aethermind.hal.dtype import DType
from aethermind.ops.dims import resolve
from aethermind.ops.operator import Operator, OperatorRegistry
from aethermind.ops.schema import TensorType
from aethermind.ops.weight_format import DENSE, WeightFormat

__all__ = ["Compiled", "compile_graph"]

_PLACES = {ValueKind.INPUT: Place.INPUT, ValueKind.PARAMETER: Place.CONSTANT, ValueKind.STATE: Place.STATE}


@dataclass(frozen=True, slots=True)
class Compiled:
    """A plan with the lowered graph, one resolution per step, and the memory plan.

    `fallbacks` are the operators that NumPy references compute because the device has no kernel.
    """

    plan: Plan
    graph: Graph
    resolutions: tuple[Resolution, ...]
    memory: MemoryPlan
    fallbacks: tuple[str, ...]


def compile_graph(
    graph: Graph,
    operators: OperatorRegistry,
    dispatcher: Dispatcher,
    device_type: str,
    symbols: Mapping[str, int],
    *,
    fallback: Fallback = Fallback.WARN,
    fuse: bool = True,
    weight_formats: Mapping[str, WeightFormat] | None = None,
    row_formats: Mapping[str, WeightFormat] | None = None,
    packed: Mapping[str, str] | None = None,
) -> Compiled:
    """Lower a graph for a device and place its memory.

    `symbols` maps the name of each symbolic dim to its largest size; a run passes sizes in the same order.
    `weight_formats` maps the names of parameters that operators read whole to their formats; other parameters are
    dense. `row_formats` maps those from which operators gather rows to the formats of these rows, and `packed` maps
    parameters to layouts in which they are in memory already; both are used where the device has a kernel (see
    `lower`). KernelNotFoundError when an operator has neither a kernel nor a decomposition.
    """
    weight_formats, row_formats = weight_formats or {}, row_formats or {}
    lowered = lower(
        graph,
        operators,
        dispatcher,
        device_type,
        fallback=fallback,
        fuse=fuse,
        weight_formats=weight_formats,
        row_formats=row_formats,
        packed=packed,
    )
    memory = plan_memory(lowered.graph, operators, symbols)
    external = {value.name: value for value in (*graph.inputs, *graph.parameters, *graph.states)}
    binder = _Binder(memory, external, weight_formats, row_formats)
    resolved = zip(lowered.graph.nodes, lowered.resolutions, strict=True)
    computed = [(node, resolution) for node, resolution in resolved if resolution is not None]
    steps = tuple(binder.step(node, operators[node.operator], resolution) for node, resolution in computed)
    plan = Plan(
        graph.name,
        steps,
        dict(symbols),
        memory.arena_bytes,
        {value.name: value.type for value in graph.inputs},
        {value.name: value.type for value in graph.states},
        binder.constants,
        {name: binder.operand(value) for name, value in graph.outputs.items()},
    )
    resolutions = tuple(resolution for _, resolution in computed)
    return Compiled(plan, lowered.graph, resolutions, memory, lowered.fallbacks)


class _Binder:
    """Turns nodes into steps and values into operands, and collects the constants of the plan.

    `external` are the values that no node computes, by name: inputs, parameters and states. `weight_formats` and
    `row_formats` are those of `compile_graph`.
    """

    def __init__(
        self,
        memory: MemoryPlan,
        external: Mapping[str, Value],
        weight_formats: Mapping[str, WeightFormat],
        row_formats: Mapping[str, WeightFormat],
    ) -> None:
        self._memory = memory
        self._external = external
        self._weight_formats = weight_formats
        self._row_formats = row_formats
        self.constants: dict[str, Constant] = {}

    def step(self, node: Node, operator: Operator, resolution: Resolution) -> Step:
        """Bind the operands of a node to the kernel that was chosen for it."""
        kernel = resolution.chosen
        assert kernel is not None
        formats = dict.fromkeys(operator.weight_inputs, self._weight_formats)
        if resolution.signature.weight_format != DENSE:
            formats |= dict.fromkeys(operator.gathered, self._row_formats)
        inputs = tuple(
            None
            if value is None
            else self.operand(value, kernel.packs.get(name), formats.get(name, {}).get(value.name))
            for name, value in zip((spec.name for spec in operator.schema.inputs), node.inputs, strict=True)
        )
        outputs = tuple(map(self.operand, node.outputs))
        operands, attributes = kernel.arguments(inputs, node.attributes, operator.additions)
        return Step(kernel, operands, outputs, attributes, tuple(value.name for value in node.outputs))

    def operand(self, value: Value, pack: Pack | None = None, format: WeightFormat | None = None) -> Operand:
        """Return a value's operand: bytes of the arena, of an input or state, or a constant in a pack or a format."""
        offset = self._memory.offset(value.name)
        if offset is not None:
            return Operand(Place.ARENA, "", value.type, offset)
        owner = self._external[self._memory.roots[value.name]]
        place = _PLACES[owner.kind]
        if place is not Place.CONSTANT:
            return Operand(place, owner.name, value.type)
        if pack is not None:
            expected = DENSE if format is None else format.name
            assert pack.weight_format == expected, (
                f"pack {pack.name} is for {pack.weight_format} weights, not {expected}"
            )
            key = f"{owner.name}#{pack.name}"
            self.constants[key] = Constant(owner.name, pack.name, format)
            nbytes = pack.nbytes(resolve(value.type.shape, {}), value.type.dtype)
            return Operand(place, key, value.type, packed_bytes=nbytes)
        if format is None:
            self.constants[owner.name] = Constant(owner.name)
            return Operand(place, owner.name, value.type)
        key = f"{owner.name}@{format.name}"
        self.constants[key] = Constant(owner.name, None, format)
        return Operand(place, key, TensorType(DType.FLOAT32, value.type.shape))
