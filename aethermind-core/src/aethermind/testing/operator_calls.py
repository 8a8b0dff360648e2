"""Runs one operator by one kernel on any device, and compares its outputs with the reference.

Inputs are copied to the device, outputs copied back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from aethermind.dispatch import Dispatcher, Fallback, Kernel
from aethermind.dispatch.reference import evaluate, rounded_inputs
from aethermind.errors import OperatorError
from aethermind.graph.builder import GraphBuilder
from aethermind.graph.compile import compile_graph
from aethermind.graph.constants import ConstantStore
from aethermind.graph.executor import PlanExecutor
from aethermind.graph.ir import Value, ValueKind
from aethermind.graph.plan import Plan
from aethermind.hal import DType, Stream, Tensor
from aethermind.hal.memory import ALIGNMENT, align_up
from aethermind.ops.dims import resolve
from aethermind.ops.operator import Array, Operator, OperatorRegistry, Sample, Tolerance
from aethermind.ops.quantization import fake_quantize
from aethermind.ops.schema import OperatorSchema, TensorSpec, TensorType
from aethermind.ops.weight_format import WeightFormat
from aethermind.runtime import OpenDevice
from aethermind.testing.device_arrays import on_device, on_host

__all__ = [
    "KernelCall",
    "KernelCase",
    "assert_same_bits",
    "assert_within_tolerance",
    "check_kernel",
    "other_values",
    "run_kernel",
]

_POISON_OF_FLOATS, _POISON_OF_INTEGERS = 0xFF, 0x7F
"""Fill bytes of outputs before a run: NaN as floats, and an invalid index as integers."""

_ROUNDED_ACTIVATIONS = {
    DType.INT8: Tolerance(relative_to_terms=0.02),
    DType.FLOAT8_E4M3FN: Tolerance(relative_to_terms=0.0625),
}
"""Additional tolerances of kernels that quantise activations to 8 bits, by their arithmetic. int8: the rounding error
is up to 1/254 of the largest value of a block, which is about four times the mean magnitude for normal distributions;
`_INT8_ERROR` bounds the error of short rows. fp8: with three bits of mantissa the error is up to 1/16 of the value.
"""
_INT8_ERROR = 1 / 254
"""The rounding error of an int8 activation, as a fraction of the largest one of its row."""
_ROUNDED_VALUES = {DType.BFLOAT16: Tolerance(relative=2.0**-8), DType.FLOAT16: Tolerance(relative=2.0**-11)}
"""Additional tolerances of kernels that return dequantised values, which are rounded once from float32."""
_ROUNDED_WEIGHTS = {
    dtype: Tolerance(relative_to_terms=tolerance.relative) for dtype, tolerance in _ROUNDED_VALUES.items()
}
"""Additional tolerances of kernels that round dequantised weights, which is an error of each term."""


@dataclass(frozen=True, slots=True)
class KernelCase:
    """A kernel, a float type and a weight format (None: dense) that it supports, and one sample of its operator."""

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
        """The weight format of each quantised input; empty where weights are dense."""
        if self.weight_format is None:
            return {}
        return dict.fromkeys((*self.operator.weight_inputs, *self.gathered_layouts), self.weight_format)

    @property
    def gathered_layouts(self) -> dict[str, str]:
        """The layouts, by input, of weights whose rows the kernel gathers from another operator's packed copy."""
        packs = self.kernel.packs.items()
        return {name: pack.name for name, pack in packs if name in self.operator.gathered}


