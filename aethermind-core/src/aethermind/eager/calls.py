"""Calls of one signature: everything decided, only addresses are missing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from aethermind.dispatch.kernel import Pack
from aethermind.eager.arrays import Array, ArrayKind, NumpyKind
from aethermind.eager.native_call import NativeCall, Slot
from aethermind.eager.packed import PackedKind
from aethermind.eager.signature_plan import RESULT, SignaturePlan
from aethermind.errors import OperatorError
from aethermind.graph.executor import Executable, StepLoop
from aethermind.graph.plan import Place
from aethermind.hal.backend import Backend
from aethermind.hal.buffer import Buffer
from aethermind.ops.dims import resolve

__all__ = ["InlineCall", "SignatureCall", "SubmittedCall", "bind_call"]

_MAX_INLINE_BYTES = 64 << 10
"""Up to here handing work to other threads takes longer than doing it."""


def bind_call(planned: SignaturePlan, kinds: Sequence[ArrayKind | None], backend: Backend) -> SignatureCall:
    """The cheapest way to run a plan: small native ones in the caller's thread, others on the backend's stream."""
    is_small = planned.nbytes <= _MAX_INLINE_BYTES
    if is_small and planned.plan.steps and NativeCall.can_run(planned.plan):
        return InlineCall(planned, kinds, backend)
    return SubmittedCall(planned, kinds, backend)


class SignatureCall:
    """What all calls do around their kernels: find addresses, make results. Safe from several threads, one at a time.

    Calls keep no array of the caller.
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
        self._new = [
            (position, kind.new(type.dtype, shape))
            for position, (type, shape, alias) in enumerate(
                zip(planned.results, self._shapes, planned.aliases, strict=True)
            )
            if alias is None
        ]
        self._changed = [alias for alias in planned.aliases if alias is not None and planned.plan.steps]
        self._is_bare = planned.aliases == (None,)
        self._packs_by_call = [each for each in self._packs() if not isinstance(kinds[each[1]], PackedKind)]

    def _settled(self, tensors: Sequence[Array | None]) -> tuple[Array | None, ...]:
        """The inputs, those without an address copied; one that is to be changed cannot be."""
        return tuple(
            None if kind is None else self._settle(position, kind, tensor)
            for position, (kind, tensor) in enumerate(zip(self._kinds, tensors, strict=True))
        )

    def _settle(self, position: int, kind: ArrayKind, tensor: Array) -> Array:
        if kind.address(tensor) is not None:
            return tensor
        settled = kind.settled(tensor)
        if position in self._changed:
            raise OperatorError(
                f"Operator {self._planned.operator.name} changes its input {self._names[position]!r} in place, "
                "which must be row-major and aligned, and require no gradients; pass a contiguous copy."
            )
        return settled

    def _check_writable(self, tensors: Sequence[Array | None]) -> None:
        for position in self._changed:
            kind = self._kinds[position]
            if kind is not None and not kind.is_writable(tensors[position]):
                raise OperatorError(
                    f"Operator {self._planned.operator.name} changes its input {self._names[position]!r} in place, "
                    "which is read-only; pass a copy."
                )

    def _results(self, new: dict[int, Array], tensors: Sequence[Array | None]) -> Any:
        """New arrays, and those of the caller that were changed or are seen in another shape."""
        results = []
        for position, (alias, shape) in enumerate(zip(self._planned.aliases, self._shapes, strict=True)):
            if alias is None:
                results.append(new[position])
            else:
                tensor: Array = tensors[alias]
                results.append(tensor if tuple(tensor.shape) == shape else tensor.reshape(shape))
        return results[0] if len(results) == 1 else tuple(results)

    def _sources(self) -> list[tuple[int, Callable[[Array], int | None], list[Slot]]]:
        """Where a plan looks for the inputs: (position, what gives the address, memories that begin there)."""
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
        """The constants that kernels want in their own layout: key, position of the input, layout."""
        return [
            (key, self._names.index(name), self._planned.packs[pack_name])
            for key, (name, pack_name, _) in self._planned.plan.constants.items()
            if pack_name is not None
        ]

    def _packed(self, tensors: Sequence[Array | None], buffers: dict[str, Buffer]) -> None:
        """Write those that came as arrays."""
        for key, position, pack in self._packs_by_call:
            kind = self._kinds[position]
            assert kind is not None, "an absent input has no operand"
            pack.pack(kind.numpy(tensors[position]), buffers[key].address)

    def _pack_buffers(self) -> dict[str, Buffer]:
        types = {operand.name: operand for operand in self._planned.plan.operands() if operand.place is Place.CONSTANT}
        return {
            key: self._backend.allocator.alloc(pack.nbytes(resolve(types[key].shape, {}), types[key].dtype))
            for key, _, pack in self._packs_by_call
        }

    def __call__(self, tensors: Sequence[Array | None]) -> Any:
        """Run on these inputs, which have the call's signature."""
        raise NotImplementedError


