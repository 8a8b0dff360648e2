"""One call's plan: the operator as a graph of one node, lowered, with its results in memory that the caller gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from aethermind.dispatch import Dispatcher, Fallback
from aethermind.dispatch.kernel import Pack
from aethermind.graph.builder import GraphBuilder
from aethermind.graph.compile import Compiled, compile_graph
from aethermind.graph.ir import Value
from aethermind.graph.plan import Operand, Place, Plan, Step
from aethermind.ops.operator import Operator, OperatorRegistry
from aethermind.ops.schema import Attribute, TensorSpec, TensorType

__all__ = ["RESULT", "SignaturePlan", "plan_signature"]

RESULT = "result."
"""Results are states of the plan, by this prefix and their position: no operator's input has a dot in its name."""


@dataclass(frozen=True, slots=True)
class SignaturePlan:
    """A plan over whole tensors: inputs and results in the caller's memory, the rest in an arena.

    `aliases` gives for each result the position of the input whose memory it is, or None for a new one.
    """

    operator: Operator
    plan: Plan
    packs: Mapping[str, Pack]
    results: tuple[TensorType, ...]
    aliases: tuple[int | None, ...]

    @property
    def nbytes(self) -> int:
        """Bytes that the steps' operands have together, those of an operand once a step."""
        return sum(operand.type.nbytes({}) for operand in self.plan.operands())


def plan_signature(
    operator: Operator,
    operators: OperatorRegistry,
    dispatcher: Dispatcher,
    device_type: str,
    types: Sequence[TensorType | None],
    attributes: Mapping[str, Attribute],
) -> SignaturePlan:
    """Resolve one signature.

    OperatorError where it does not fit the schema, KernelNotFoundError where nobody computes it.
    """
    schema = operator.schema
    schema.infer(types, schema.complete(attributes))
    builder = GraphBuilder(operator.name, operators)
    aliased = {spec.alias for spec in schema.outputs}
    values = [
        None if type is None else _declare(builder, spec, type, is_changed=spec.name in aliased)
        for spec, type in zip(schema.inputs, types, strict=True)
    ]
    results = builder.op(operator.name, *values, **attributes)
    results = results if isinstance(results, tuple) else (results,)
    for position, value in enumerate(results):
        builder.output(f"{RESULT}{position}", value)
    compiled = compile_graph(builder.finish(), operators, dispatcher, device_type, {}, fallback=Fallback.ALLOW)
    names = [spec.name for spec in schema.inputs]
    return SignaturePlan(
        operator,
        _with_results_outside(compiled, operators),
        compiled.plan.packs(),
        tuple(value.type for value in results),
        tuple(None if spec.alias is None else names.index(spec.alias) for spec in schema.outputs),
    )


def _declare(builder: GraphBuilder, spec: TensorSpec, type: TensorType, *, is_changed: bool) -> Value:
    if is_changed:
        return builder.state(spec.name, type.dtype, type.shape)
    if spec.kind == "W":  # only a parameter can be had in a kernel's own packing
        return builder.parameter(spec.name, type.shape, type.dtype)
    return builder.input(spec.name, type.dtype, type.shape)


def _with_results_outside(compiled: Compiled, operators: OperatorRegistry) -> Plan:
    """The plan with every result in a memory of its own instead of the arena."""
    memory, graph = compiled.memory, compiled.graph
    owners = {
        memory.roots[value.name]: name for name, value in graph.outputs.items() if memory.offset(value.name) is not None
    }

    def moved(operand: Operand, value: Value) -> Operand:
        owner = owners.get(memory.roots[value.name])
        return operand if owner is None else Operand(Place.STATE, owner, operand.type)

    nodes = [node for node in graph.nodes if not operators[node.operator].schema.is_view]
    steps = []
    for step, node in zip(compiled.plan.steps, nodes, strict=True):
        inputs = tuple(
            None if operand is None or value is None else moved(operand, value)
            for operand, value in zip(step.inputs, node.inputs, strict=True)
        )
        outputs = tuple(moved(operand, value) for operand, value in zip(step.outputs, node.outputs, strict=True))
        steps.append(replace(step, inputs=inputs, outputs=outputs))
    return replace(compiled.plan, steps=tuple(steps), arena_bytes=_arena_bytes(steps))


def _arena_bytes(steps: Sequence[Step]) -> int:
    operands = [operand for step in steps for operand in (*step.inputs, *step.outputs) if operand is not None]
    ends = [operand.offset_bytes + operand.type.nbytes({}) for operand in operands if operand.place is Place.ARENA]
    return max(ends, default=0)