class KernelCall:
    """A plan of one step on a device: runs the kernel of a case repeatedly with inputs of the same shapes.

    Inputs that the operator changes are states in device memory; weights are packed as the kernel needs them. With
    `in_place`, outputs reuse the memory of inputs where the schema allows it; these inputs are states, too.
    """

    def __init__(
        self,
        case: KernelCase,
        operators: OperatorRegistry,
        opened: OpenDevice,
        inputs: Sequence[Array | None],
        *,
        in_place: bool = False,
        stream: Stream | None = None,
    ) -> None:
        """Compile the plan; `inputs` have the values of weights and the shapes of all inputs."""
        schema = case.operator.schema
        self._opened = opened
        self._names = [spec.name for spec in schema.inputs]
        builder = GraphBuilder("conformance", operators, case.float_type)
        changed = set() if schema.is_view else {spec.alias for spec in schema.outputs}
        changed |= {spec.inplace for spec in schema.outputs} if in_place else set()
        given = self._by_name(inputs)
        values = [
            _declare(builder, declared, given.get(declared.name), is_changed=declared.name in changed)
            for declared in schema.inputs
        ]
        results = builder.op(case.operator.name, *values, **case.sample.attributes)
        results = results if isinstance(results, tuple) else (results,)
        for position, value in enumerate(results):
            builder.output(f"out{position}", value)
        for value in values:
            if value is not None and value.kind is ValueKind.INPUT:
                builder.output(f"{value.name} afterwards", value)
        graph = builder.finish()
        compiled = compile_graph(
            graph,
            operators,
            Dispatcher([case.kernel]),
            opened.backend.name,
            {},
            fallback=Fallback.ERROR,
            weight_formats=case.formatted,
            row_formats=case.formatted,
            packed=case.gathered_layouts,
        )
        plan = _in_place(compiled.plan, schema) if in_place else compiled.plan
        types = {value.name: value.type for value in graph.parameters}
        constants = ConstantStore(opened.backend, opened.device, lambda name, _: given[name], types)
        constants.load(plan)
        self._plan = plan
        self._states = {name: on_device(opened.backend, opened.device, given[name]) for name in plan.states}
        self._executor = PlanExecutor(plan, opened.backend, opened.device, constants, self._states, stream)
        self._written = [position for position, spec in enumerate(schema.outputs) if spec.alias is None]
        self._num_outputs = len(results)
        self._in_place = in_place

    def start(self, inputs: Sequence[Array | None]) -> None:
        """Fill the outputs with bytes that no kernel would write, and enqueue a run with these inputs."""
        given = self._by_name(inputs)
        for output, padded in self._poisoned():
            poison = _POISON_OF_FLOATS if output.dtype.is_floating else _POISON_OF_INTEGERS
            self._opened.backend.transfer.fill(padded, poison)
        for name, state in self._states.items():
            self._opened.backend.transfer.copy(state, Tensor.of_numpy(given[name], self._opened.device))
        for name in self._plan.inputs:
            self._executor.host_inputs[name][: given[name].size] = given[name].reshape(-1)
        self._executor.run(())

    def finish(self, inputs: Sequence[Array | None]) -> list[Array]:
        """Wait for the run with these inputs, and return its outputs on the host; assert that inputs are unchanged."""
        given = self._by_name(inputs)
        self._executor.synchronize()
        for name in self._plan.inputs:
            after = self._executor.output(f"{name} afterwards", ())
            assert_same_bits([after], [given[name]], f"the kernel wrote to its input {name}")
        for output, padded in self._poisoned():
            poison = _POISON_OF_FLOATS if output.dtype.is_floating else _POISON_OF_INTEGERS
            padding = on_host(self._opened.backend, padded)[output.nbytes :]
            assert np.all(padding == poison), "the kernel wrote behind the end of its output"
        return [np.array(self._executor.output(f"out{position}", ())) for position in range(self._num_outputs)]

    def run(self, inputs: Sequence[Array | None]) -> list[Array]:
        """Call `start` and `finish`."""
        self.start(inputs)
        return self.finish(inputs)

    def _poisoned(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the outputs that have memory of their own, and the bytes of each including its padding."""
        for position in () if self._in_place else self._written:
            output = self._executor.output_tensor(f"out{position}", ())
            if output.nbytes:
                end = min(align_up(output.offset_bytes + output.nbytes, ALIGNMENT), output.buffer.nbytes)
                nbytes = max(end - output.offset_bytes, output.nbytes)
                yield output, Tensor.of(output.buffer, DType.UINT8, (nbytes,), output.offset_bytes)

    def _by_name(self, inputs: Sequence[Array | None]) -> dict[str, Array]:
        return {name: array for name, array in zip(self._names, inputs, strict=True) if array is not None}


def run_kernel(
    case: KernelCase, operators: OperatorRegistry, opened: OpenDevice, inputs: Sequence[Array | None]
) -> list[Array]:
    """Return the outputs of one run, on the host; assert that inputs are unchanged."""
    return KernelCall(case, operators, opened, inputs).run(inputs)


def _in_place(plan: Plan, schema: OperatorSchema) -> Plan:
    """Return the plan with outputs in the memory of the inputs whose memory they may reuse."""
    (step,) = plan.steps
    names = [spec.name for spec in schema.inputs]
    outputs = [
        (given if spec.inplace is not None and (given := step.inputs[names.index(spec.inplace)]) else output)
        for spec, output in zip(schema.outputs, step.outputs, strict=True)
    ]
    placed = {f"out{position}": operand for position, operand in enumerate(outputs)}
    return replace(plan, steps=(replace(step, outputs=tuple(outputs)),), outputs={**plan.outputs, **placed})


def check_kernel(case: KernelCase, operators: OperatorRegistry, opened: OpenDevice) -> None:
    """Assert that a kernel's outputs are those of the float64 reference, within the operator's tolerance for the dtype.

    The kernel first runs with other values of the same shapes, which must not affect the result. If outputs may reuse
    the memory of inputs, it also runs in place, which must give the same bits.

    Quantised weights have the values that the format defines.
    """
    inputs = rounded_inputs(case.operator, case.sample, case.float_type)
    call = KernelCall(case, operators, opened, inputs)
    call.run(other_values(case.operator, inputs, case.sample.attributes))
    outputs = call.run(inputs)
    expected = _expected_of(case, operators, inputs)
    activation_error = _INT8_ERROR if case.kernel.arithmetic is DType.INT8 else 0.0
    _assert_close(case.operator, case.float_type, expected, outputs, _additional_tolerance(case), activation_error)
    if _may_be_in_place(case.operator, inputs, outputs):
        in_place = KernelCall(case, operators, opened, inputs, in_place=True).run(inputs)
        assert_same_bits(in_place, outputs, "in place it has other results")


def _may_be_in_place(operator: Operator, inputs: Sequence[Array | None], outputs: Sequence[Array]) -> bool:
    """Whether outputs may reuse the memory of inputs; not where a smaller one is broadcast."""
    shapes = {spec.name: array.shape for spec, array in zip(operator.schema.inputs, inputs, strict=True)
              if array is not None}  # fmt: skip
    specs = zip(operator.schema.outputs, outputs, strict=True)
    reused = [(spec.inplace, output.shape) for spec, output in specs if spec.inplace in shapes]
    return bool(reused) and all(shapes[name] == shape for name, shape in reused if name)


def other_values(
    operator: Operator, inputs: Sequence[Array | None], attributes: Mapping[str, Any]
) -> list[Array | None]:
    """Return inputs of the same shapes and mostly other values: each one reversed where that is valid.

    Cumulative lengths (`cu_…`), and indices that `Operator.check` rejects in reversed order, are unchanged.
    """
    names = [spec.name for spec in operator.schema.inputs]
    types = [None if array is None else TensorType(DType.of_numpy(array.dtype), array.shape) for array in inputs]
    outputs = operator.schema.infer(types, operator.schema.complete(attributes))
    shapes = {spec.name: resolve(type.shape, {}) for spec, type in zip(operator.schema.outputs, outputs, strict=True)}
    shapes |= {name: array.shape for name, array in zip(names, inputs, strict=True) if array is not None}
    changed = list(inputs)
    for position, array in enumerate(inputs):
        if array is None or names[position].startswith("cu_"):
            continue
        reversed_array = np.ascontiguousarray(array.reshape(-1)[::-1].reshape(array.shape))
        candidate = [*changed[:position], reversed_array, *changed[position + 1 :]]
        if operator.check is not None and array.dtype.kind == "i":
            integers = {
                name: value
                for name, value in zip(names, candidate, strict=True)
                if value is not None and value.dtype.kind == "i"
            }
            try:
                operator.check(integers, shapes)
            except OperatorError:
                continue
        changed = candidate
    return changed


def assert_same_bits(outputs: Sequence[Array], expected: Sequence[Array], message: str) -> None:
    """Assert that arrays have the same bytes; `message` says what is wrong if they do not."""
    for output, reference in zip(outputs, expected, strict=True):
        is_same = np.ascontiguousarray(output).view(np.uint8) == np.ascontiguousarray(reference).view(np.uint8)
        assert np.all(is_same), f"{message}: {np.count_nonzero(~is_same)} of {output.nbytes} bytes differ"


def assert_within_tolerance(
    operators: OperatorRegistry,
    operator: Operator,
    float_type: DType,
    inputs: Sequence[Array | None],
    attributes: Mapping[str, Any],
    outputs: Sequence[Array],
    additional: Tolerance = Tolerance(),  # noqa: B008 - a constant
) -> None:
    """Assert that outputs are those of the float64 reference, within the operator's tolerance for `float_type` plus
    the `additional` one.
    """
    _assert_close(operator, float_type, _expected(operators, operator, inputs, attributes), outputs, additional)


class _Expected(NamedTuple):
    """The outputs of the float64 reference, and the sums of the magnitudes of their terms.

    `largest` are these sums for a first input whose elements all have the largest magnitude of their row.
    """

    outputs: tuple[Array, ...]
    terms: tuple[Array, ...]
    largest: tuple[Array, ...] | None = None


_MAX_CACHED_BYTES = 256 << 20
_cache: dict[tuple[str, int, DType, str], tuple[Sample, _Expected]] = {}
"""Expected outputs by sample, for all kernels of an operator. Entries hold the sample, so that its id is not reused."""


def _expected_of(case: KernelCase, operators: OperatorRegistry, inputs: Sequence[Array | None]) -> _Expected:
    """Return the expected outputs of a case, its weights quantised and dequantised."""
    format = "" if case.weight_format is None else case.weight_format.name
    key = (case.operator.name, id(case.sample), case.float_type, f"{format} {case.kernel.arithmetic}")
    if key not in _cache:
        dequantized = [
            array
            if array is None or spec.name not in case.formatted
            else fake_quantize(case.formatted[spec.name], array)
            for spec, array in zip(case.operator.schema.inputs, inputs, strict=True)
        ]
        expected = _expected(operators, case.operator, dequantized, case.sample.attributes)
        if case.kernel.arithmetic is DType.INT8 and case.operator.term_magnitudes is not None:
            expected = expected._replace(largest=_terms_of_largest(case, dequantized))
        while (
            _cache and sum(_num_bytes(entry) for _, entry in _cache.values()) + _num_bytes(expected) > _MAX_CACHED_BYTES
        ):
            del _cache[next(iter(_cache))]
        _cache[key] = (case.sample, expected)
    return _cache[key][1]


def _num_bytes(expected: _Expected) -> int:
    return sum(array.nbytes for arrays in expected for array in arrays or ())


def _terms_of_largest(case: KernelCase, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
    x, *others = inputs
    assert x is not None, "the first input is never absent"
    rows = np.broadcast_to(np.abs(x.astype(np.float64)).max(-1, keepdims=True), x.shape)
    return _magnitudes(case.operator, [rows, *others], case.operator.schema.complete(case.sample.attributes), ())


def _expected(
    operators: OperatorRegistry, operator: Operator, inputs: Sequence[Array | None], attributes: Mapping[str, Any]
) -> _Expected:
    exact = [
        array.astype(np.float64) if array is not None and DType.of_numpy(array.dtype).is_floating else array
        for array in inputs
    ]
    completed = operator.schema.complete(attributes)
    with np.errstate(all="ignore"):  # samples have infinities and NaN in elements that must not be read
        outputs = evaluate(operators, operator, exact, completed)
        return _Expected(outputs, _magnitudes(operator, exact, completed, outputs))


def _assert_close(
    operator: Operator,
    float_type: DType,
    expected: _Expected,
    outputs: Sequence[Array],
    additional: Tolerance,
    activation_error: float = 0.0,
) -> None:
    """Assert that outputs are as expected, within the operator's tolerance and an additional one.

    If activations are quantised, the larger of two bounds applies: `additional` as a fraction of the terms of an
    output, or `activation_error` as a fraction of these terms for the largest activation of a row.
    """
    tolerance = operator.tolerances[float_type]
    largest = expected.terms if expected.largest is None else expected.largest
    for output, reference, magnitude, row_largest in zip(
        outputs, expected.outputs, expected.terms, largest, strict=True
    ):
        assert output.shape == reference.shape, f"the output is of shape {output.shape}, not {reference.shape}"
        actual = output.astype(np.float64)
        is_unbounded = np.isposinf(magnitude)
        is_exact = ~is_unbounded & ~np.isfinite(reference)
        np.testing.assert_array_equal(actual[is_exact], reference[is_exact])
        is_close = ~is_unbounded & np.isfinite(reference)
        error = np.abs(actual[is_close] - reference[is_close])
        rounding = (tolerance.relative + additional.relative) * np.abs(reference[is_close]) + tolerance.absolute
        quantised = np.maximum(
            additional.relative_to_terms * magnitude[is_close], activation_error * row_largest[is_close]
        )
        allowed = tolerance.relative_to_terms * magnitude[is_close] + quantised + rounding
        assert np.all(error <= allowed), f"off by up to {error.max():.3g}, outside of {tolerance}"


def _additional_tolerance(case: KernelCase) -> Tolerance:
    """Return the tolerance of a kernel with quantised weights in addition to that of its operator."""
    if case.weight_format is None:
        return Tolerance()
    if case.operator.gathered:
        return _ROUNDED_VALUES.get(case.float_type, Tolerance())
    if case.kernel.arithmetic in _ROUNDED_ACTIVATIONS:
        return _ROUNDED_ACTIVATIONS[case.kernel.arithmetic]
    if case.kernel.rounds_weights:
        return _ROUNDED_WEIGHTS.get(case.float_type, Tolerance())
    return Tolerance()


def _declare(builder: GraphBuilder, spec: TensorSpec, array: Array | None, *, is_changed: bool) -> Value | None:
    if array is None:
        return None
    dtype = DType.of_numpy(array.dtype)
    if is_changed:
        return builder.state(spec.name, dtype, array.shape)
    if spec.kind == "W":  # only parameters can be packed
        return builder.parameter(spec.name, array.shape, dtype)
    return builder.input(spec.name, dtype, array.shape)


def _magnitudes(
    operator: Operator, inputs: Sequence[Array], attributes: Mapping[str, Any], outputs: tuple[Array, ...]
) -> tuple[Array, ...]:
    if operator.term_magnitudes is None:
        return tuple(np.abs(np.nan_to_num(output.astype(np.float64), posinf=0, neginf=0)) for output in outputs)
    terms = operator.term_magnitudes(*inputs, **attributes)
    return terms if isinstance(terms, tuple) else (terms,)
