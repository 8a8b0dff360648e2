"""Calls of one signature (operator, types of inputs, attributes): a plan, made once, that each call runs.

The operator is a graph of one node, which is lowered like a model's graph. Inputs and results are in memory of the
caller, so each call sets their addresses in the plan.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from aethermind.dispatch import Dispatcher, Fallback
from aethermind.dispatch.kernel import Pack
from aethermind.eager.arrays import Array, ArrayKind, NumpyKind, PackedKind, pack_into
from aethermind.eager.native_call import NativeCall, Slot
from aethermind.errors import OperatorError
from aethermind.graph.builder import GraphBuilder
from aethermind.graph.compile import Compiled, compile_graph
from aethermind.graph.executor import Executable, StepLoop
from aethermind.graph.ir import Value
from aethermind.graph.plan import Operand, Place, Plan, Step
from aethermind.hal.backend import Backend
from aethermind.hal.memory import Buffer
from aethermind.ops.dims import resolve
from aethermind.ops.operator import Operator, OperatorRegistry
from aethermind.ops.schema import Attribute, TensorSpec, TensorType

__all__ = [
    "BoundCall",
    "CheckedCall",
    "InlineCall",
    "RESULT",
    "SignatureCall",
    "SignaturePlan",
    "SubmittedCall",
    "bind_call",
    "check_inputs",
    "plan_signature",
]

RESULT = "result."
"""Results are states of the plan, called `result.0`, `result.1` and so on; names of inputs have no dot."""


@dataclass(frozen=True, slots=True)
class SignaturePlan:
    """The plan of a signature: inputs and results are in the caller's memory, intermediate values in an arena.

    `aliases` has for each result the position of the input whose memory it is, or None for a new array.
    """

    operator: Operator
    plan: Plan
    packs: Mapping[str, Pack]
    results: tuple[TensorType, ...]
    aliases: tuple[int | None, ...]
    attributes: Mapping[str, Attribute]

    @property
    def nbytes(self) -> int:
        """The total bytes of the operands of all steps."""
        return sum(operand.type.nbytes({}) for operand in self.plan.operands())


def plan_signature(
    operator: Operator,
    operators: OperatorRegistry,
    dispatcher: Dispatcher,
    device_type: str,
    types: Sequence[TensorType | None],
    attributes: Mapping[str, Attribute],
) -> SignaturePlan:
    """Plan one signature.

    OperatorError if it does not fit the schema, KernelNotFoundError if no kernel computes it.
    """
    schema = operator.schema
    all_attributes = schema.complete(attributes)
    schema.infer(types, all_attributes)
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
        _with_results_in_own_memory(compiled, operators),
        compiled.plan.packs(),
        tuple(value.type for value in results),
        tuple(None if spec.alias is None else names.index(spec.alias) for spec in schema.outputs),
        all_attributes,
    )


def _declare(builder: GraphBuilder, spec: TensorSpec, type: TensorType, *, is_changed: bool) -> Value:
    if is_changed:
        return builder.state(spec.name, type.dtype, type.shape)
    if spec.kind == "W":  # only parameters can be packed
        return builder.parameter(spec.name, type.shape, type.dtype)
    return builder.input(spec.name, type.dtype, type.shape)


def _with_results_in_own_memory(compiled: Compiled, operators: OperatorRegistry) -> Plan:
    """Return the plan with every result in memory of its own, as a state, instead of the arena."""
    memory, graph = compiled.memory, compiled.graph
    result_of_root = {
        memory.roots[value.name]: name for name, value in graph.outputs.items() if memory.offset(value.name) is not None
    }

    def moved(operand: Operand, value: Value) -> Operand:
        result = result_of_root.get(memory.roots[value.name])
        return operand if result is None else Operand(Place.STATE, result, operand.type)

    nodes = [node for node in graph.nodes if not operators[node.operator].schema.is_view]
    steps = []
    for step, node in zip(compiled.plan.steps, nodes, strict=True):
        inputs = tuple(
            None if operand is None or value is None else moved(operand, value)
            for operand, value in zip(step.inputs, node.inputs, strict=False)  # an older kernel may take fewer inputs
        )
        outputs = tuple(moved(operand, value) for operand, value in zip(step.outputs, node.outputs, strict=True))
        steps.append(replace(step, inputs=inputs, outputs=outputs))
    return replace(compiled.plan, steps=tuple(steps), arena_bytes=_arena_bytes(steps))


def _arena_bytes(steps: Sequence[Step]) -> int:
    operands = [operand for step in steps for operand in (*step.inputs, *step.outputs) if operand is not None]
    ends = [operand.offset_bytes + operand.type.nbytes({}) for operand in operands if operand.place is Place.ARENA]
    return max(ends, default=0)


BoundCall = Callable[[Sequence[Array | None]], Any]
"""A function that runs a plan with inputs of its signature and returns the results."""

_MAX_INLINE_BYTES = 64 << 10
"""Up to this size, submitting the work to other threads takes longer than the work."""


def bind_call(planned: SignaturePlan, kinds: Sequence[ArrayKind | None], backend: Backend) -> BoundCall:
    """Return a call of a plan, which runs small native plans in the caller's thread, others on the backend's stream."""
    is_small = planned.nbytes <= _MAX_INLINE_BYTES and backend.capabilities.is_host_accessible
    is_inline = is_small and planned.plan.steps and NativeCall.can_run(planned.plan)
    call = (InlineCall if is_inline else SubmittedCall)(planned, kinds, backend)
    return call if planned.operator.check is None else CheckedCall(call, planned, kinds)


class CheckedCall:
    """A call that first checks its inputs by `Operator.check`."""

    def __init__(self, call: SignatureCall, planned: SignaturePlan, kinds: Sequence[ArrayKind | None]) -> None:
        self._call = call
        self._planned = planned
        self._kinds = kinds

    def __call__(self, tensors: Sequence[Array | None]) -> Any:
        """Check and run; OperatorError says which index is out of range."""
        check_inputs(self._planned, tensors, self._kinds)
        return self._call(tensors)


def check_inputs(planned: SignaturePlan, tensors: Sequence[Array | None], kinds: Sequence[ArrayKind | None]) -> None:
    """Raise OperatorError if `Operator.check` refuses the inputs, which fit the schema."""
    operator = planned.operator
    if operator.check is None:
        return
    outputs = zip(operator.schema.outputs, planned.results, strict=True)
    import numpy as np

    integers: dict[str, Any] = {
        name: np.int64(value) for name, value in planned.attributes.items() if isinstance(value, int)
    }
    shapes = {spec.name: resolve(type.shape, {}) for spec, type in outputs}
    for spec, kind, tensor in zip(operator.schema.inputs, kinds, tensors, strict=True):
        if kind is not None and tensor is not None:
            shapes[spec.name] = tuple(tensor.shape)
            if spec.kind in ("i32", "i64"):
                readable = tensor if kind.address(tensor) is not None else kind.contiguous(tensor)
                integers[spec.name] = kind.numpy(readable)
    try:
        operator.check(integers, shapes)
    except OperatorError as error:
        raise OperatorError(f"Operator {operator.name}: {error} Signature: {operator.schema.text}") from None


class SignatureCall:
    """The base of calls: finds the addresses of inputs and makes results.

    Several threads may call it; they run one after another. It has no references to arrays of the caller.
    """

    def __init__(self, planned: SignaturePlan, kinds: Sequence[ArrayKind | None], backend: Backend) -> None:
        self._lock = threading.RLock()
        self._planned = planned
        self._backend = backend
        self._kinds = kinds
        self._names = [spec.name for spec in planned.operator.schema.inputs]
        kind: ArrayKind = next((kind for kind in kinds if kind is not None), NumpyKind())
        self._result_kind = kind
        self._shapes = [resolve(type.shape, {}) for type in planned.results]
        self._result_makers = [
            (position, kind.new(type.dtype, shape))
            for position, (type, shape, alias) in enumerate(
                zip(planned.results, self._shapes, planned.aliases, strict=True)
            )
            if alias is None
        ]
        self._changed_inputs = [alias for alias in planned.aliases if alias is not None and planned.plan.steps]
        self._has_one_new_result = planned.aliases == (None,)
        self._packs_in_call = [each for each in self._packs() if not isinstance(kinds[each[1]], PackedKind)]

    def _contiguous(self, tensors: Sequence[Array | None]) -> tuple[Array | None, ...]:
        """Return the inputs, with copies of those that have no address.

        OperatorError if the operator changes such an input in place.
        """
        return tuple(
            None if kind is None else self._contiguous_input(position, kind, tensor)
            for position, (kind, tensor) in enumerate(zip(self._kinds, tensors, strict=True))
        )

    def _contiguous_input(self, position: int, kind: ArrayKind, tensor: Array) -> Array:
        if kind.address(tensor) is not None:
            return tensor
        contiguous = kind.contiguous(tensor)
        if position in self._changed_inputs:
            raise OperatorError(
                f"Operator {self._planned.operator.name} changes its input {self._names[position]!r} in place, "
                "which must be row-major and aligned, and require no gradients; pass a contiguous copy."
            )
        return contiguous

    def _check_writable(self, tensors: Sequence[Array | None]) -> None:
        for position in self._changed_inputs:
            kind = self._kinds[position]
            if kind is not None and not kind.is_writable(tensors[position]):
                raise OperatorError(
                    f"Operator {self._planned.operator.name} changes its input {self._names[position]!r} in place, "
                    "which is read-only; pass a copy."
                )

    def _results(self, new: dict[int, Array], tensors: Sequence[Array | None]) -> Any:
        """Return the results: new arrays, or inputs that were changed, or inputs in another shape."""
        results = []
        for position, (alias, shape) in enumerate(zip(self._planned.aliases, self._shapes, strict=True)):
            if alias is None:
                results.append(new[position])
            else:
                tensor: Array = tensors[alias]
                results.append(tensor if tuple(tensor.shape) == shape else tensor.reshape(shape))
        return results[0] if len(results) == 1 else tuple(results)

    def _sources(self) -> list[tuple[int, Callable[[Array], int | None], list[Slot]]]:
        """Return how addresses are set: (position of an input, function from it to its address, slots for that)."""
        sources: list[tuple[int, Callable[[Array], int | None], list[Slot]]] = []
        for position, (name, kind) in enumerate(zip(self._names, self._kinds, strict=True)):
            if kind is not None:
                places = (Place.INPUT, Place.STATE, Place.CONSTANT)
                sources.append((position, kind.address, [(place, name) for place in places]))
        for key, position, pack in self._packs():
            kind = self._kinds[position]
            if isinstance(kind, PackedKind):
                sources.append((position, kind.packed_address(pack), [(Place.CONSTANT, key)]))
        return sources

    def _packs(self) -> list[tuple[str, int, Pack]]:
        """Return the constants that kernels read packed: (key, position of the input, layout)."""
        return [
            (key, self._names.index(name), self._planned.packs[pack_name])
            for key, (name, pack_name, _) in self._planned.plan.constants.items()
            if pack_name is not None
        ]

    def _pack_weights(self, tensors: Sequence[Array | None], buffers: dict[str, Buffer]) -> None:
        """Pack the weights that were passed as arrays into `buffers`."""
        for key, position, pack in self._packs_in_call:
            kind = self._kinds[position]
            assert kind is not None, "an absent input has no operand"
            pack_into(buffers[key], pack, kind.numpy(tensors[position]), self._backend)

    def _pack_buffers(self) -> dict[str, Buffer]:
        """Allocate buffers for the weights that are passed as arrays, by key."""
        types = {operand.name: operand for operand in self._planned.plan.operands() if operand.place is Place.CONSTANT}
        return {
            key: self._backend.allocator.alloc(pack.nbytes(resolve(types[key].shape, {}), types[key].dtype))
            for key, _, pack in self._packs_in_call
        }

    def __call__(self, tensors: Sequence[Array | None]) -> Any:
        """Run with inputs of the call's signature."""
        raise NotImplementedError


