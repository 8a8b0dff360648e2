"""The native kernels as the dispatcher sees them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from aethermind.dispatch.kernel import Kernel, Pack, Signature
from aethermind.hal.dtype import DType
from aethermind.ops import catalog
from aethermind.ops.operator import Operator
from aethermind.ops.weight_format import CHECKPOINT_FORMAT_NAMES, FORMAT_NAMES, WeightFormat, parse_format
from aethermind_cpu import _native
from aethermind_cpu.isa import Isa, isa_limit
from aethermind_cpu.packing import build_of_packing, pack_in_parts
from aethermind_cpu.quantized import quantized_pack

__all__ = ["kernels"]


def kernels() -> list[Kernel]:
    """Every kernel that this CPU supports, up to the instruction set that `AETHERMIND_CPU_ISA` allows."""
    limit = isa_limit()
    operators = {operator.name: operator for operator in catalog.load()}
    dtypes = {dtype.code: dtype for dtype in DType}
    packs: dict[str, Pack] = {}
    dense = [
        _kernel(entry, operators[entry.operator_name], dtypes[entry.dtype], packs)
        for entry in _native.kernel_table()
        if _is_allowed(entry, limit)
    ]
    formats = [format for name in (*FORMAT_NAMES, *CHECKPOINT_FORMAT_NAMES) if (format := parse_format(name))]
    quantized = [
        _quantized_kernel(entry, operators[entry.operator_name], dtypes[entry.dtype], format, packs)
        for entry in _native.quantized_kernel_table()
        if _is_allowed(entry, limit)
        for format in formats
    ]
    return dense + quantized


def _is_allowed(entry: _native.KernelEntry, limit: Isa) -> bool:
    return entry.is_supported and Isa.parse(entry.variant).level <= limit.level


def _kernel(entry: _native.KernelEntry, operator: Operator, dtype: DType, packs: dict[str, Pack]) -> Kernel:
    kernel = Kernel(
        operator=entry.operator_name,
        device_type="cpu",
        name=f"cpu/{entry.variant}",
        dtypes=frozenset({dtype}),
        priority=entry.priority,
        native=entry.capsule,
        is_batch_invariant=True,
        packs={_input(operator, index): packs.setdefault(pack.name, _pack(pack)) for index, pack in entry.packs},
    )
    return _sharing(kernel, operator)


def _quantized_kernel(
    entry: _native.KernelEntry, operator: Operator, dtype: DType, format: WeightFormat, packs: dict[str, Pack]
) -> Kernel:
    """The same native kernel for every format: a packed weight says which it is in."""
    pack = packs.get(format.name) or packs.setdefault(format.name, quantized_pack(format))
    kernel = Kernel(
        operator=entry.operator_name,
        device_type="cpu",
        name=f"cpu/{entry.variant}",
        dtypes=frozenset({dtype}),
        priority=entry.priority,
        native=entry.capsule,
        is_batch_invariant=True,
        packs={_input(operator, index): pack for index, _ in entry.packs},
        weight_formats=frozenset({format.name}),
        arithmetic=DType.INT8 if entry.multiplies_bytes else None,
    )
    return _sharing(kernel, operator)


def _input(operator: Operator, index: int) -> str:
    return operator.schema.inputs[index].name


def _sharing(kernel: Kernel, operator: Operator) -> Kernel:
    """Packed for its sake alone, a weight of which a kernel only picks rows would be a copy of a mapped file."""
    wanted = {name: pack.name for name, pack in kernel.packs.items() if name in operator.gathered}
    if not wanted:
        return kernel
    name, priority = f"{kernel.name} out of packed rows", kernel.priority + 1
    return replace(kernel, name=name, priority=priority, supports=partial(_reason_against, wanted))


def _reason_against(wanted: Mapping[str, str], signature: Signature) -> str | None:
    missing = [name for name, layout in wanted.items() if signature.packed.get(name) != layout]
    return f"no other operator has {missing[0]} in its layout" if missing else None


def _pack(entry: _native.PackEntry) -> Pack:
    return Pack(
        entry.name,
        nbytes=lambda shape, _: entry.packed_bytes(*_rows_and_columns(shape)),
        pack=partial(_pack_dense, entry),
        build=build_of_packing(),
    )


def _pack_dense(entry: _native.PackEntry, source: Any, destination: int) -> None:
    """Pack a row-major array, perhaps a read-only mapped file, to an address; large ones on all cores."""
    assert source.flags.c_contiguous, "weights are packed from row-major arrays"
    _, columns = _rows_and_columns(source.shape)
    row_bytes = columns * source.itemsize

    def pack_part(first: int, count: int) -> None:
        address = source.ctypes.data + first * row_bytes
        entry.pack(address, count, columns, destination + entry.packed_bytes(first, columns))

    pack_in_parts(source, pack_part)


def _rows_and_columns(shape: tuple[int, ...]) -> tuple[int, int]:
    return shape[0], math.prod(shape[1:])
