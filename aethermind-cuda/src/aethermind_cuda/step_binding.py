"""Binds the steps of a plan to launches for the sizes of a run.

The layers of a model are the same steps at other addresses. Binding a step takes many times as long as its launches. So
of the steps that differ in addresses only, one is bound with symbolic addresses (see `relocation`), and the others are
relocated copies of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from aethermind.errors import AetherMindError, DeviceError
from aethermind.graph.executor import MemoryMap, addresses_in_run
from aethermind.graph.plan import Operand, Place, Plan, Step
from aethermind.ops.dims import resolve
from aethermind_cuda.launch import Call, DeviceArray, DeviceFacts, Enqueue, KernelFunction, LaunchBinder, Relocate, Work
from aethermind_cuda.relocation import ALIGNMENT, symbolic_address

__all__ = ["StepBinder", "workspace_bytes"]

_Kind = tuple[int, tuple[int, ...]]
"""The key of a template: the number of the kind by `_number_kinds`, and `_alignments`."""

_Adjacent = tuple[tuple[int, int, int], ...]
"""Operands that directly follow others in memory: position, position of the first, and offset from it in bytes."""


class StepBinder:
    """Binds steps for the sizes of a run; templates are kept for the last sizes."""

    def __init__(self, plan: Plan, memory: MemoryMap, facts: DeviceFacts, binder: LaunchBinder, workspace: int) -> None:
        self._plan = plan
        self._memory = memory
        self._facts = facts
        self._binder = binder
        self._workspace = workspace
        self._operands = [
            [operand for operand in (*step.inputs, *step.outputs) if operand is not None] for step in plan.steps
        ]
        self._adjacent = [_adjacent(operands, memory) for operands in self._operands]
        self._kinds = _number_kinds(plan, self._adjacent)
        self._fixed = [self._fixed_addresses(operands) for operands in self._operands]
        self._symbols: tuple[int, ...] | None = None
        self._sizes: Mapping[str, int] = {}
        self._address: Callable[[Operand], int] = lambda _: 0
        self._templates: dict[_Kind, list[Relocate] | None] = {}

    def bind(self, position: int, symbols: tuple[int, ...]) -> list[Enqueue]:
        """Bind the launches of a step for runs with these symbols, in order."""
        if symbols != self._symbols:
            self._set_sizes(symbols)
        addresses_of_call = self._fixed[position] or _OperandAddresses(
            [*map(self._address, self._operands[position]), self._workspace]
        )
        step = self._plan.steps[position]
        if _function(step).is_relocatable:
            kind = self._kinds[position], addresses_of_call.alignments
            if kind not in self._templates:
                self._templates[kind] = self._template(step, addresses_of_call.alignments, self._adjacent[position])
            template = self._templates[kind]
            if template is not None:
                return [relocate(addresses_of_call.bases) for relocate in template]
        return self.bind_alone(step, addresses_of_call.addresses)

    def choose_algorithms(self, symbols: tuple[int, ...]) -> None:
        """Let libraries choose algorithms for runs with these symbols now, so that no run waits for that."""
        self._set_sizes(symbols)
        first_positions = {kind: position for position, kind in reversed([*enumerate(self._kinds)])}
        for position in first_positions.values():
            if _function(self._plan.steps[position]).has_heuristics:
                self.bind(position, symbols)

    def bind_alone(self, step: Step, addresses: Sequence[int]) -> list[Enqueue]:
        """Bind a step at the addresses of its operands and the workspace, without a template."""
        call = _call(step, self._sizes, addresses, self._facts)
        return [work.bind(self._binder) for work in _work(step, call)]

    def _set_sizes(self, symbols: tuple[int, ...]) -> None:
        self._sizes = dict(zip(self._plan.symbols, symbols, strict=True))
        self._address = addresses_in_run(self._plan, self._memory, self._sizes)
        self._templates.clear()
        self._symbols = symbols

    def _fixed_addresses(self, operands: Iterable[Operand]) -> _OperandAddresses | None:
        """The addresses of a step, if they do not depend on sizes (as those of inputs that share one buffer do)."""
        operands = list(operands)
        if (Place.INPUT, "") in self._memory and any(operand.place is Place.INPUT for operand in operands):
            return None
        address = addresses_in_run(self._plan, self._memory, self._plan.symbols)
        return _OperandAddresses([*map(address, operands), self._workspace])

    def _template(self, step: Step, alignments: Sequence[int], adjacent: _Adjacent) -> list[Relocate] | None:
        """Bind a step with symbolic addresses; None where some of its work cannot be relocated."""
        half = len(alignments) // 2
        addresses = [symbolic_address(*pair) for pair in zip(alignments[half:], alignments[:half], strict=True)]
        for position, first, distance in adjacent:
            addresses[position] = addresses[first] + distance
        template: list[Relocate] = []
        for work in _work(step, _call(step, self._sizes, addresses, self._facts)):
            bind: Callable[[LaunchBinder], Relocate | None] = getattr(work, "bind_relocatable", _cannot_relocate)
            relocate = bind(self._binder)
            if relocate is None:
                return None
            template.append(relocate)
        return template


class _OperandAddresses:
    """The addresses of a step's operands and workspace."""

    __slots__ = ("addresses", "alignments", "bases")

    def __init__(self, addresses: list[int]) -> None:
        self.addresses = addresses
        self.alignments = _alignments(addresses)
        self.bases = [address & -ALIGNMENT for address in addresses]


