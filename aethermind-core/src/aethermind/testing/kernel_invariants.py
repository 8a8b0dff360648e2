"""Checks of properties of kernels: statelessness, thread counts, concurrent streams, batch invariance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from aethermind.dispatch.reference import evaluate, rounded_inputs
from aethermind.errors import OperatorError
from aethermind.ops.operator import Array, Operator, OperatorRegistry
from aethermind.ops.shape_inference import BROADCAST, REST
from aethermind.runtime import OpenDevice
from aethermind.testing.operator_calls import KernelCall, KernelCase, assert_same_bits, other_values

__all__ = [
    "check_batch_invariance",
    "check_concurrent_streams",
    "check_stateless",
    "check_thread_counts",
    "has_separable_rows",
]

_NUM_CONCURRENT_RUNS = 4

RowSubset = tuple[slice, list[Array | None]]
"""Rows of the first output, and the inputs of a call that computes only them."""


def check_stateless(cases: Sequence[KernelCase], operators: OperatorRegistry, opened: OpenDevice) -> None:
    """Assert that calls with other shapes in between do not change the results of a call."""
    calls = []
    for case in cases:
        inputs = rounded_inputs(case.operator, case.sample, case.float_type)
        calls.append((KernelCall(case, operators, opened, inputs), inputs))
    first = [call.run(inputs) for call, inputs in calls]
    for (call, inputs), outputs in zip(calls, first, strict=True):
        assert_same_bits(call.run(inputs), outputs, "the same call has different results after calls with other shapes")


def check_thread_counts(case: KernelCase, operators: OperatorRegistry, opened: OpenDevice) -> None:
    """Assert that one and three worker threads compute the same bits as the backend's default number."""
    inputs = rounded_inputs(case.operator, case.sample, case.float_type)
    expected = KernelCall(case, operators, opened, inputs).run(inputs)
    try:
        for requested in (1, 3):
            num_threads = opened.backend.set_num_threads(requested)
            outputs = KernelCall(case, operators, opened, inputs).run(inputs)
            assert_same_bits(outputs, expected, f"results differ with {num_threads} worker threads")
            if num_threads != requested:  # the backend has no worker threads
                break
    finally:
        opened.backend.set_num_threads(None)


def check_concurrent_streams(case: KernelCase, operators: OperatorRegistry, opened: OpenDevice) -> None:
    """Assert that results do not change while another thread runs the kernel on another stream, with other values."""
    inputs = rounded_inputs(case.operator, case.sample, case.float_type)
    inputs_by_stream = (inputs, other_values(case.operator, inputs, case.sample.attributes))
    streams = [opened.backend.streams.create(opened.device.index) for _ in inputs_by_stream]
    calls = [KernelCall(case, operators, opened, inputs, stream=stream) for stream in streams]
    alone = [call.run(values) for call, values in zip(calls, inputs_by_stream, strict=True)]

    def run_repeatedly(index: int) -> list[list[Array]]:
        opened.backend.devices.set_current(opened.device.index)
        return [calls[index].run(inputs_by_stream[index]) for _ in range(_NUM_CONCURRENT_RUNS)]

    with ThreadPoolExecutor(len(calls)) as pool:
        concurrent = list(pool.map(run_repeatedly, range(len(calls))))
    for stream in streams:
        stream.destroy()
    for outputs, expected in zip(concurrent, alone, strict=True):
        for output in outputs:
            assert_same_bits(output, expected, "results differ while the kernel also runs on another stream")


def check_batch_invariance(case: KernelCase, operators: OperatorRegistry, opened: OpenDevice) -> int:
    """Assert batch invariance: rows computed alone are bitwise equal to the same rows of a batch.

    Returns the number of subsets of rows that were checked. For outputs that alias an input, only the elements that the
    rows change are compared. Sequences with states are also computed in two calls, one after the other.
    """
    inputs = rounded_inputs(case.operator, case.sample, case.float_type)
    subsets = list(row_subsets(case.operator, operators, inputs, case))
    if not subsets:
        return 0
    batched = KernelCall(case, operators, opened, inputs).run(inputs)
    before = {spec.name: array for spec, array in zip(case.operator.schema.inputs, inputs, strict=True)}
    for rows, subset in subsets:
        alone = KernelCall(case, operators, opened, subset).run(subset)
        for spec, output, whole in zip(case.operator.schema.outputs, alone, batched, strict=True):
            message = f"rows {rows.start} to {rows.stop - 1} computed alone differ from those in a batch"
            if spec.alias is None:
                assert_same_bits([output], [_take_rows(whole, spec.pattern, _row_dim(case.operator), rows)], message)
            else:
                aliased = before[spec.alias]
                assert aliased is not None
                is_changed = output.view(f"u{output.itemsize}") != aliased.view(f"u{aliased.itemsize}")
                assert_same_bits([output[is_changed]], [whole[is_changed]], message)
    if "cu_seqlens_q" in before and _has_state(case.operator):
        _check_chunks(case, operators, opened, inputs)
    return len(subsets)