class InlineCall(SignatureCall):
    """Small native steps in the caller's thread."""

    def __init__(self, planned: SignaturePlan, kinds: Sequence[ArrayKind | None], backend: Backend) -> None:
        super().__init__(planned, kinds, backend)
        self._native = NativeCall(planned.plan)
        self._buffers = self._pack_buffers()
        for key, buffer in self._buffers.items():
            self._native.set_address((Place.CONSTANT, key), buffer.address)
        self._inputs = [
            (position, address_of, tuple(place for slot in slots for place in self._native.places(slot)))
            for position, address_of, slots in self._sources()
        ]
        self._outputs = [
            (position, make, self._native.places((Place.STATE, f"{RESULT}{position}"))) for position, make in self._new
        ]

    def __call__(self, tensors: Sequence[Array | None]) -> Any:
        if self._changed:
            self._check_writable(tensors)
        with self._lock:
            for position, address_of, places in self._inputs:
                address = address_of(tensors[position])
                if address is None:
                    return self(self._settled(tensors))
                for words, index in places:
                    words[index] = address
            if self._buffers:
                self._packed(tensors, self._buffers)
            address_of = self._result_kind.address
            new = {}
            for position, make, places in self._outputs:
                new[position] = result = make()
                for words, index in places:
                    words[index] = address_of(result)
            self._native.run()
        return result if self._is_bare else self._results(new, tensors)


class SubmittedCall(SignatureCall):
    """Any plan on the backend's stream, bound anew when its memory has moved since the last call."""

    def __init__(self, planned: SignaturePlan, kinds: Sequence[ArrayKind | None], backend: Backend) -> None:
        super().__init__(planned, kinds, backend)
        self._stream = backend.streams.default(0)
        used = {(operand.place, operand.name) for operand in planned.plan.operands()}
        self._inputs = [
            (position, address_of, [slot for slot in slots if slot in used])
            for position, address_of, slots in self._sources()
        ]
        self._memory: dict[Slot, int] = {}
        self._executable: Executable | None = None

    def __call__(self, tensors: Sequence[Array | None]) -> Any:
        plan = self._planned.plan
        if not plan.steps:  # a view needs no address, so it shares the memory of any array
            return self._results({}, tensors)
        if self._changed:
            self._check_writable(tensors)
        memory: dict[Slot, int] = {}
        for position, address_of, slots in self._inputs:
            address = address_of(tensors[position])
            if address is None:
                return self(self._settled(tensors))
            for slot in slots:
                memory[slot] = address
        new = {position: make() for position, make in self._new}
        for position, result in new.items():
            memory[Place.STATE, f"{RESULT}{position}"] = _address(self._result_kind, result)
        buffers = self._pack_buffers() if self._packs_by_call else {}
        for key, buffer in buffers.items():
            memory[Place.CONSTANT, key] = buffer.address
        self._packed(tensors, buffers)
        arena = self._backend.allocator.alloc(plan.arena_bytes) if plan.arena_bytes else None
        memory[Place.ARENA, ""] = arena.address if arena else 0
        with self._lock:
            if self._executable is None or memory != self._memory:
                self._executable = self._backend.compile(plan, memory) or StepLoop(plan, memory)
                self._memory = memory
            self._executable.run((), self._stream)
            self._stream.synchronize()
        return self._results(new, tensors)


def _address(kind: ArrayKind, array: Array) -> int:
    address = kind.address(array)
    assert address is not None, "settled arrays and new ones have an address"
    return address
