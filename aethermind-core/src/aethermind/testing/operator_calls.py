"""One operator run by one kernel on any device, and the one place that says whether its outputs are right.

Inputs are brought to the device, outputs brought back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from aethermind.dispatch import Dispatcher, Fallback, Kernel
from aethermind.dispatch.reference import evaluate, rounded_inputs
from aethermind.graph.builder import GraphBuilder
from aethermind.graph.compile import compile_graph
from aethermind.graph.constants import ConstantStore
from aethermind.graph.executor import Executor
from aethermind.graph.ir import Value, ValueKind
from aethermind.hal import DType, Tensor
from aethermind.ops.operator import Array, Operator, OperatorRegistry, Sample, Tolerance
from aethermind.ops.quantization import rounded
from aethermind.ops.schema import TensorSpec
from aethermind.ops.weight_format import WeightFormat
from aethermind.runtime import OpenDevice

__all__ = ["KernelCase", "assert_within_tolerance", "check_kernel", "run_kernel"]

_ROUNDED_ACTIVATIONS = Tolerance(relative_to_terms=0.02)
"""Of kernels that quantise activations to 8 bits on the way: half a step is 1/254 of the largest of a block, and the
largest of a block of normal numbers is about four times their mean.
"""
_ROUNDED_VALUES = {DType.BFLOAT16: Tolerance(relative=2.0**-8), DType.FLOAT16: Tolerance(relative=2.0**-11)}
"""Of kernels that hand values of a format on: these are float32, and rounded once."""
_ROUNDED_WEIGHTS = {
    dtype: Tolerance(relative_to_terms=tolerance.relative) for dtype, tolerance in _ROUNDED_VALUES.items()
}
"""Of kernels that round the values of a format to F before they multiply them: each term is off by as much."""


@dataclass(frozen=True, slots=True)
class KernelCase:
    """A kernel, a float type and a weight format (None: dense) that it takes, and one sample of its operator."""

    operator: Operator
    kernel: Kernel
    float_type: DType
    sample: Sample
    weight_format: WeightFormat | None = None

    def __str__(self) -> str:
        format = "" if self.weight_format is None else f"-{self.weight_format.name}"
        return f"{self.operator.name}-{self.kernel.name}-{self.float_type}{format}-{self.sample.label}"

    @property
    def formatted(self) -> dict[str, WeightFormat]:
        """The formats of weights, by input; none where they are dense."""
        if self.weight_format is None:
            return {}
        return dict.fromkeys((*self.operator.weight_inputs, *self.gathered_layouts), self.weight_format)

    @property
    def gathered_layouts(self) -> dict[str, str]:
        """The layouts, by input, of weights of which the kernel picks rows where another operator has packed them."""
        packs = self.kernel.packs.items()
        return {name: pack.name for name, pack in packs if name in self.operator.gathered}


def run_kernel(
    case: KernelCase, operators: OperatorRegistry, opened: OpenDevice, inputs: Sequence[Array]
) -> list[Array]:
    """The outputs of a plan of one step, on the host.

    Inputs that the operator changes are states in device memory, weights come in the kernel's own packing; asserts that
    it changed nothing else.
    """
    schema = case.operator.schema
    builder = GraphBuilder("conformance", operators, case.float_type)
    changed = {spec.alias for spec in schema.outputs} if not schema.is_view else set()
    given = {spec.name: array for spec, array in zip(schema.inputs, inputs, strict=True) if array is not None}
    values = [_declare(builder, spec, given.get(spec.name), is_changed=spec.name in changed) for spec in schema.inputs]
    results = builder.op(case.operator.name, *values, **case.sample.attributes)
    results = results if isinstance(results, tuple) else (results,)
    for position, value in enumerate(results):
        builder.output(f"out{position}", value)
    for value in values:
        if value is not None and value.kind is ValueKind.INPUT:
            builder.output(f"{value.name} afterwards", value)
    graph = builder.finish()
    dispatcher = Dispatcher([case.kernel])
    compiled = compile_graph(
        graph,
        operators,
        dispatcher,
        opened.backend.name,
        {},
        fallback=Fallback.ERROR,
        weight_formats=case.formatted,
        row_formats=case.formatted,
        packed=case.gathered_layouts,
    )
    backend, device = opened.backend, opened.device
    types = {value.name: value.type for value in graph.parameters}
    constants = ConstantStore(backend, device, lambda name: given[name], types)
    constants.load(compiled.plan)
    states = {name: _on_device(opened, given[name]) for name in compiled.plan.states}
    executor = Executor(compiled.plan, backend, device, constants, states)
    for name in compiled.plan.inputs:
        executor.host_inputs[name][: given[name].size] = given[name].reshape(-1)
    executor.run(())
    executor.synchronize()
    for name in compiled.plan.inputs:
        after = executor.output(f"{name} afterwards", ())
        np.testing.assert_array_equal(after, given[name], err_msg=f"the kernel wrote to its input {name}")
    return [np.array(executor.output(f"out{position}", ())) for position in range(len(results))]


def check_kernel(case: KernelCase, operators: OperatorRegistry, opened: OpenDevice) -> None:
    """Assert that a kernel says what its operator's page says in float64, within the page's tolerance for the dtype.

    Weights in a format count as the values that the format's definition gives them.
    """
    inputs = rounded_inputs(case.operator, case.sample, case.float_type)
    outputs = run_kernel(case, operators, opened, inputs)
    meant = [
        array if array is None or spec.name not in case.formatted else rounded(case.formatted[spec.name], array)
        for spec, array in zip(case.operator.schema.inputs, inputs, strict=True)
    ]
    more = Tolerance()
    if case.weight_format is not None and case.operator.gathered:
        more = _ROUNDED_VALUES.get(case.float_type, more)
    elif case.weight_format is not None and case.kernel.arithmetic is DType.INT8:
        more = _ROUNDED_ACTIVATIONS
    elif case.weight_format is not None and case.kernel.rounds_weights:
        more = _ROUNDED_WEIGHTS.get(case.float_type, more)
    assert_within_tolerance(operators, case.operator, case.float_type, meant, case.sample.attributes, outputs, more)


def assert_within_tolerance(
    operators: OperatorRegistry,
    operator: Operator,
    float_type: DType,
    inputs: Sequence[Array | None],
    attributes: Mapping[str, Any],
    outputs: Sequence[Array],
    more: Tolerance = Tolerance(),  # noqa: B008 - a constant
) -> None:
    """Assert that outputs are those of the reference in float64 for these inputs, within the operator's tolerance for
    `float_type` and what `more` is allowed.
    """
    exact = [
        array.astype(np.float64) if array is not None and DType.of_numpy(array.dtype).is_floating else array
        for array in inputs
    ]
    completed = operator.schema.complete(attributes)
    expected = evaluate(operators, operator, exact, completed)
    terms = _magnitudes(operator, exact, completed, expected)
    tolerance = operator.tolerances[float_type]
    for output, reference, magnitude in zip(outputs, expected, terms, strict=True):
        assert output.shape == reference.shape, f"the output is of shape {output.shape}, not {reference.shape}"
        got = output.astype(np.float64)
        is_exact = np.isfinite(magnitude) & ~np.isfinite(reference)
        np.testing.assert_array_equal(got[is_exact], reference[is_exact])
        is_close = np.isfinite(magnitude) & np.isfinite(reference)
        error = np.abs(got[is_close] - reference[is_close])
        rounding = (tolerance.relative + more.relative) * np.abs(reference[is_close]) + tolerance.absolute
        of_terms = tolerance.relative_to_terms + more.relative_to_terms
        allowed = of_terms * magnitude[is_close] + rounding
        assert np.all(error <= allowed), f"off by up to {error.max():.3g}, outside of {tolerance}"


def _declare(builder: GraphBuilder, spec: TensorSpec, array: Array | None, *, is_changed: bool) -> Value | None:
    if array is None:
        return None
    dtype = DType.of_numpy(array.dtype)
    if is_changed:
        return builder.state(spec.name, dtype, array.shape)
    if spec.kind == "W":  # only a parameter can be had in a kernel's own packing
        return builder.parameter(spec.name, array.shape, dtype)
    return builder.input(spec.name, dtype, array.shape)


def _on_device(opened: OpenDevice, array: Array) -> Tensor:
    backend = opened.backend
    tensor = Tensor.of(backend.allocator.alloc(array.nbytes), DType.of_numpy(array.dtype), array.shape)
    backend.transfer.copy(tensor, Tensor.of_numpy(array, opened.device))
    return tensor


def _magnitudes(
    operator: Operator, inputs: Sequence[Array], attributes: Mapping[str, Any], outputs: tuple[Array, ...]
) -> tuple[Array, ...]:
    if operator.term_magnitudes is None:
        return tuple(np.abs(np.nan_to_num(output.astype(np.float64), posinf=0, neginf=0)) for output in outputs)
    terms = operator.term_magnitudes(*inputs, **attributes)
    return terms if isinstance(terms, tuple) else (terms,)
