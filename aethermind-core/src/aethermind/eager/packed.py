"""Weights that are brought into a kernel's own layout once, instead of with every call."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from aethermind.eager.arrays import Array, ArrayKind, kind_of
from aethermind.errors import OperatorError
from aethermind.hal.dtype import DType

if TYPE_CHECKING:
    from aethermind.dispatch.kernel import Pack
    from aethermind.hal.backend import Backend
    from aethermind.hal.buffer import Buffer
    from aethermind.ops.operator import Operator

__all__ = ["PackedKind", "PackedWeight", "pack_weight"]


class PackedWeight:
    """One input of one operator on one device, accepted in place of the array. What `Eager.pack` returns.

    It keeps the array, which must not change any more, and packs it when a kernel first asks for a layout.
    """

    __slots__ = ("_copies", "_lock", "array", "backend", "dtype", "input", "kind", "operator", "shape")

    def __init__(self, operator: str, input: str, array: Array, kind: ArrayKind, backend: Backend) -> None:
        self.operator = operator
        self.input = input
        self.backend = backend
        self.kind = kind
        self.array = array if kind.address(array) is not None else kind.settled(array)
        self.dtype = array.dtype
        self.shape = array.shape
        self._lock = threading.Lock()
        self._copies: dict[str, Buffer] = {}

    def __repr__(self) -> str:
        return f"<packed {self.dtype} {list(self.shape)} for {self.operator}'s {self.input!r} on {self.backend.name}>"

    def address(self, pack: Pack) -> int:
        """Where the copy of this layout lies; it is made when there is none."""
        with self._lock:
            copy = self._copies.get(pack.name)
            if copy is None:
                copy = self.backend.allocator.alloc(pack.nbytes(tuple(self.shape), self.kind.dtype(self.array)))
                pack.pack(self.kind.numpy(self.array), copy.address)
                self._copies[pack.name] = copy
        return copy.address


class PackedKind:
    """The kind of arrays that packed weights for one input are. OperatorError for those made for something else."""

    def __init__(self, weight: PackedWeight, operator: str, input: str, backend: Backend) -> None:
        self._kind = weight.kind
        self._operator = operator
        self._input = input
        self._backend = backend
        self._check(weight)

    def address(self, array: Array) -> int | None:
        self._check(array)
        return self._kind.address(array.array)

    def packed_address(self, pack: Pack) -> Callable[[Array], int]:
        """What gives the address of a weight's copy in this layout."""

        def address(array: Array) -> int:
            self._check(array)
            copy: int = array.address(pack)
            return copy

        return address

    def settled(self, array: Array) -> Array:
        return array

    def is_writable(self, array: Array) -> bool:
        return False

    def dtype(self, array: Array) -> DType:
        return self._kind.dtype(array.array)

    def new(self, dtype: DType, shape: tuple[int, ...]) -> Callable[[], Array]:
        return self._kind.new(dtype, shape)

    def numpy(self, array: Array) -> Any:
        return self._kind.numpy(array.array)

    def _check(self, weight: PackedWeight) -> None:
        if weight.backend is self._backend and (weight.operator, weight.input) == (self._operator, self._input):
            return
        raise OperatorError(
            f"The weight was packed for {weight.operator}'s input {weight.input!r} on device {weight.backend.name}, "
            f"and was given to {self._operator} as {self._input!r} on {self._backend.name}; pack the array for that "
            "again, with the session that calls."
        )


def pack_weight(operator: Operator, input: str, array: Array, backend: Backend) -> PackedWeight:
    """A weight for repeated calls; OperatorError where the operator has no such weight, or the array does not fit."""
    weights = {spec.name: spec for spec in operator.schema.inputs if spec.kind == "W"}
    if input not in weights:
        raise OperatorError(
            f"Operator {operator.name} has no weight {input!r} to pack, only {sorted(weights) or 'none'}. "
            f"Signature: {operator.schema.text}"
        )
    return PackedWeight(operator.name, input, array, kind_of(array), backend)
