"""One operator run by one kernel on any device: inputs are brought there, outputs brought back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from aethermind.dispatch import Dispatcher, Fallback, Kernel
from aethermind.dispatch.kernel import Signature
from aethermind.dispatch.reference import evaluate, rounded_inputs
from aethermind.graph.builder import GraphBuilder
from aethermind.graph.compile import compile_graph
from aethermind.graph.constants import ConstantStore
from aethermind.graph.executor import Executor
from aethermind.graph.ir import Value, ValueKind
from aethermind.hal import DType, Tensor
from aethermind.ops.operator import Array, Operator, OperatorRegistry, Sample
from aethermind.ops.schema import TensorSpec, TensorType
from aethermind.ops.weight_format import DENSE
from aethermind.runtime import OpenDevice

__all__ = ["KernelCase", "check_kernel", "kernel_cases", "run_kernel"]


@dataclass(frozen=True, slots=True)
class KernelCase:
    """A kernel, one of the float types that it takes, and one sample of its operator."""

    operator: Operator
    kernel: Kernel
    float_type: DType
    sample: Sample

    def __str__(self) -> str:
        return f"{self.operator.name}-{self.kernel.name}-{self.float_type}-{self.sample.label}"


def kernel_cases(kernels: Sequence[Kernel], operators: OperatorRegistry, seed: int) -> Iterator[KernelCase]:
    """Every sample of its page for each kernel of a device that takes dense weights, in each of its float types.

    What a kernel does not support and another one of the same operator does is no case of the first.
    """
    for kernel in kernels:
        operator = operators[kernel.operator]
        if kernel.weight_formats is not None and DENSE not in kernel.weight_formats:
            continue
        others = [one for one in kernels if one.operator == operator.name]
        for float_type in sorted(kernel.dtypes & operator.tolerances.keys(), key=str):
            for sample in operator.samples(np.random.default_rng(seed)):
                case = KernelCase(operator, kernel, float_type, sample)
                if _is_supported(case) or not any(_is_supported(replace(case, kernel=one)) for one in others):
                    yield case


def _is_supported(case: KernelCase) -> bool:
    operator, kernel = case.operator, case.kernel
    inputs = rounded_inputs(operator, case.sample, case.float_type)
    types = tuple(None if one is None else TensorType(DType.of_numpy(one.dtype), one.shape) for one in inputs)
    attributes = operator.schema.complete(case.sample.attributes)
    signature = Signature(operator.name, kernel.device_type, case.float_type, types, attributes)
    return case.float_type in kernel.dtypes and kernel.supports(signature) is None


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
    compiled = compile_graph(graph, operators, dispatcher, opened.backend.name, {}, fallback=Fallback.ERROR)
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
    """Assert that a kernel says what its operator's page says in float64, within the page's tolerance for the dtype."""
    operator = case.operator
    inputs = rounded_inputs(operator, case.sample, case.float_type)
    attributes = operator.schema.complete(case.sample.attributes)
    exact = [
        array.astype(np.float64) if array is not None and DType.of_numpy(array.dtype).is_floating else array
        for array in inputs
    ]
    expected = evaluate(operators, operator, exact, attributes)
    terms = _magnitudes(operator, exact, attributes, expected)
    outputs = run_kernel(case, operators, opened, inputs)
    tolerance = operator.tolerances[case.float_type]
    for output, reference, magnitude in zip(outputs, expected, terms, strict=True):
        assert output.shape == reference.shape, f"the output is of shape {output.shape}, not {reference.shape}"
        got = output.astype(np.float64)
        is_exact = np.isfinite(magnitude) & ~np.isfinite(reference)
        np.testing.assert_array_equal(got[is_exact], reference[is_exact])
        is_close = np.isfinite(magnitude) & np.isfinite(reference)
        error = np.abs(got[is_close] - reference[is_close])
        rounding = tolerance.relative * np.abs(reference[is_close]) + tolerance.absolute
        allowed = tolerance.relative_to_terms * magnitude[is_close] + rounding
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