def workspace_bytes(plan: Plan, facts: DeviceFacts) -> int:
    """The workspace that the steps of a plan share, at its largest sizes."""
    calls = (_call(step, plan.symbols, [0] * (len(step.inputs) + len(step.outputs) + 1), facts) for step in plan.steps)
    sizes = (_function(step).workspace_bytes(call) for step, call in zip(plan.steps, calls, strict=True))
    return max(sizes, default=0)


def _call(step: Step, sizes: Mapping[str, int], addresses: Sequence[int], facts: DeviceFacts) -> Call:
    """Build the call of a step; `addresses` are those of present inputs, outputs and workspace."""
    remaining = iter(addresses)

    def arrays(operands: Iterable[Operand | None]) -> Iterator[DeviceArray | None]:
        for operand in operands:
            if operand is None:
                yield None
            else:
                yield DeviceArray(next(remaining), operand.dtype, resolve(operand.shape, sizes))

    inputs = tuple(arrays(step.inputs))
    outputs = tuple(array for array in arrays(step.outputs) if array is not None)
    return Call(inputs, outputs, step.attributes, facts, addresses[-1])


def _cannot_relocate(_: LaunchBinder) -> None:
    """The `bind_relocatable` of work that has no such method."""


def _adjacent(operands: Iterable[Operand], memory: MemoryMap) -> _Adjacent:
    """The constants of a step that are adjacent in memory to earlier constants of it."""
    found: list[tuple[int, int, int]] = []
    ends: dict[int, tuple[int, int]] = {}
    for position, operand in enumerate(operands):
        if operand.place is not Place.CONSTANT:
            continue
        begin = memory[Place.CONSTANT, operand.name] + operand.offset_bytes
        first, first_begin = ends.get(begin, (position, begin))
        if first != position:
            found.append((position, first, begin - first_begin))
        nbytes = operand.nbytes({}) if operand.packed_bytes is None else operand.packed_bytes
        ends.setdefault(begin + nbytes, (first, first_begin))
    return tuple(found)


def _number_kinds(plan: Plan, adjacent: Sequence[_Adjacent]) -> list[int]:
    """The kind of each step: steps of one kind differ in their addresses only."""
    numbers: dict[Any, int] = {}
    kinds = []
    for step, step_adjacent in zip(plan.steps, adjacent, strict=True):
        inputs = tuple(None if operand is None else operand.type for operand in step.inputs)
        outputs = tuple(operand.type for operand in step.outputs)
        kind = id(step.kernel), repr(dict(step.attributes)), inputs, outputs, step_adjacent
        kinds.append(numbers.setdefault(kind, len(numbers)))
    return kinds


def _alignments(addresses: Sequence[int]) -> tuple[int, ...]:
    """Every address modulo ALIGNMENT, then for each address the first position of an equal one."""
    first: dict[int, int] = {}
    return (
        *[address % ALIGNMENT for address in addresses],
        *[first.setdefault(address, position) for position, address in enumerate(addresses)],
    )


def _work(step: Step, call: Call) -> list[Work]:
    """The work of a step's kernel; a KernelError names a kernel that raises."""
    function = _function(step)
    try:
        return list(function(call))
    except AetherMindError:
        raise
    except Exception as error:
        raise step.kernel.failure(error) from error


def _function(step: Step) -> KernelFunction:
    function: Any = step.kernel.function
    if not isinstance(function, KernelFunction):
        raise DeviceError(
            f"Kernel {step.kernel.name} of {step.kernel.operator} cannot run on a CUDA device: its "
            "function must be an aethermind_cuda.launch.KernelFunction."
        )
    return function
