"""The reference runner rounds where storage does, and its kernels write where they are told."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from aethermind.dispatch.reference import ReferenceRunner, evaluate, reference_kernels, rounded_inputs
from aethermind.errors import OperatorError
from aethermind.hal.dtype import DType
from aethermind.ops import catalog
from aethermind.ops.operator import Operator, OperatorRegistry, Sample
from aethermind.testing.operator_calls import assert_within_tolerance

REGISTRY = OperatorRegistry(catalog.load())
RUNNER = ReferenceRunner(REGISTRY)
KERNELS = {kernel.operator: kernel for kernel in reference_kernels(REGISTRY, "numpy") if kernel.priority == 0}
BY_ROW = {kernel.operator: kernel for kernel in reference_kernels(REGISTRY, "numpy") if kernel.priority < 0}
DTYPES = (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)
CASES = [
    pytest.param(operator, sample, float_type, id=f"{operator.name}-{sample.label}-{float_type}")
    for operator in REGISTRY
    for sample in operator.samples(np.random.default_rng(11))
    for float_type in DTYPES
    if float_type in operator.tolerances
]

each_case = pytest.mark.parametrize(("operator", "sample", "float_type"), CASES)


@each_case
def test_operators_in_storage_dtypes_stay_within_their_tolerance(
    operator: Operator, sample: Sample, float_type: DType
) -> None:
    inputs = rounded_inputs(operator, sample, float_type)
    outputs = as_tuple(RUNNER.op(operator.name, *inputs, **sample.attributes))
    assert_within_tolerance(REGISTRY, operator, float_type, inputs, sample.attributes, outputs)
    given = {spec.name: array for spec, array in zip(operator.schema.inputs, inputs, strict=True)}
    for spec, output in zip(operator.schema.outputs, outputs, strict=True):
        codes = given.get(spec.alias) if spec.kind == "q8" else None
        assert DType.of_numpy(output.dtype) is (
            spec.dtype(float_type, attributes=sample.attributes) if codes is None else DType.of_numpy(codes.dtype)
        )


@each_case
def test_kernels_write_what_the_runner_returns(operator: Operator, sample: Sample, float_type: DType) -> None:
    kernel = KERNELS.get(operator.name)
    assert (kernel is None) == (operator.decompose is not None or operator.schema.is_view)
    if kernel is None:
        return
    inputs = rounded_inputs(operator, sample, float_type)
    attributes = operator.schema.complete(sample.attributes)
    expected = as_tuple(RUNNER.op(operator.name, *inputs, **attributes))
    shared = {spec.name: array for spec, array in zip(operator.schema.inputs, inputs, strict=True)}
    outputs = []
    for spec, array in zip(operator.schema.outputs, expected, strict=True):
        aliased = shared.get(spec.alias or spec.inplace or "")
        is_shared = aliased is not None and aliased.shape == array.shape
        outputs.append(aliased if is_shared else np.empty_like(array))
    assert kernel.function is not None
    kernel.function(inputs, outputs, attributes)
    for output, array in zip(outputs, expected, strict=True):
        np.testing.assert_array_equal(output, array)


def test_kernels_exist_for_every_operator_that_computes() -> None:
    assert {"linear", "paged_attention", "kv_cache_write", "sample_tokens"} <= set(KERNELS)
    assert not {"split_heads", "mlp_swiglu"} & set(KERNELS)
    for kernel in KERNELS.values():
        assert (kernel.device_type, kernel.name, kernel.priority, kernel.dtypes) == (
            "numpy",
            "reference",
            0,
            frozenset(DTYPES),
        )


@pytest.mark.parametrize("operator", ["kv_cache_write", "paged_attention"])
def test_a_step_costs_no_copy_of_the_cache(operator: str) -> None:
    bfloat16 = DType.BFLOAT16.numpy
    caches = [np.ones((512, 2, 16, 64), bfloat16) for _ in range(2)]
    x = np.zeros((1, 2, 64), bfloat16)
    if operator == "kv_cache_write":
        inputs, outputs, attributes = [x, x, np.array([7], np.int64), *caches], caches, {}
    else:
        tables = [np.array([0, 1], np.int32), np.array([3], np.int32), np.array([[5]], np.int32)]
        inputs, outputs = [x, *caches, *tables, None, None], [x.copy()]
        attributes = {"scale": 1.0, "window": 0, "softcap": 0.0}
    tracemalloc.start()
    KERNELS[operator].function(inputs, outputs, attributes)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < caches[0].nbytes // 10


def test_a_composite_rounds_between_its_members() -> None:
    rng, bfloat16 = np.random.default_rng(0), DType.BFLOAT16.numpy
    gate, up = rng.standard_normal((2, 9, 33)).astype(bfloat16)
    apart = RUNNER.op("mul", RUNNER.op("silu", gate), up)
    np.testing.assert_array_equal(RUNNER.op("silu_mul", gate, up), apart)
    exact = evaluate(REGISTRY, REGISTRY["silu_mul"], (gate, up), {})[0]
    assert exact.dtype == np.float64
    assert (exact != apart).any()


def test_float64_is_never_rounded() -> None:
    rng = np.random.default_rng(0)
    x, weight = rng.standard_normal((3, 40)), rng.standard_normal((7, 40))
    logits = RUNNER.op("lm_head", x, weight)
    assert logits.dtype == np.float64
    np.testing.assert_array_equal(logits, x @ weight.T)


def test_inputs_that_do_not_fit_are_refused() -> None:
    x, weight = np.zeros((2, 8), np.float32), np.zeros((5, 8), np.float32)
    with pytest.raises(OperatorError, match="takes 3 inputs, got 4"):
        RUNNER.op("linear", x, weight, None, None)
    with pytest.raises(OperatorError, match=r"input 'weight' is float32\[8,5\], but K is 8 elsewhere"):
        RUNNER.op("linear", x, weight.T, None)
    with pytest.raises(OperatorError, match="no attribute 'bias'"):
        RUNNER.op("linear", x, weight, None, bias=True)


def as_tuple(outputs: Any) -> tuple[Any, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def test_what_depends_on_the_batch_says_so_and_has_a_form_that_does_not() -> None:
    assert set(BY_ROW) == {
        "add_low_rank",
        "attention",
        "linear",
        "lm_head",
        "matmul",
        "paged_attention",
        "paged_attention_quantized",
        "router_logits",
    }
    assert all(kernel.is_batch_invariant for kernel in BY_ROW.values())
    assert {name for name, kernel in KERNELS.items() if not kernel.is_batch_invariant} == set(BY_ROW)


@each_case
def test_references_by_row_compute_the_same(operator: Operator, sample: Sample, float_type: DType) -> None:
    if operator.by_row is None:
        return
    inputs = rounded_inputs(operator, sample, float_type)
    expected = as_tuple(RUNNER.op(operator.name, *inputs, **sample.attributes))
    outputs = [np.zeros_like(array) for array in expected]
    function = BY_ROW[operator.name].function
    assert function is not None
    function(inputs, outputs, operator.schema.complete(sample.attributes))
    assert_within_tolerance(REGISTRY, operator, float_type, inputs, sample.attributes, outputs)


def test_a_row_of_a_product_has_the_same_bits_alone() -> None:
    rng = np.random.default_rng(3)
    x, weight = (rng.standard_normal(shape).astype(np.float32) for shape in ((17, 130), (33, 130)))
    for name in ("linear", "lm_head"):
        by_row = REGISTRY[name].by_row
        assert by_row is not None
        together = by_row(x, weight, None)
        for row in range(len(x)):
            np.testing.assert_array_equal(by_row(x[row : row + 1], weight, None)[0], together[row])


def test_a_row_with_an_adapter_has_the_same_bits_alone() -> None:
    rng = np.random.default_rng(3)
    y, x, down, up = (
        rng.standard_normal(shape).astype(np.float32) for shape in ((17, 33), (17, 130), (9, 130), (9, 33))
    )
    cuts, adapters = np.array([0, 4, 9], np.int32), rng.integers(-1, 2, 17).astype(np.int32)
    by_row = REGISTRY["add_low_rank"].by_row
    assert by_row is not None
    together = by_row(y, x, down, up, cuts, adapters)
    for row in range(len(x)):
        own = slice(row, row + 1)
        np.testing.assert_array_equal(by_row(y[own], x[own], down, up, cuts, adapters[own])[0], together[row])
