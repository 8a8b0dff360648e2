"""What a package offers that no plan can ever use, such as a kernel for an operator that is misspelt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches

from aethermind.dispatch.kernel import Kernel
from aethermind.ops.operator import OperatorRegistry

__all__ = ["useless_kernels"]


def useless_kernels(kernels: Iterable[Kernel], operators: OperatorRegistry) -> Iterator[tuple[Kernel, str, bool]]:
    """Each kernel with something about it that is never used, in a sentence, and whether that is surely a mistake.

    An operator that nobody defines is none where another package, which is not installed, does.
    """
    schemas = {operator.name: operator.schema for operator in operators}
    views = {name for name, schema in schemas.items() if schema.is_view}
    for kernel in kernels:
        schema = schemas.get(kernel.operator)
        if schema is None:
            near = get_close_matches(kernel.operator, schemas, 1)
            advice = f"did you mean {near[0]!r}?" if near else "it is of use only beside a package that defines it."
            yield kernel, f"no installed package defines operator {kernel.operator!r}; {advice}", bool(near)
            continue
        if kernel.operator in views:
            yield kernel, f"{kernel.operator} is a view, which no kernel computes.", True
        for name in kernel.packs.keys() - {spec.name for spec in schema.inputs} if kernel.packs else ():
            inputs = ", ".join(spec.name for spec in schema.inputs)
            yield kernel, f"it packs {name!r}, but the inputs of {kernel.operator} are {inputs}.", True
