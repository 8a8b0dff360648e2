"""Native kernels called in the caller's thread, through the kernel ABI (kernel_abi.h), with a team of one worker.

For small kernels, submitting the call to a stream's thread and waiting takes longer than the kernel itself.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import count
from typing import Any

from aethermind.graph.plan import Operand, Place, Plan, Step
from aethermind.hal.memory import ALIGNMENT, align_up
from aethermind.ops.dims import resolve

__all__ = ["NativeCall", "Slot"]

Slot = tuple[Place, str]
"""Identifies the memory of an operand of a plan: its place, and its name in that place."""

_ABI_VERSION = 1
_CAPSULE = b"aethermind.kernel.v1"
_MAX_DIMS = 6


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_size_t),
        ("dtype", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("shape", ctypes.c_int64 * _MAX_DIMS),
    )


class _Attribute(ctypes.Union):
    _fields_ = (("i", ctypes.c_int64), ("f", ctypes.c_double))


_Barrier = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_Claim = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
_ScratchOf = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32)


class _Team(ctypes.Structure):
    _fields_ = (
        ("worker", ctypes.c_int32),
        ("num_workers", ctypes.c_int32),
        ("scratch", ctypes.c_void_p),
        ("shared", ctypes.c_void_p),
        ("barrier", _Barrier),
        ("claim", _Claim),
        ("scratch_of", _ScratchOf),
    )


_Pointers = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)  # inputs, outputs, attributes


class _Kernel(ctypes.Structure):
    _fields_ = (
        ("abi_version", ctypes.c_uint32),
        ("num_inputs", ctypes.c_uint32),
        ("num_outputs", ctypes.c_uint32),
        ("num_attrs", ctypes.c_uint32),
        ("name", ctypes.c_char_p),
        ("run", ctypes.c_void_p),
        ("scratch_bytes", ctypes.c_void_p),
    )


# Small kernels run with the interpreter's lock held: releasing and acquiring it would take longer.
_Run = ctypes.PYFUNCTYPE(None, *_Pointers, ctypes.c_void_p)
_ScratchBytes = ctypes.PYFUNCTYPE(ctypes.c_size_t, *_Pointers, ctypes.c_int32)

_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype = ctypes.c_void_p
_pointer_of.argtypes = (ctypes.py_object, ctypes.c_char_p)


class NativeCall:
    """Runs the steps of a plan whose kernels are native. Mutable: callers set addresses. Not thread-safe."""

    def __init__(self, plan: Plan) -> None:
        self._steps = [_BoundStep(step) for step in plan.steps]
        num_scratch_bytes = max((step.scratch_bytes for step in self._steps), default=0)
        arena_offset = align_up(num_scratch_bytes, ALIGNMENT)
        self._memory = ctypes.create_string_buffer(arena_offset + plan.arena_bytes + ALIGNMENT)
        begin = align_up(ctypes.addressof(self._memory), ALIGNMENT)
        self._tickets = count()
        self._barrier = _Barrier(lambda _: None)
        self._claim = _Claim(lambda _: next(self._tickets))
        self._scratch_of = _ScratchOf(lambda *_: begin)
        self._team = _Team(0, 1, begin, None, self._barrier, self._claim, self._scratch_of)
        self._team_address = ctypes.addressof(self._team)
        self.set_address((Place.ARENA, ""), begin + arena_offset)

    @staticmethod
    def can_run(plan: Plan) -> bool:
        """Whether every kernel is native and has this version of the ABI."""
        return all(_is_callable(step) for step in plan.steps)

    def set_address(self, slot: Slot, address: int) -> None:
        """Set the address of `slot` for all later runs."""
        for step in self._steps:
            for words, index, offset_bytes in step.address_words(slot):
                words[index] = address + offset_bytes

    def address_words(self, slot: Slot) -> tuple[tuple[Any, int], ...]:
        """Return where the address of `slot` is stored, as pairs (words, index): write `words[index]`.

        The slot is not in the arena.
        """
        return tuple((words, index) for step in self._steps for words, index, _ in step.address_words(slot))

    def run(self) -> None:
        """Run all steps with the addresses that were written last."""
        for step in self._steps:
            self._tickets = count()
            step.run(step.inputs, step.outputs, step.attributes, self._team_address)


class _BoundStep:
    """A kernel's function and its arguments, in the structures of the ABI."""

    def __init__(self, step: Step) -> None:
        kernel = _kernel_of(step)
        self._operands = (*step.inputs, *step.outputs)
        self._tensors = (_Tensor * max(len(self._operands), 1))(*(_tensor(operand) for operand in self._operands))
        values = step.attribute_values()
        self._attributes = (_Attribute * max(len(values), 1))()
        self._lists: list[Any] = []
        for attribute, value in zip(self._attributes, values, strict=False):  # the array has at least one element
            if isinstance(value, tuple):
                self._lists.append((ctypes.c_int64 * (len(value) + 1))(len(value), *value))
                attribute.i = ctypes.addressof(self._lists[-1])
            elif isinstance(value, float):
                attribute.f = value
            else:
                attribute.i = int(value)
        self.inputs = ctypes.addressof(self._tensors)
        self.outputs = self.inputs + len(step.inputs) * ctypes.sizeof(_Tensor)
        self.attributes = ctypes.addressof(self._attributes)
        self.run = _Run(kernel.run)
        self.scratch_bytes = 0
        if kernel.scratch_bytes:
            self.scratch_bytes = _ScratchBytes(kernel.scratch_bytes)(self.inputs, self.outputs, self.attributes, 1)

    def address_words(self, slot: Slot) -> list[tuple[Any, int, int]]:
        """Return (words, index, offset of the operand in the slot) for each operand in a slot."""
        words = memoryview(self._tensors).cast("B").cast("P")
        stride = ctypes.sizeof(_Tensor) // words.itemsize
        return [
            (words, index * stride, operand.offset_bytes)
            for index, operand in enumerate(self._operands)
            if operand is not None and (operand.place, operand.name) == slot
        ]


def _is_callable(step: Step) -> bool:
    """Whether the step's kernel is native, of this ABI version, and takes the step's arguments."""
    if step.kernel.native is None:
        return False
    kernel = _kernel_of(step)
    actual = (kernel.abi_version, kernel.num_inputs, kernel.num_outputs, kernel.num_attrs)
    return actual == (_ABI_VERSION, len(step.inputs), len(step.outputs), len(step.attributes))


def _kernel_of(step: Step) -> _Kernel:
    return _Kernel.from_address(_pointer_of(step.kernel.native, _CAPSULE))


def _tensor(operand: Operand | None) -> _Tensor:
    if operand is None:
        return _Tensor()
    shape: Sequence[int] = resolve(operand.shape, {})
    return _Tensor(0, operand.dtype.code, len(shape), (ctypes.c_int64 * _MAX_DIMS)(*shape))