class InlineCall(SignatureCall):
    """A call of small native steps in the caller's thread."""

    def __init__(self, planned: SignaturePlan, kinds: Sequence[ArrayKind | None], backend: Backend) -> None:
        super().__init__(planned, kinds, backend)
        self._native = NativeCall(planned.plan)
        self._buffers = self._pack_buffers()
        for key, buffer in self._buffers.items():
            self._native.set_address((Place.CONSTANT, key), buffer.address)
        self._inputs = [
            (position, address_of, tuple(word for slot in slots for word in self._native.address_words(slot)))
            for position, address_of, slots in self._sources()
        ]
        self._outputs = [
            (position, make, self._native.address_words((Place.STATE, f"{RESULT}{position}")))
            for position, make in self._result_makers
        ]

    def __call__(self, tensors: Sequence[Array | None]) -> Any:
        if self._changed_inputs:
            self._check_writable(tensors)
        with self._lock:
            for position, address_of, address_words in self._inputs:
                address = address_of(tensors[position])
                if address is None:
                    return self(self._contiguous(tensors))
                for words, index in address_words:
                    words[index] = address
            if self._buffers:
                self._pack_weights(tensors, self._buffers)
            address_of = self._result_kind.address
            new = {}
            for position, make, address_words in self._outputs:
                new[position] = result = make()
                for words, index in address_words:
                    words[index] = address_of(result)
            self._native.run()
        return result if self._has_one_new_result else self._results(new, tensors)


