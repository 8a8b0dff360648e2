"""The native kernels as `Kernel` objects, from which the dispatcher chooses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from aethermind.dispatch.kernel import Kernel, Pack, Signature
from aethermind.hal.dtype import DType
from aethermind.ops import catalog
from aethermind.ops.operator import BROADCASTING, Operator
from aethermind.ops.weight_format import CHECKPOINT_FORMAT_NAMES, FORMAT_NAMES, FP8, WeightFormat, parse_format
from aethermind_cpu import _native
from aethermind_cpu.isa import Isa, isa_limit
from aethermind_cpu.packing import dense_pack, quantized_pack

__all__ = ["kernels"]


def kernels() -> list[Kernel]:
    """Return every kernel that this CPU supports, up to the level that `AETHERMIND_CPU_ISA` allows."""
    limit = isa_limit()
    operators = {operator.name: operator for operator in catalog.load()}
    dtypes = {dtype.code: dtype for dtype in DType}
    packs: dict[str, Pack] = {}
    dense = [
        _kernel(entry, operators[entry.operator_name], dtypes[entry.dtype], packs)
        for entry in _native.kernel_table()
        if _is_allowed(entry, limit)
    ]
    names = (name for name in (*FORMAT_NAMES, *CHECKPOINT_FORMAT_NAMES) if name != FP8.name)
    formats = [format for name in names if (format := parse_format(name))]
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
        is_batch_invariant=entry.is_batch_invariant,
        packs={
            _input_name(operator, index): packs.setdefault(pack.name, dense_pack(pack)) for index, pack in entry.packs
        },
        additions=frozenset({BROADCASTING}).intersection(operator.additions),
    )
    return _with_shared_packs(kernel, operator)


def _quantized_kernel(
    entry: _native.KernelEntry, operator: Operator, dtype: DType, format: WeightFormat, packs: dict[str, Pack]
) -> Kernel:
    """Return the kernel for one format. All formats share the native kernel: packed weights name their format."""
    pack = packs.get(format.name) or packs.setdefault(format.name, quantized_pack(format))
    kernel = Kernel(
        operator=entry.operator_name,
        device_type="cpu",
        name=f"cpu/{entry.variant}",
        dtypes=frozenset({dtype}),
        priority=entry.priority,
        native=entry.capsule,
        is_batch_invariant=entry.is_batch_invariant,
        packs={_input_name(operator, index): pack for index, _ in entry.packs},
        weight_formats=frozenset({format.name}),
        arithmetic=DType.INT8 if entry.multiplies_bytes else None,
    )
    return _with_shared_packs(kernel, operator)


def _input_name(operator: Operator, index: int) -> str:
    return operator.schema.inputs[index].name


def _with_shared_packs(kernel: Kernel, operator: Operator) -> Kernel:
    """Let a kernel that gathers rows (`embedding`) use a packed weight only if another operator packs the same weight.

    Packing a weight only to gather its rows would copy it from the mapped file into memory.
    """
    required_layouts = {name: pack.name for name, pack in kernel.packs.items() if name in operator.gathered}
    if not required_layouts:
        return kernel
    name, priority = f"{kernel.name} out of packed rows", kernel.priority + 1
    return replace(kernel, name=name, priority=priority, supports=partial(_unsupported_reason, required_layouts))


def _unsupported_reason(required_layouts: Mapping[str, str], signature: Signature) -> str | None:
    missing = [name for name, layout in required_layouts.items() if signature.packed.get(name) != layout]
    return f"no other operator packs {missing[0]} in this layout" if missing else None