def has_separable_rows(case: KernelCase, operators: OperatorRegistry) -> bool:
    """Whether rows of a case can be computed alone."""
    inputs = rounded_inputs(case.operator, case.sample, case.float_type)
    return next(row_subsets(case.operator, operators, inputs, case), None) is not None


def row_subsets(
    operator: Operator, operators: OperatorRegistry, inputs: Sequence[Array | None], case: KernelCase
) -> Iterator[RowSubset]:
    """Yield the first, the middle and the last row; for a ragged batch, three sequences and the last query of each.

    Yields nothing where rows are not independent.
    """
    names = [spec.name for spec in operator.schema.inputs]
    if "cu_seqlens_q" in names:
        yield from _sequences(operator, inputs)
        return
    row_dim = _row_dim(operator)
    num_rows = 0 if row_dim is None else _num_rows(operator, inputs, row_dim)
    if row_dim is None or num_rows < 2:
        return
    attributes = operator.schema.complete(case.sample.attributes)
    position, pattern = _first_new_output(operator)
    with np.errstate(all="ignore"):
        whole = evaluate(operators, operator, inputs, attributes)[position]
    if not whole.ndim:
        return
    for row in sorted({0, num_rows // 2, num_rows - 1}):
        rows = slice(row, row + 1)
        subset = [
            array if array is None else _take_rows(array, spec.pattern, row_dim, rows, whole.ndim)
            for spec, array in zip(operator.schema.inputs, inputs, strict=True)
        ]
        try:
            with np.errstate(all="ignore"):
                alone = evaluate(operators, operator, subset, attributes)[position]
        except (OperatorError, IndexError):
            return  # indices refer to other rows
        expected = _take_rows(whole, pattern, row_dim, rows)
        if alone.shape != expected.shape or not np.allclose(alone, expected, equal_nan=True):
            return  # rows depend on each other, as the queries of causal attention do
        yield rows, subset


def _sequences(operator: Operator, inputs: Sequence[Array | None]) -> Iterator[RowSubset]:
    for begin, end, length in _chosen_sequences(operator, inputs):
        yield slice(begin, end), _rows_of_sequence(operator, inputs, slice(begin, end), length)
        if not _has_state(operator):  # without a state, a query does not depend on other queries
            yield slice(end - 1, end), _rows_of_sequence(operator, inputs, slice(end - 1, end), length)


def _chosen_sequences(operator: Operator, inputs: Sequence[Array | None]) -> list[tuple[int, int, int]]:
    """Return first row, last row + 1 and length of three sequences of a batch; an empty list if it has one sequence."""
    arrays = {spec.name: array for spec, array in zip(operator.schema.inputs, inputs, strict=True)}
    bounds, lengths = arrays["cu_seqlens_q"], arrays["seqlens_k"]
    assert bounds is not None
    assert lengths is not None
    non_empty = [sequence for sequence in range(len(lengths)) if bounds[sequence] < bounds[sequence + 1]]
    chosen = sorted({non_empty[0], non_empty[len(non_empty) // 2], non_empty[-1]}) if len(non_empty) > 1 else []
    return [(int(bounds[sequence]), int(bounds[sequence + 1]), int(lengths[sequence])) for sequence in chosen]


def _rows_of_sequence(
    operator: Operator, inputs: Sequence[Array | None], rows: slice, length: int
) -> list[Array | None]:
    """Return the inputs of a call that computes these rows of one sequence, which then has `length` tokens."""
    position = [spec.name for spec in operator.schema.inputs].index("cu_seqlens_q")
    bounds = inputs[position]
    assert bounds is not None
    sequence_dim = operator.schema.inputs[position].pattern[0].partition("+")[0]
    number = int(np.searchsorted(bounds, rows.start, side="right")) - 1
    subset: list[Array | None] = []
    for spec, array in zip(operator.schema.inputs, inputs, strict=True):
        if spec.name == "cu_seqlens_q":
            array = np.array([0, rows.stop - rows.start], bounds.dtype)
        elif spec.name == "seqlens_k" and array is not None:
            array = np.array([length], array.dtype)
        elif array is not None:
            array = _take_rows(array, spec.pattern, sequence_dim, slice(number, number + 1))
            array = _take_rows(array, spec.pattern, _row_dim(operator), rows)
        subset.append(array)
    return subset


def _has_state(operator: Operator) -> bool:
    """Whether the operator updates states of sequences, which its next call reads."""
    return any(spec.alias for spec in operator.schema.outputs)


def _check_chunks(
    case: KernelCase, operators: OperatorRegistry, opened: OpenDevice, inputs: Sequence[Array | None]
) -> None:
    """Assert that a sequence with a state has the same bits when its rows are computed in two calls."""
    names = [spec.name for spec in case.operator.schema.inputs]
    aliases = [None if spec.alias is None else names.index(spec.alias) for spec in case.operator.schema.outputs]
    for begin, end, length in _chosen_sequences(case.operator, inputs):
        middle = (begin + end) // 2
        if begin == middle:
            continue
        whole = _rows_of_sequence(case.operator, inputs, slice(begin, end), length)
        first = _rows_of_sequence(case.operator, inputs, slice(begin, middle), length - (end - middle))
        second = _rows_of_sequence(case.operator, inputs, slice(middle, end), length)
        before = KernelCall(case, operators, opened, first).run(first)
        for alias, output in zip(aliases, before, strict=True):
            if alias is not None:
                second[alias] = output
        after = KernelCall(case, operators, opened, second).run(second)
        expected = KernelCall(case, operators, opened, whole).run(whole)
        parts = [
            np.concatenate(halves) if alias is None else halves[1]
            for alias, halves in zip(aliases, zip(before, after, strict=True), strict=True)
        ]
        assert_same_bits(parts, expected, "a sequence computed in two calls differs from the same in one")


def _first_new_output(operator: Operator) -> tuple[int, tuple[str, ...]]:
    """Return the index and dims of the first output that does not alias an input; `(0, ())` if all do."""
    outputs = ((position, spec.pattern) for position, spec in enumerate(operator.schema.outputs) if spec.alias is None)
    return next(outputs, (0, ()))


def _row_dim(operator: Operator) -> str | None:
    """Return the row dim: the first named dim, or `...` if only the column dim is named; None if there are no dims."""
    _, pattern = _first_new_output(operator)
    if pattern[:1] != (REST,) and not _is_function(pattern):
        return pattern[0] if pattern else None
    return pattern[1] if len(pattern) > 2 else REST


def _is_function(pattern: Sequence[str]) -> bool:
    """Whether the dims are a function of the leading ones, such as `reduce(...)`."""
    return len(pattern) == 1 and pattern[0].endswith(f"({REST})")


def _num_rows(operator: Operator, inputs: Sequence[Array | None], row_dim: str) -> int:
    for spec, array in zip(operator.schema.inputs, inputs, strict=True):
        if array is not None and row_dim in spec.pattern and array.ndim >= len(spec.pattern):
            axis = spec.pattern.index(row_dim)
            return int(array.shape[axis if row_dim == REST else axis - len(spec.pattern)])
    broadcast = [array.shape for spec, array in zip(operator.schema.inputs, inputs, strict=True)
                 if array is not None and spec.pattern == (BROADCAST,)]  # fmt: skip
    common = np.broadcast_shapes(*broadcast)
    return int(common[0]) if common else 0


def _take_rows(
    array: Array, pattern: Sequence[str], row_dim: str | None, rows: slice, num_dims: int | None = None
) -> Array:
    """Return these rows of an array that has the row dim; other arrays unchanged.

    `num_dims` is the number of dims of the whole output: an array with fewer, or with one row, is broadcast over rows.
    """
    if row_dim == REST and tuple(pattern) == (BROADCAST,):
        return array if array.ndim != num_dims or len(array) == 1 else np.ascontiguousarray(array[rows])
    if row_dim == REST and _is_function(pattern):
        return np.ascontiguousarray(array[rows])
    if row_dim is None or row_dim not in pattern:
        return array
    axis = 0 if row_dim == REST else array.ndim - len(pattern) + list(pattern).index(row_dim)
    return np.ascontiguousarray(array[(slice(None),) * axis + (rows,)])
