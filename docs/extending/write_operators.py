"""Writes `operators.md`, the reference of operators, from the catalog: run it when a page or a kernel changed.

No device is needed: kernels of `cpu` and `cuda` say what they are without one, and those of `cann`, which are calls of
torch_npu, are asked in a process where the stand-in of the tests is that.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from aethermind import Runtime
from aethermind.cli.ops import decomposed_operators
from aethermind.dispatch import Kernel
from aethermind.ops.operator import Operator, Tolerance
from aethermind.ops.schema import TensorSpec

__all__ = ["PAGE", "text"]

PAGE = Path(__file__).with_name("operators.md")

_HEAD = """\
# Operators

What kernels compute. Written by `docs/extending/write_operators.py` from `aethermind.ops.catalog`; do not edit it.

A signature has tensors left of `;` and attributes right of it. `F` is the floating-point type that the operator
computes in (float32, bfloat16 or float16), `W` a weight in `F` or in a weight format, `q8` 8-bit values (int8, or
float8 e4m3) of a quantised cache; `f32`, `i32`, `i64`, `i8` and `u8` are dtypes. Names in brackets are dims: the
first use binds, and later ones must agree. `?` marks an input that may be absent. An output `= x` is the memory of the
input `x`, changed in place (or only seen in another shape: a *view*, for which nothing runs); `~ x` may share it, if
no operator reads `x` later, and it has the shape of `x`. `...` are any number of dims, the same ones in all tensors,
and `#...` as many that are broadcast to `...`, by the rules of NumPy and PyTorch. `reduce(...)`, `permute(...)`,
`reshape(...)` and `expand(...)` are those dims, changed by the attributes as PyTorch's functions do. `ints` is a list
of integers; dims below 0 are counted from the last. `dtype` is float32, bfloat16 or float16; an output `dtype[...]` is
of that type.

A kernel has to be within the **tolerance** of the float64 reference: a factor of the sum of the magnitudes of the terms
that are added up, one of the result, and an absolute part. `aethermind conform NAME --suite operators` tries every
kernel on all **samples** of its operator, in every dtype and weight format that it claims. An operator for which a
device has no kernel is decomposed into its **parts**, or computed by the reference where the host reaches the device's
memory. This page lists the kernels of `cpu`, `cuda` and `cann`; `numpy` and `sim` compute operators without parts by
the references. `aethermind ops NAME` prints the kernels of the installed devices. The kernels of [cuda](../cuda.md)
have run on an H200; those of [cann](../cann.md) have not run on hardware yet.
"""

_STANDIN = Path(__file__).parents[2] / "tests" / "cann" / "standin"
_OF_CANN = """
import json, torch_npu
from aethermind_cann.kernels import load
print(json.dumps([[one.operator, sorted(map(str, one.dtypes)), one.name, []] for one in load()]))
"""


class _Kernel(NamedTuple):
    """What the page says of a kernel; `name` where it tells more than that there is one."""

    operator: str
    dtypes: Sequence[str]
    name: str
    weight_formats: Sequence[str]


def text() -> str:
    """The page, as it should be."""
    runtime = Runtime.boot()
    kernels = {**{name: _of_device(runtime.kernels.kernels(name)) for name in ("cpu", "cuda")}, "cann": _of_cann()}
    pages = sorted(runtime.operators, key=lambda operator: operator.name)
    from_core = set(runtime.built_in["operators"])
    return "\n".join([_HEAD, *("\n".join(_page(one, runtime, kernels)) for one in pages if one.name in from_core)])


def _page(operator: Operator, runtime: Runtime, kernels: Mapping[str, Sequence[_Kernel]]) -> Iterator[str]:
    yield f"## {operator.name}\n\n```\n{operator.schema.text}\n```\n\n{operator.summary}\n"
    facts = {
        "memory": "; ".join(_sharing(output) for output in operator.schema.outputs if output.alias or output.inplace),
        "tolerance": "; ".join(f"{dtype} {_in_words(one)}" for dtype, one in operator.tolerances.items()),
        "weight formats": f"of {', '.join(operator.weight_inputs)}" if operator.weight_inputs else "",
        "parts": ", ".join(decomposed_operators(operator, runtime.operators)),
        "samples": ", ".join(sample.label for sample in operator.samples(np.random.default_rng(0))),
        **{device: _coverage(operator, of_device) for device, of_device in kernels.items()},
    }
    yield "\n".join(f"- *{name}*: {fact}" for name, fact in facts.items() if fact)
    yield ""


def _sharing(output: TensorSpec) -> str:
    return f"`{output.name}` is `{output.alias}`" if output.alias else f"`{output.name}` may be `{output.inplace}`"


def _in_words(tolerance: Tolerance) -> str:
    amounts = (
        (tolerance.relative_to_terms, " · terms"),
        (tolerance.relative, " · result"),
        (tolerance.absolute, ""),
    )
    return " + ".join(f"{amount:.2g}{of}" for amount, of in amounts if amount) or "exact"


def _of_device(kernels: Iterable[Kernel]) -> list[_Kernel]:
    return [
        _Kernel(one.operator, sorted(map(str, one.dtypes)), "", sorted({*(one.weight_formats or ())} - {"dense"}))
        for one in kernels
    ]


def _of_cann() -> list[_Kernel]:
    """Named, because which are chosen depends on the torch_npu that is installed."""
    paths = os.pathsep.join([str(_STANDIN), *sys.path])
    asked = subprocess.run(
        [sys.executable, "-c", _OF_CANN], env={**os.environ, "PYTHONPATH": paths}, capture_output=True, check=True
    )
    return [_Kernel(*one) for one in json.loads(asked.stdout)]


def _coverage(operator: Operator, kernels: Sequence[_Kernel]) -> str:
    own = [kernel for kernel in kernels if kernel.operator == operator.name]
    if not own:
        return "" if operator.schema.is_view else "by its parts" if operator.decompose else "no kernel"
    names = dict.fromkeys(kernel.name for kernel in own if kernel.name)
    dtypes = ", ".join(sorted({dtype for kernel in own for dtype in kernel.dtypes}))
    formats = sorted({name for kernel in own for name in kernel.weight_formats})
    of_formats = f"; weights in {', '.join(formats)}" if operator.weight_inputs and formats else ""
    return f"{', '.join(names)}{' in ' if names else ''}{dtypes}{of_formats}"


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
