"""The test cases of a device's kernels: every sample in every dtype, and every weight format on some samples."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from aethermind.dispatch import Kernel, Signature
from aethermind.hal import DType
from aethermind.ops.operator import Operator, OperatorRegistry, Sample
from aethermind.ops.schema import TensorType
from aethermind.ops.weight_format import DENSE, WeightFormatRegistry
from aethermind.testing.operator_calls import KernelCase

__all__ = ["KernelGroup", "is_supported", "kernel_cases", "kernel_groups"]

_SEED = 11


def kernel_cases(
    operators: OperatorRegistry, kernels: Sequence[Kernel], formats: WeightFormatRegistry
) -> Iterator[KernelCase]:
    """Yield each kernel's cases: all samples with dense weights in each of its dtypes, and some per weight format.

    A sample that a kernel does not support is skipped if another kernel of its operator supports it. It is also skipped
    if it uses an addition or extension of the operator (see `Operator`), which no kernel has to compute.

    Each weight format of a kernel (each registered one, if the kernel supports any format) has up to three samples in
    one dtype: the one with the widest weight, the one with the most rows, and a third. In every other dtype it has one
    of them. The third sample varies between kernels of an operator, which share packing and loops, so together they
    cover all samples.
    """
    rotations = count()
    samples_of: dict[str, list[Sample]] = {}
    for kernel in kernels:
        if kernel.operator not in operators:  # a collective operator, which one device cannot run
            continue
        operator = operators[kernel.operator]
        dtypes = sorted(kernel.dtypes & operator.tolerances.keys(), key=str)
        if operator.name not in samples_of:
            samples_of[operator.name] = list(operator.samples(np.random.default_rng(_SEED)))
        samples = samples_of[operator.name]
        if kernel.weight_formats is None or DENSE in kernel.weight_formats:
            alternatives = [other for other in kernels if other.operator == operator.name]
            for case in (KernelCase(operator, kernel, dtype, sample) for dtype in dtypes for sample in samples):
                if is_supported(case) or not (
                    _uses_newer_features(case)
                    or any(is_supported(replace(case, kernel=other)) for other in alternatives)
                ):
                    yield case
        if _formatted_inputs(operator, kernel):
            names = formats.names() if kernel.weight_formats is None else sorted(kernel.weight_formats - {DENSE})
            for name in names:
                yield from _cases_of_format(operator, kernel, dtypes, samples, formats, name, next(rotations))


@dataclass(frozen=True, slots=True)
class KernelGroup:
    """A kernel in one dtype, with a few samples of different shapes that it supports."""

    cases: tuple[KernelCase, ...]

    def __str__(self) -> str:
        first = self.cases[0]
        format = "" if first.weight_format is None else f"-{first.weight_format.name}"
        return f"{first.operator.name}-{first.kernel.name}-{first.float_type}{format}"


def kernel_groups(cases: Iterable[KernelCase], *, of_every_format: bool = False) -> Iterator[KernelGroup]:
    """Yield the groups of each kernel and dtype: cases with most rows, largest inputs, longest rows, and two others.

    Dense weights and quantised weights are separate groups. Of quantised weights only the first format of a kernel has
    a group; with `of_every_format`, each format has one.
    """
    groups: dict[tuple[str, str, DType, str], list[KernelCase]] = {}
    for case in cases:
        format = DENSE if case.weight_format is None else case.weight_format.name
        groups.setdefault((case.operator.name, case.kernel.name, case.float_type, format), []).append(case)
    seen: set[tuple[str, str, DType, bool]] = set()
    for (operator, kernel, dtype, format), group in groups.items():
        kind = (operator, kernel, dtype, format == DENSE)
        if kind in seen and not of_every_format:
            continue
        seen.add(kind)
        most_rows = max(group, key=lambda case: _num_rows(case.operator, case.operator.weight_inputs, case.sample))
        largest = max(group, key=lambda case: sum(0 if array is None else array.size for array in case.sample.inputs))
        longest_rows = max(group, key=lambda case: _last_dim(case.sample))
        chosen = {id(case): case for case in (most_rows, largest, longest_rows, group[0], group[len(group) // 2])}
        yield KernelGroup(tuple(chosen.values()))


def _cases_of_format(
    operator: Operator,
    kernel: Kernel,
    dtypes: list[DType],
    samples: list[Sample],
    formats: WeightFormatRegistry,
    name: str,
    rotation: int,
) -> Iterator[KernelCase]:
    for number, dtype in enumerate(dtypes[rotation % len(dtypes) :] + dtypes[: rotation % len(dtypes)]):
        chosen = _samples_of_format(operator, kernel, dtype, samples, name, rotation)
        for sample in chosen if number == 0 else chosen[number % max(len(chosen), 1) :][:1]:
            yield KernelCase(operator, kernel, dtype, sample, formats.get(name))


def _samples_of_format(
    operator: Operator, kernel: Kernel, dtype: DType, samples: list[Sample], name: str, rotation: int
) -> list[Sample]:
    supported = [
        sample for sample in samples if kernel.reason_against(_signature(operator, kernel, dtype, sample, name)) is None
    ]
    inputs = _formatted_inputs(operator, kernel)
    widest = max(supported, key=lambda sample: _num_columns(operator, inputs, sample), default=None)
    longest = max(supported, key=lambda sample: _num_rows(operator, inputs, sample), default=None)
    others = [sample for sample in supported if sample is not widest and sample is not longest]
    chosen = (widest, None if longest is widest else longest, others[rotation % len(others)] if others else None)
    return [sample for sample in chosen if sample is not None]


def is_supported(case: KernelCase) -> bool:
    """Whether the kernel of a case supports its sample with dense weights."""
    signature = _signature(case.operator, case.kernel, case.float_type, case.sample, DENSE)
    return case.float_type in case.kernel.dtypes and case.kernel.reason_against(signature) is None


def _uses_newer_features(case: KernelCase) -> bool:
    """Whether a sample uses an addition of its operator, or an extension that is newer than the kernel's plugin API."""
    signature = _signature(case.operator, case.kernel, case.float_type, case.sample, DENSE)
    return any(signature.additions.values()) or (signature.extension is not None and case.kernel.api_version == 1)


