"""What a kernel promises beside its numbers: no state between calls, streams beside each other, rows by themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from aethermind.dispatch import Kernel
from aethermind.dispatch.reference import evaluate, rounded_inputs
from aethermind.errors import OperatorError
from aethermind.hal import DType, Stream
from aethermind.ops.operator import Array, Operator, OperatorRegistry, Sample
from aethermind.runtime import OpenDevice
from aethermind.testing.operator_calls import KernelCall, KernelCase, assert_same_bits, other_values

__all__ = [
    "check_alone_and_in_a_batch",
    "check_any_number_of_workers",
    "check_beside_another_stream",
    "check_nothing_is_kept",
    "failing_call",
    "has_parts",
]

_NUM_RUNS_BESIDE = 4

Part = tuple[slice, list[Array | None]]
"""Rows of the first output, and the inputs of a call for them alone."""


def check_nothing_is_kept(cases: Sequence[KernelCase], operators: OperatorRegistry, opened: OpenDevice) -> None:
    """Assert that calls of other shapes in between change no bit of the first."""
    calls = []
    for case in cases:
        inputs = rounded_inputs(case.operator, case.sample, case.float_type)
        calls.append((KernelCall(case, operators, opened, inputs), inputs))
    first = [call.run(inputs) for call, inputs in calls]
    for (call, inputs), outputs in zip(calls, first, strict=True):
        assert_same_bits(call.run(inputs), outputs, "the same call says something else after calls of other shapes")


def check_any_number_of_workers(case: KernelCase, operators: OperatorRegistry, opened: OpenDevice) -> None:
    """Assert that one worker and three compute the bits that as many as the backend likes do."""
    inputs = rounded_inputs(case.operator, case.sample, case.float_type)
    expected = KernelCall(case, operators, opened, inputs).run(inputs)
    try:
        for wanted in (1, 3):
            number = opened.backend.set_num_threads(wanted)
            outputs = KernelCall(case, operators, opened, inputs).run(inputs)
            assert_same_bits(outputs, expected, f"with worker threads numbering {number} it computes something else")
            if number != wanted:  # it has none
                break
    finally:
        opened.backend.set_num_threads(None)


def check_beside_another_stream(case: KernelCase, operators: OperatorRegistry, opened: OpenDevice) -> None:
    """Assert that a kernel says the same while it runs on another stream, by another thread, with other values."""
    inputs = rounded_inputs(case.operator, case.sample, case.float_type)
    given = (inputs, other_values(case.operator, inputs))
    streams = [opened.backend.streams.create(opened.device.index) for _ in given]
    calls = [KernelCall(case, operators, opened, inputs, stream=stream) for stream in streams]
    alone = [call.run(values) for call, values in zip(calls, given, strict=True)]

    def runs(which: int) -> list[list[Array]]:
        opened.backend.devices.set_current(opened.device.index)
        return [calls[which].run(given[which]) for _ in range(_NUM_RUNS_BESIDE)]

    with ThreadPoolExecutor(len(calls)) as pool:
        beside = list(pool.map(runs, range(len(calls))))
    for stream in streams:
        stream.destroy()
    for outputs, expected in zip(beside, alone, strict=True):
        for one in outputs:
            assert_same_bits(one, expected, "beside a run on another stream it computes something else")


def check_alone_and_in_a_batch(case: KernelCase, operators: OperatorRegistry, opened: OpenDevice) -> int:
    """Assert that a few rows have the same bits when they are computed alone; returns how many parts were tried.

    Of what the operator changes in place it compares what a row changes.
    """
    inputs = rounded_inputs(case.operator, case.sample, case.float_type)
    parts = list(parts_of(case.operator, operators, inputs, case))
    if not parts:
        return 0
    together = KernelCall(case, operators, opened, inputs).run(inputs)
    before = {spec.name: array for spec, array in zip(case.operator.schema.inputs, inputs, strict=True)}
    for rows, own in parts:
        alone = KernelCall(case, operators, opened, own).run(own)
        for spec, output, whole in zip(case.operator.schema.outputs, alone, together, strict=True):
            what = f"rows {rows.start} to {rows.stop - 1} alone are others than in a batch"
            if spec.alias is None:
                assert_same_bits([output], [_rows(whole, spec.pattern, _axis(case.operator), rows)], what)
            else:
                given = before[spec.alias]
                assert given is not None
                is_changed = output.view(f"u{output.itemsize}") != given.view(f"u{given.itemsize}")
                assert_same_bits([output[is_changed]], [whole[is_changed]], what)
    return len(parts)


def failing_call(operators: OperatorRegistry, opened: OpenDevice, stream: Stream) -> Callable[[], None]:
    """What enqueues a kernel on a stream that raises when it runs."""
    kernel = Kernel("add", opened.backend.name, "failing", frozenset({DType.FLOAT32}), function=_fail)
    array = np.ones((2, 3), np.float32)
    case = KernelCase(operators["add"], kernel, DType.FLOAT32, Sample("failing", (array, array)))
    call = KernelCall(case, operators, opened, (array, array), stream=stream)
    return lambda: call.start((array, array))


def _fail(*_: object) -> None:
    raise RuntimeError("This kernel always fails; the conformance kit looks whether that is told.")


def has_parts(case: KernelCase, operators: OperatorRegistry) -> bool:
    """Whether there are rows of a case that can be computed alone."""
    inputs = rounded_inputs(case.operator, case.sample, case.float_type)
    return next(parts_of(case.operator, operators, inputs, case), None) is not None


def parts_of(
    operator: Operator, operators: OperatorRegistry, inputs: Sequence[Array | None], case: KernelCase
) -> Iterator[Part]:
    """The first row, the last and one between, or sequences of a ragged batch and their last queries.

    None where rows are not independent.
    """
    names = [spec.name for spec in operator.schema.inputs]
    if "cu_seqlens_q" in names:
        yield from _sequences(names, inputs)
        return
    axis = _axis(operator)
    count = 0 if axis is None else _num_rows(operator, inputs, axis)
    if axis is None or count < 2:
        return
    attributes = operator.schema.complete(case.sample.attributes)
    position, pattern = _rows_of(operator)
    with np.errstate(all="ignore"):
        whole = evaluate(operators, operator, inputs, attributes)[position]
    for row in sorted({0, count // 2, count - 1}):
        rows = slice(row, row + 1)
        own = [
            array if array is None else _rows(array, spec.pattern, axis, rows)
            for spec, array in zip(operator.schema.inputs, inputs, strict=True)
        ]
        try:
            with np.errstate(all="ignore"):
                meant = evaluate(operators, operator, own, attributes)[position]
        except (OperatorError, IndexError):
            return  # indices name other rows
        if not np.allclose(meant, _rows(whole, pattern, axis, rows), equal_nan=True):
            return  # a row means something else by itself, as a query of causal attention does
        yield rows, own


def _sequences(names: Sequence[str], inputs: Sequence[Array | None]) -> Iterator[Part]:
    given = dict(zip(names, inputs, strict=True))
    bounds, lengths, tables = (given[name] for name in ("cu_seqlens_q", "seqlens_k", "block_tables"))
    assert bounds is not None
    assert lengths is not None
    assert tables is not None
    chosen = [one for one in range(len(lengths)) if bounds[one] < bounds[one + 1]]
    if len(chosen) < 2:
        return
    for one in sorted({chosen[0], chosen[len(chosen) // 2], chosen[-1]}):
        begin, end = int(bounds[one]), int(bounds[one + 1])
        for rows in (slice(begin, end), slice(end - 1, end)):  # the whole sequence, and its last query
            q = given["q"]
            assert q is not None
            own = {
                "q": np.ascontiguousarray(q[rows]),
                "cu_seqlens_q": np.array([0, rows.stop - rows.start], bounds.dtype),
                "seqlens_k": lengths[one : one + 1].copy(),
                "block_tables": tables[one : one + 1].copy(),
            }
            yield rows, [own.get(name, given[name]) for name in names]


def _rows_of(operator: Operator) -> tuple[int, tuple[str, ...]]:
    """The first output that is no input's memory, and its dims; without dims where there is none."""
    outputs = ((position, spec.pattern) for position, spec in enumerate(operator.schema.outputs) if spec.alias is None)
    return next(outputs, (0, ()))


def _axis(operator: Operator) -> str | None:
    """The dim that counts rows: the first one that is named, or `...` where only columns are; None without any."""
    _, pattern = _rows_of(operator)
    if pattern[:1] != ("...",):
        return pattern[0] if pattern else None
    return pattern[1] if len(pattern) > 2 else "..."


def _num_rows(operator: Operator, inputs: Sequence[Array | None], axis: str) -> int:
    for spec, array in zip(operator.schema.inputs, inputs, strict=True):
        if array is not None and axis in spec.pattern and array.ndim >= len(spec.pattern):
            where = spec.pattern.index(axis)
            return int(array.shape[where if axis == "..." else where - len(spec.pattern)])
    return 0


def _rows(array: Array, pattern: Sequence[str], axis: str | None, rows: slice) -> Array:
    """Of an array that counts rows, these; any other as it is."""
    if axis is None or axis not in pattern:
        return array
    where = 0 if axis == "..." else array.ndim - len(pattern) + list(pattern).index(axis)
    return np.ascontiguousarray(array[(slice(None),) * where + (rows,)])