class SubmittedCall(SignatureCall):
    """A call on the thread's current stream of the device.

    The plan is compiled again if addresses differ from those of the last call. On a device with memory of its own it is
    compiled for each call, because an address of the last call may belong to other memory now.
    """

    def __init__(self, planned: SignaturePlan, kinds: Sequence[ArrayKind | None], backend: Backend) -> None:
        super().__init__(planned, kinds, backend)
        used = {(operand.place, operand.name) for operand in planned.plan.operands()}
        self._inputs = [
            (position, address_of, [slot for slot in slots if slot in used])
            for position, address_of, slots in self._sources()
        ]
        self._memory: dict[Slot, int] = {}
        self._executable: Executable | None = None
        self._may_reuse = backend.capabilities.is_host_accessible

    def __call__(self, tensors: Sequence[Array | None]) -> Any:
        plan = self._planned.plan
        if not plan.steps:  # the operator is a view, which needs no address
            return self._results({}, tensors)
        if self._changed_inputs:
            self._check_writable(tensors)
        memory: dict[Slot, int] = {}
        for position, address_of, slots in self._inputs:
            address = address_of(tensors[position])
            if address is None:
                return self(self._contiguous(tensors))
            for slot in slots:
                memory[slot] = address
        new = {position: make() for position, make in self._result_makers}
        for position, result in new.items():
            memory[Place.STATE, f"{RESULT}{position}"] = _address(self._result_kind, result)
        buffers = self._pack_buffers() if self._packs_in_call else {}
        for key, buffer in buffers.items():
            memory[Place.CONSTANT, key] = buffer.address
        self._pack_weights(tensors, buffers)
        arena = self._backend.allocator.alloc(plan.arena_bytes) if plan.arena_bytes else None
        memory[Place.ARENA, ""] = arena.address if arena else 0
        with self._lock:
            if self._executable is None or memory != self._memory or not self._may_reuse:
                self._executable = self._backend.compile(plan, memory) or StepLoop(plan, memory)
                self._memory = memory
            stream = self._backend.streams.current(self._backend.devices.current())
            self._executable.run((), stream)
            stream.synchronize()
        return self._results(new, tensors)


def _address(kind: ArrayKind, array: Array) -> int:
    address = kind.address(array)
    assert address is not None, "new arrays have an address"
    return address