def _formatted_inputs(operator: Operator, kernel: Kernel) -> tuple[str, ...]:
    """Return the inputs that may be quantised: weights, and packed weights whose rows are gathered."""
    return (*operator.weight_inputs, *(name for name in kernel.packs if name in operator.gathered))


def _num_columns(operator: Operator, inputs: Collection[str], sample: Sample) -> int:
    """Return the number of columns of the widest quantised weight: only wide weights have several blocks in a row."""
    named = zip(operator.schema.inputs, sample.inputs, strict=True)
    widths = [array.shape[1] for spec, array in named if spec.name in inputs and array is not None]
    return int(max(widths))


def _num_rows(operator: Operator, inputs: Collection[str], sample: Sample) -> int:
    """Return the number of rows of the first input that is not in `inputs`: kernels choose their loops by it."""
    named = zip(operator.schema.inputs, sample.inputs, strict=True)
    sizes = (array.shape for spec, array in named if spec.name not in inputs and array is not None)
    return next((int(shape[0]) if shape else 1 for shape in sizes), 0)


def _last_dim(sample: Sample) -> int:
    first = sample.inputs[0]
    return 0 if first is None or not first.ndim else int(first.shape[-1])


def _signature(operator: Operator, kernel: Kernel, dtype: DType, sample: Sample, format: str) -> Signature:
    types = tuple(
        None if array is None else TensorType(spec.dtype(dtype), array.shape)
        for spec, array in zip(operator.schema.inputs, sample.inputs, strict=True)
    )
    attributes = operator.schema.complete(sample.attributes)
    packed = {name: pack.name for name, pack in kernel.packs.items() if name in operator.gathered}
    additions = operator.used_additions(types, attributes)
    extension = operator.used_extension(types)
    return Signature(operator.name, kernel.device_type, dtype, types, attributes, format, packed, additions, extension)
