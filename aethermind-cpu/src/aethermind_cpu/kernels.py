"""The native kernels as the dispatcher sees them."""

from __future__ import annotations

import math
import threading
from functools import partial
from typing import Any

from aethermind.dispatch.kernel import Kernel, Pack
from aethermind.hal.dtype import DType
from aethermind.ops import catalog
from aethermind_cpu import _native
from aethermind_cpu.devices import num_physical_cores
from aethermind_cpu.isa import Isa, isa_limit

__all__ = ["kernels"]

_ROWS_PER_PART = 64
"""A packing is a sequence of panels of rows whose height divides this, so that parts can be packed in parallel."""
_BYTES_PER_PART = 1 << 20


def kernels() -> list[Kernel]:
    """Every kernel that this CPU supports, up to the instruction set that `AETHERMIND_CPU_ISA` allows."""
    limit = isa_limit()
    input_names = {operator.name: [spec.name for spec in operator.schema.inputs] for operator in catalog.load()}
    dtypes = {dtype.code: dtype for dtype in DType}
    packs: dict[str, Pack] = {}
    return [
        _kernel(entry, input_names[entry.operator_name], dtypes[entry.dtype], packs)
        for entry in _native.kernel_table()
        if entry.is_supported and Isa.parse(entry.variant).level <= limit.level
    ]


def _kernel(entry: _native.KernelEntry, input_names: list[str], dtype: DType, packs: dict[str, Pack]) -> Kernel:
    return Kernel(
        operator=entry.operator_name,
        device_type="cpu",
        name=f"cpu/{entry.variant}",
        dtypes=frozenset({dtype}),
        priority=entry.priority,
        native=entry.capsule,
        packs={input_names[index]: packs.setdefault(pack.name, _pack(pack)) for index, pack in entry.packs},
    )


def _pack(entry: _native.PackEntry) -> Pack:
    return Pack(
        entry.name,
        nbytes=lambda shape, _: entry.packed_bytes(*_rows_and_columns(shape)),
        pack=partial(_pack_in_parts, entry),
    )


def _pack_in_parts(entry: _native.PackEntry, source: Any, destination: int) -> None:
    """Pack a row-major array, perhaps a read-only mapped file, to an address; large ones on all cores."""
    assert source.flags.c_contiguous, "weights are packed from row-major arrays"
    rows, columns = _rows_and_columns(source.shape)
    num_parts = max(1, min(source.nbytes // _BYTES_PER_PART, rows // _ROWS_PER_PART))
    if num_parts > 1:  # counting cores takes longer than packing a small weight
        num_parts = min(num_parts, num_physical_cores())
    rows_per_part = max(1, math.ceil(rows / num_parts / _ROWS_PER_PART)) * _ROWS_PER_PART
    row_bytes = columns * source.itemsize

    def pack_part(first: int) -> None:
        address = source.ctypes.data + first * row_bytes
        target = destination + entry.packed_bytes(first, columns)
        entry.pack(address, min(rows_per_part, rows - first), columns, target)

    threads = [threading.Thread(target=pack_part, args=(first,)) for first in range(rows_per_part, rows, rows_per_part)]
    for thread in threads:
        thread.start()
    pack_part(0)
    for thread in threads:
        thread.join()


def _rows_and_columns(shape: tuple[int, ...]) -> tuple[int, int]:
    return shape[0], math.prod(shape[1:])
