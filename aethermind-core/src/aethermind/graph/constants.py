"""Weights on the device: each parameter once in each layout that a kernel asked for, shared by all plans of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from aethermind.dispatch.kernel import Pack
from aethermind.graph.plan import Plan
from aethermind.hal.backend import Backend
from aethermind.hal.device import DeviceId
from aethermind.hal.dtype import DType
from aethermind.hal.mapped import drop_mapped_pages
from aethermind.hal.tensor import Tensor
from aethermind.ops.dims import resolve
from aethermind.ops.schema import TensorType

__all__ = ["ConstantStore", "constant_bytes"]

Array = Any


class ConstantStore:
    """Loads parameters on demand and keeps them.

    `read(name)` returns the checkpoint's array (perhaps of another floating dtype, perhaps a mapped file). A parameter
    that the device can read in place, in the dtype and layout it has, is not copied.
    """

    def __init__(
        self, backend: Backend, device: DeviceId, read: Callable[[str], Array], types: Mapping[str, TensorType]
    ) -> None:
        self._backend = backend
        self._device = device
        self._read = read
        self._types = types
        self._tensors: dict[str, Tensor] = {}
        self._packed: set[str] = set()

    @property
    def nbytes(self) -> int:
        """Bytes of all constants, copied or read in place; a parameter in two layouts counts twice."""
        return sum(tensor.buffer.nbytes for tensor in self._tensors.values())

    @property
    def packed_bytes(self) -> int:
        """Bytes of the constants that were copied into a kernel's layout."""
        return sum(self._tensors[key].buffer.nbytes for key in self._packed)

    def load(self, plan: Plan, on_progress: Callable[[int, int], None] | None = None) -> None:
        """Make every constant of a plan available; `on_progress(done, total)` counts constants."""
        packs = plan.packs()
        missing = [key for key in plan.constants if key not in self._tensors]
        for done, key in enumerate(missing):
            name, pack_name = plan.constants[key]
            self._tensors[key] = self._load_one(name, packs[pack_name] if pack_name else None)
            if pack_name:
                self._packed.add(key)
            if on_progress:
                on_progress(done + 1, len(missing))

    def address(self, key: str) -> int:
        """The device address of a loaded constant."""
        return self._tensors[key].address

    def tensor(self, key: str) -> Tensor:
        """A loaded constant; a packed one is a tensor of bytes."""
        return self._tensors[key]

    def _load_one(self, name: str, pack: Pack | None) -> Tensor:
        wanted = self._types[name].dtype
        original = self._read(name)
        array = _as_stored(original, wanted)
        if pack is not None:
            buffer = self._backend.allocator.alloc(pack.nbytes(array.shape, wanted))
            pack.pack(array, buffer.address)
            drop_mapped_pages(original)
            return Tensor.of(buffer, DType.UINT8, (buffer.nbytes,))
        source = Tensor.of_numpy(array, self._device)
        if self._backend.capabilities.is_host_accessible:
            return source
        buffer = self._backend.allocator.alloc(source.nbytes)
        destination = Tensor.of(buffer, wanted, source.shape)
        self._backend.transfer.copy(destination, source)
        drop_mapped_pages(original)
        return destination


def constant_bytes(plan: Plan, types: Mapping[str, TensorType]) -> int:
    """Bytes that a plan's constants will take once they are loaded: `ConstantStore.nbytes`, foretold."""
    packs = plan.packs()
    total = 0
    for name, pack_name in plan.constants.values():
        type = types[name]
        total += packs[pack_name].nbytes(resolve(type.shape, {}), type.dtype) if pack_name else type.nbytes({})
    return total


def _as_stored(array: Array, wanted: DType) -> Array:
    """The array itself where it is row-major, aligned and of the wanted dtype; else a copy that is."""
    import numpy as np

    return np.require(array, wanted.numpy, ["C_CONTIGUOUS", "ALIGNED"])
