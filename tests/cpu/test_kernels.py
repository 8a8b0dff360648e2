"""Every native kernel that this CPU runs says what its operator's page says, over the page's own samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from aethermind.dispatch import Kernel
from aethermind.dispatch.reference import evaluate, rounded_inputs
from aethermind.graph import Operand, Place, Plan, Step
from aethermind.hal import DType
from aethermind.ops import TensorType, catalog
from aethermind.ops.operator import Operator, OperatorRegistry, Sample
from aethermind.ops.weight_format import DENSE
from aethermind_cpu.backend import CpuBackend
from aethermind_cpu.kernels import kernels

REGISTRY = OperatorRegistry(catalog.load())


@dataclass(frozen=True, slots=True)
class Case:
    """A kernel, one of the float types it takes, and one sample of its operator."""

    kernel: Kernel
    float_type: DType
    sample: Sample

    @property
    def operator(self) -> Operator:
        return REGISTRY[self.kernel.operator]

    def __str__(self) -> str:
        return f"{self.kernel.operator}-{self.kernel.name}-{self.float_type}-{self.sample.label}"


CASES = [
    Case(kernel, float_type, sample)
    for kernel in kernels()
    if kernel.weight_formats == frozenset({DENSE})
    for float_type in sorted(kernel.dtypes, key=str)
    for sample in REGISTRY[kernel.operator].samples(np.random.default_rng(11))
]

each_case = pytest.mark.parametrize("case", CASES, ids=str)


@pytest.fixture(scope="module", params=[1, 3], ids="{}_workers".format)
def backend(request: pytest.FixtureRequest) -> Iterator[CpuBackend]:
    cpu = CpuBackend()
    cpu.set_num_threads(request.param)
    yield cpu
    cpu.close()


@each_case
def test_kernel_equals_the_reference_in_float64(case: Case, backend: CpuBackend) -> None:
    inputs = rounded_inputs(case.operator, case.sample, case.float_type)
    attributes = case.operator.schema.complete(case.sample.attributes)
    exact = [
        array.astype(np.float64) if array is not None and DType.of_numpy(array.dtype).is_floating else array
        for array in inputs
    ]
    expected = evaluate(REGISTRY, case.operator, exact, attributes)
    terms = _magnitudes(case.operator, exact, attributes, expected)
    outputs = _run(backend, case, inputs)
    tolerance = case.operator.tolerances[case.float_type]
    for output, reference, magnitude in zip(outputs, expected, terms, strict=True):
        got = output.astype(np.float64)
        is_exact = np.isfinite(magnitude) & ~np.isfinite(reference)
        np.testing.assert_array_equal(got[is_exact], reference[is_exact])
        is_close = np.isfinite(magnitude) & np.isfinite(reference)
        error = np.abs(got[is_close] - reference[is_close])
        rounding = tolerance.relative * np.abs(reference[is_close]) + tolerance.absolute
        allowed = tolerance.relative_to_terms * magnitude[is_close] + rounding
        assert np.all(error <= allowed), f"off by up to {error.max()}, outside of {tolerance}"


@pytest.mark.parametrize("operator", sorted({kernel.operator for kernel in kernels()}))
def test_operator_has_a_kernel_for_every_cpu(operator: str) -> None:
    portable = {
        dtype
        for kernel in kernels()
        if (kernel.operator, kernel.name) == (operator, "cpu/portable")
        for dtype in kernel.dtypes
    }
    everywhere = {dtype for kernel in kernels() if kernel.operator == operator for dtype in kernel.dtypes}
    assert portable == everywhere


VIEWS = {"split_heads", "merge_heads", "split_last", "merge_last"}
COMPOSITES_TAKEN_APART = {"mlp_swiglu", "ffn_relu", "ffn_gelu"}


def test_everything_else_has_a_kernel() -> None:
    missing = {operator.name for operator in REGISTRY} - {kernel.operator for kernel in kernels()}
    assert missing == VIEWS | COMPOSITES_TAKEN_APART


def _magnitudes(operator: Operator, inputs: list[Any], attributes: Any, outputs: tuple[Any, ...]) -> tuple[Any, ...]:
    if operator.term_magnitudes is None:
        return tuple(np.abs(np.nan_to_num(output.astype(np.float64), posinf=0, neginf=0)) for output in outputs)
    terms = operator.term_magnitudes(*inputs, **attributes)
    return terms if isinstance(terms, tuple) else (terms,)


def _run(backend: CpuBackend, case: Case, inputs: tuple[Any, ...]) -> list[Any]:
    """The outputs of a plan of one step, whose weights are packed as the kernel asks."""
    schema = case.operator.schema
    memory: dict[tuple[Place, str], int] = {}
    held: dict[str, Any] = {}

    def operand(name: str, array: Any) -> Operand:
        memory[Place.INPUT, name] = array.ctypes.data
        held[name] = array
        return Operand(Place.INPUT, name, TensorType(DType.of_numpy(array.dtype), array.shape))

    operands: list[Operand | None] = []
    for spec, array in zip(schema.inputs, inputs, strict=True):
        if array is None:
            operands.append(None)
            continue
        operands.append(operand(spec.name, array))
        pack = case.kernel.packs.get(spec.name)
        if pack is not None:
            packed = backend.allocator.alloc(pack.nbytes(array.shape, case.float_type))
            pack.pack(array, packed.address)
            memory[Place.INPUT, spec.name] = packed.address
            held[f"packed {spec.name}"] = packed
    types = [None if each is None else each.type for each in operands]
    attributes = schema.complete(case.sample.attributes)
    results = []
    for spec, type_ in zip(schema.outputs, schema.infer(types, attributes, case.float_type), strict=True):
        result = held[spec.alias] if spec.alias else np.zeros(type_.shape, type_.dtype.numpy)
        results.append(operand(f"{spec.name} out", result))
    step = Step(case.kernel, tuple(operands), tuple(results), attributes, (case.kernel.operator,))
    plan = Plan("test", (step,), {}, 0, {}, {}, {}, {})
    stream = backend.streams.create()
    backend.compile(plan, memory).run((), stream)
    stream.synchronize()
    return [held[result.name] for result in results]
