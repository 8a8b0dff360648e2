"""`aethermind ops`: the operators, their decompositions, and the kernels of each device."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aethermind.cli import console, options
from aethermind.errors import PluginError
from aethermind.ops.weight_format import DENSE

if TYPE_CHECKING:
    from aethermind.dispatch import Kernel
    from aethermind.ops.operator import Operator, OperatorRegistry
    from aethermind.runtime import Runtime

__all__ = ["EXAMPLES", "coverage", "decomposed_operators", "ops"]

EXAMPLES = console.examples("aethermind ops", "aethermind ops rms_norm", "aethermind ops --json")

Name = Annotated[str | None, typer.Argument(help="Show this operator only, with its kernels.")]


def ops(name: Name = None, as_json: options.AsJson = False) -> None:
    """List the operators, and how each device computes them.

    native: a kernel in machine code. python: a kernel in Python. reference: the NumPy definition. view: no computation.
    parts: decomposed into smaller operators. none: no kernel; host-accessible devices fall back to the reference.
    """
    from aethermind.runtime import Runtime

    runtime = Runtime.boot()
    operators = runtime.operators
    chosen = list(operators) if name is None else [operators[name]]
    kernels = _kernels(runtime)
    records = [_record(operator, operators, kernels) for operator in chosen]
    if as_json:
        console.print_json({"operators": records})
    elif name is None:
        _print_list(records)
    else:
        _print_page(records[0])


def decomposed_operators(operator: Operator, operators: OperatorRegistry) -> list[str]:
    """Return the distinct operators that an operator decomposes into, for any of its sample inputs."""
    if operator.decompose is None:
        return []
    import numpy as np

    from aethermind.graph.builder import GraphBuilder
    from aethermind.hal.dtype import DType

    found: dict[str, None] = {}
    for sample in operator.samples(np.random.default_rng(0)):
        recorder = _Recorder(GraphBuilder(operator.name, operators), found)
        values = [
            None if array is None else recorder.builder.input(spec.name, spec.dtype(DType.FLOAT32), array.shape)
            for spec, array in zip(operator.schema.inputs, sample.inputs, strict=True)
        ]
        operator.decompose(recorder, *values, **operator.schema.complete(sample.attributes))
    return list(found)


def coverage(operator: Operator, operators: OperatorRegistry, kernels: Sequence[Kernel]) -> str:
    """Return how a device with these kernels computes an operator, as one of the words that `ops --help` explains."""
    if operator.schema.is_view:
        return "view"
    candidates = [kernel for kernel in kernels if kernel.operator == operator.name]
    if candidates:
        best = max(candidates, key=lambda kernel: kernel.priority)
        return "native" if best.native is not None else "reference" if best.name == "reference" else "python"
    names = decomposed_operators(operator, operators)
    is_decomposed = names and all(coverage(operators[name], operators, kernels) != "none" for name in names)
    return "parts" if is_decomposed else "none"


class _Recorder:
    """An OpBuilder that records which operators are applied."""

    def __init__(self, builder: Any, found: dict[str, None]) -> None:
        self.builder = builder
        self._found = found

    def op(self, name: str, *inputs: Any, **attributes: Any) -> Any:
        self._found[name] = None
        return self.builder.op(name, *inputs, **attributes)


def _kernels(runtime: Runtime) -> dict[str, tuple[Kernel, ...] | str]:
    """Return the kernels of each compute device, or the reason why they cannot be loaded."""
    found: dict[str, tuple[Kernel, ...] | str] = {}
    for entry in runtime.devices:
        if entry.priority < 0:
            continue
        try:
            found[entry.name] = runtime.kernels.kernels(entry.name)
        except PluginError as error:
            found[entry.name] = str(error)
    return found


def _record(
    operator: Operator, operators: OperatorRegistry, kernels: dict[str, tuple[Kernel, ...] | str]
) -> dict[str, Any]:
    return {
        "name": operator.name,
        "signature": operator.schema.text,
        "summary": operator.summary,
        "decomposition": decomposed_operators(operator, operators),
        "devices": {device: _coverage_record(operator, operators, found) for device, found in kernels.items()},
    }


def _coverage_record(
    operator: Operator, operators: OperatorRegistry, kernels: tuple[Kernel, ...] | str
) -> dict[str, Any]:
    if isinstance(kernels, str):
        return {"coverage": "unknown", "error": kernels, "kernels": []}
    candidates = sorted((k for k in kernels if k.operator == operator.name), key=lambda kernel: -kernel.priority)
    return {
        "coverage": coverage(operator, operators, kernels),
        "error": None,
        "kernels": [
            {
                "name": kernel.name,
                "dtypes": sorted(map(str, kernel.dtypes)),
                "weight_formats": None if kernel.weight_formats is None else sorted(kernel.weight_formats),
                "priority": kernel.priority,
                "is_native": kernel.native is not None,
            }
            for kernel in candidates
        ],
    }


def _print_list(records: list[dict[str, Any]]) -> None:
    for record in records:
        print(console.style(record["signature"], "bold", sys.stdout))
        if record["decomposition"]:
            print(f"    parts: {', '.join(record['decomposition'])}")
        print("    " + ", ".join(f"{device}: {_coverage_text(found)}" for device, found in record["devices"].items()))


def _coverage_text(found: dict[str, Any]) -> str:
    """Return the coverage with its dtypes: `native (bfloat16 float32)`."""
    dtypes = sorted({dtype for kernel in found["kernels"] for dtype in kernel["dtypes"]})
    return f"{found['coverage']} ({' '.join(dtypes)})" if dtypes else str(found["coverage"])


def _print_page(record: dict[str, Any]) -> None:
    print(console.style(record["signature"], "bold", sys.stdout))
    print(f"\n{record['summary']}")
    if record["decomposition"]:
        print(f"Parts: {', '.join(record['decomposition'])}")
    print()
    for device, found in record["devices"].items():
        print(f"{device}: {found['error'] or found['coverage']}")
        for kernel in _grouped(found["kernels"]):
            formats = kernel["weight_formats"]
            print(f"  {kernel['name']}, {' '.join(kernel['dtypes'])}, priority {kernel['priority']}")
            if formats not in ([], [DENSE]):
                print(fill(" ".join(formats), 100, initial_indent="    weights: ", subsequent_indent=" " * 13))


def _grouped(kernels: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge kernels of one name and priority: first those of equal dtypes, then those of equal weight formats."""
    groups = [{**kernel, "weight_formats": kernel["weight_formats"] or ()} for kernel in kernels]
    for merged, same in (("weight_formats", "dtypes"), ("dtypes", "weight_formats")):
        found: dict[Any, dict[str, Any]] = {}
        for kernel in groups:
            group = found.setdefault((kernel["name"], kernel["priority"], tuple(kernel[same])), {**kernel, merged: ()})
            group[merged] = sorted({*group[merged], *kernel[merged]})
        groups = list(found.values())
    return groups
