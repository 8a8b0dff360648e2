"""Native kernels written in Python: am_kernel structs of ctypes callbacks, so that tests need no compiler."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aethermind.dispatch import Kernel
from aethermind.graph import Operand, Place, Plan, Step
from aethermind.hal import DType
from aethermind.ops import TensorType
from aethermind.ops.dims import SymDim

ABI_VERSION = 1
CAPSULE = b"aethermind.kernel.v1"


class AmTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("shape", ctypes.c_int64 * 6),
    )

    def array(self) -> np.ndarray[Any, Any]:
        """The tensor's memory as float32 or int64, whatever its dtype says."""
        shape = tuple(self.shape[: self.ndim])
        kind = np.float32 if self.dtype == DType.FLOAT32.code else np.int64
        memory = (ctypes.c_byte * (int(np.prod(shape)) * np.dtype(kind).itemsize)).from_address(self.data or 0)
        return np.frombuffer(memory, kind).reshape(shape)


class AmAttr(ctypes.Union):
    _fields_ = (("i", ctypes.c_int64), ("f", ctypes.c_double))


class AmTeam(ctypes.Structure):
    """One worker's view; its functions take the address of the view."""


Barrier = ctypes.CFUNCTYPE(None, ctypes.POINTER(AmTeam))
Claim = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.POINTER(AmTeam))
AmTeam._fields_ = (
    ("worker", ctypes.c_int32),
    ("num_workers", ctypes.c_int32),
    ("scratch", ctypes.c_void_p),
    ("shared", ctypes.c_void_p),
    ("barrier", Barrier),
    ("claim", Claim),
)

_ARGUMENTS = (ctypes.POINTER(AmTensor), ctypes.POINTER(AmTensor), ctypes.POINTER(AmAttr))
RunFunction = ctypes.CFUNCTYPE(None, *_ARGUMENTS, ctypes.POINTER(AmTeam))
ScratchFunction = ctypes.CFUNCTYPE(ctypes.c_size_t, *_ARGUMENTS, ctypes.c_int32)


class AmKernel(ctypes.Structure):
    _fields_ = (
        ("abi_version", ctypes.c_uint32),
        ("num_inputs", ctypes.c_uint32),
        ("num_outputs", ctypes.c_uint32),
        ("num_attrs", ctypes.c_uint32),
        ("name", ctypes.c_char_p),
        ("run", RunFunction),
        ("scratch_bytes", ScratchFunction),
    )


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)

_static_storage: list[AmKernel] = []


def new_capsule(name: bytes | None) -> object:
    """A capsule of this name with a dummy pointer."""
    _names.append(name)
    return _new_capsule(ctypes.addressof(_nothing), name, None)


_nothing = ctypes.c_int64()
_names: list[bytes | None] = []
"""Capsules do not copy their names, so these are kept referenced."""


def capsule_of(struct: AmKernel) -> object:
    """The capsule of a kernel; the caller keeps the struct alive."""
    return _new_capsule(ctypes.addressof(struct), CAPSULE, None)


def native_kernel(
    run: Callable[..., None] | None,
    num_inputs: int,
    num_outputs: int,
    num_attrs: int = 0,
    *,
    scratch_bytes: Callable[..., int] | None = None,
    abi_version: int = ABI_VERSION,
    name: bytes | None = b"test/ctypes",
) -> Kernel:
    """A kernel whose native part calls `run(inputs, outputs, attrs, team)` on every worker; None is NULL."""
    scratch = ScratchFunction(scratch_bytes) if scratch_bytes else ctypes.cast(None, ScratchFunction)

    def run_with_view(inputs: Any, outputs: Any, attrs: Any, team: Any) -> None:
        assert run is not None
        run(inputs, outputs, attrs, team.contents)

    runs = RunFunction(run_with_view) if run else ctypes.cast(None, RunFunction)
    struct = AmKernel(abi_version, num_inputs, num_outputs, num_attrs, name, runs, scratch)
    _static_storage.append(struct)
    return Kernel("test", "cpu", "cpu/ctypes", frozenset({DType.FLOAT32}), native=capsule_of(struct))


def share(total: int, team: AmTeam) -> slice:
    """This worker's even share of `total` rows."""
    return slice(total * team.worker // team.num_workers, total * (team.worker + 1) // team.num_workers)


def tensor(name: str, *shape: int | SymDim, dtype: DType = DType.FLOAT32) -> Operand:
    """An operand in its own input buffer."""
    return Operand(Place.INPUT, name, TensorType(dtype, shape))


def step(kernel: Kernel, inputs: Sequence[Operand | None], outputs: Sequence[Operand], **attributes: Any) -> Step:
    return Step(kernel, tuple(inputs), tuple(outputs), attributes, ("value",))


def plan(*steps: Step, **symbols: int) -> Plan:
    """A plan without an arena; `symbols` are the largest values."""
    return Plan("test", steps, symbols, 0, {}, {}, {}, {})


def memory(**arrays: np.ndarray[Any, Any]) -> dict[tuple[Place, str], int]:
    """The memory map of a plan whose operands are these arrays."""
    return {(Place.INPUT, name): array.ctypes.data for name, array in arrays.items()}
