"""Operators called on arrays say what their float64 references say, on every device and for both kinds of arrays."""

from __future__ import annotations

import gc
import inspect
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from aethermind import eager
from aethermind.dispatch.reference import rounded_inputs
from aethermind.eager import Eager
from aethermind.errors import DeviceError, KernelNotFoundError, OperatorError
from aethermind.hal.dtype import DType
from aethermind.ops import catalog
from aethermind.ops.operator import Operator, OperatorRegistry, Sample
from aethermind.testing.operator_calls import assert_within_tolerance

REGISTRY = OperatorRegistry(catalog.load())
CASES = [
    pytest.param(operator, sample, float_type, id=f"{operator.name}-{sample.label}-{float_type}")
    for operator in REGISTRY
    for sample in operator.samples(np.random.default_rng(5))
    for float_type in (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)
    if float_type in operator.tolerances
]


@pytest.fixture(scope="module", params=["numpy", "cpu"])
def session(request: pytest.FixtureRequest) -> Iterator[Eager]:
    opened = Eager(device=request.param)
    yield opened
    opened.close()


@pytest.mark.parametrize("is_torch", [False, True], ids=["numpy_arrays", "torch_tensors"])
@pytest.mark.parametrize(("operator", "sample", "float_type"), CASES)
def test_results_are_within_the_tolerance_of_the_reference(
    session: Eager, operator: Operator, sample: Sample, float_type: DType, is_torch: bool
) -> None:
    arrays = rounded_inputs(operator, sample, float_type)
    given = [None if array is None else to_torch(array.copy()) if is_torch else array.copy() for array in arrays]
    operation = getattr(session, operator.name)
    results = operation(*given, **sample.attributes)
    results = results if isinstance(results, tuple) else (results,)
    names = [spec.name for spec in operator.schema.inputs]
    outputs = [to_numpy(result) if is_torch else result for result in results]
    assert_within_tolerance(REGISTRY, operator, float_type, arrays, sample.attributes, outputs)
    for spec, result, array in zip(operator.schema.outputs, results, outputs, strict=True):
        assert isinstance(result, torch.Tensor if is_torch else np.ndarray)
        if spec.alias is not None and not operator.schema.is_view:
            assert result is given[names.index(spec.alias)]
        codes = arrays[names.index(spec.alias)] if spec.kind == "q8" and spec.alias else None
        wanted = spec.dtype(float_type, attributes=sample.attributes)
        assert DType.of_numpy(array.dtype) is (wanted if codes is None else DType.of_numpy(codes.dtype))


def test_inputs_of_any_size_stay_as_they_are_and_results_are_new(session: Eager) -> None:
    for num_rows in (1, 3, 1000):
        x = np.random.default_rng(0).standard_normal((num_rows, 64)).astype(np.float32)
        before = x.copy()
        first, second = session.silu(x), session.silu(x)
        np.testing.assert_array_equal(x, before)
        np.testing.assert_allclose(first, x / (1 + np.exp(-x)), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(first, second)
        assert not np.shares_memory(first, second)


def test_a_remembered_signature_reads_the_arrays_of_this_call(session: Eager) -> None:
    rng = np.random.default_rng(1)
    for num_inputs in (16, 700):
        for _ in range(4):
            x, weight = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, num_inputs), (40, num_inputs)))
            np.testing.assert_allclose(session.linear(x, weight), x @ weight.T, rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(
                session.linear(x, weight, -x[0, :1].repeat(40)), x @ weight.T - x[0, 0], 1e-4, 1e-4
            )


def test_arrays_that_are_not_row_major_are_read_as_they_are_meant(session: Eager) -> None:
    x = np.random.default_rng(2).standard_normal((6, 10)).astype(np.float32)
    unaligned = np.zeros(x.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(x.shape)
    unaligned[...] = x
    frozen = x.copy()
    frozen.flags.writeable = False
    expected = functional.silu(torch.tensor(x)).numpy()
    for array, result in (
        (x.T, expected.T),
        (x[::2, ::-1], expected[::2, ::-1]),
        (unaligned, expected),
        (frozen, expected),
    ):
        np.testing.assert_allclose(session.silu(array), result, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(session.silu(array), result, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(session.silu(torch.tensor(x).T), expected.T, rtol=1e-5, atol=1e-6)


def test_torch_results_agree_with_torch_in_bfloat16(session: Eager) -> None:
    generator = torch.Generator().manual_seed(6)
    x, weight = (torch.randn(shape, generator=generator).bfloat16() for shape in ((5, 32), (32,)))
    result = session.rms_norm(x, weight=weight, eps=1e-6)
    assert result.dtype is torch.bfloat16
    exact = functional.rms_norm(x.double(), (32,), weight.double(), 1e-6)
    torch.testing.assert_close(result.double(), exact, rtol=2**-8, atol=1e-6)


def test_a_cache_is_written_in_place(session: Eager) -> None:
    values = np.arange(2 * 1 * 4, dtype=np.float32).reshape(2, 1, 4)
    caches = [np.zeros((2, 1, 2, 4), np.float32) for _ in range(2)]
    k_out, v_out = session.kv_cache_write(values, -values, np.array([3, 0], np.int64), *caches)
    assert k_out is caches[0]
    assert v_out is caches[1]
    np.testing.assert_array_equal(caches[0][1, 0, 1], values[0, 0])
    np.testing.assert_array_equal(caches[1][0, 0, 0], -values[1, 0])
    frozen = caches[0].copy()
    frozen.flags.writeable = False
    with pytest.raises(OperatorError, match="'k_cache' in place, which is read-only"):
        session.kv_cache_write(values, values, np.array([3, 0], np.int64), frozen, caches[1])
    backwards = caches[0][::-1]
    for _ in range(2):
        with pytest.raises(OperatorError, match="must be row-major"):
            session.kv_cache_write(values, values, np.array([3, 0], np.int64), backwards, caches[1])


def test_a_view_shares_memory(session: Eager) -> None:
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    heads = session.split_heads(x, num_heads=3)
    assert heads.shape == (2, 3, 2)
    assert np.shares_memory(heads, x)


def test_what_does_not_fit_the_schema_is_refused(session: Eager) -> None:
    x, weight = np.zeros((2, 8), np.float32), np.zeros((5, 8), np.float32)
    with pytest.raises(OperatorError, match=r"input 'weight' is float32\[8,5\], but K is 8 elsewhere"):
        session.linear(x, weight.T)
    with pytest.raises(OperatorError, match="dtype should be float32"):
        session.linear(x, weight.astype(np.float16))
    with pytest.raises(OperatorError, match="takes 1 inputs, got 2"):
        session.silu(x, x)
    with pytest.raises(OperatorError, match="needs the input 'weight'"):
        session.linear(x)
    with pytest.raises(OperatorError, match="input 'x' twice"):
        session.silu(x, x=x)
    with pytest.raises(OperatorError, match="no attribute 'slope'"):
        session.silu(x, slope=[1])
    with pytest.raises(OperatorError, match="should be of type float"):
        session.rms_norm(x, x[0], eps=True)
    with pytest.raises(OperatorError, match="got list"):
        session.silu([1.0])
    with pytest.raises(OperatorError, match="complex64"):
        session.silu(x.astype(np.complex64))
    with pytest.raises(OperatorError, match="requires gradients"):
        session.silu(torch.ones(3, requires_grad=True))
    with pytest.raises(KernelNotFoundError, match="float64"):
        session.silu(x.astype(np.float64))


@pytest.mark.parametrize("is_torch", [False, True], ids=["numpy_arrays", "torch_tensors"])
def test_a_packed_weight_stands_for_the_array(session: Eager, is_torch: bool) -> None:
    rng = np.random.default_rng(3)
    for num_inputs, num_outputs in ((16, 24), (700, 300)):
        weights = [rng.standard_normal((num_outputs, num_inputs)).astype(np.float32) for _ in range(2)]
        x = rng.standard_normal((3, num_inputs)).astype(np.float32)
        arrays = [torch.from_numpy(each) for each in (x, *weights)] if is_torch else [x, *weights]
        packed = [session.pack("linear", "weight", each) for each in arrays[1:]]
        for _ in range(2):
            for weight, array in zip(packed, arrays[1:], strict=True):
                result = session.linear(arrays[0], weight=weight)
                assert type(result) is type(arrays[0])
                np.testing.assert_array_equal(result, session.linear(arrays[0], array))


def test_a_composite_takes_packed_weights_beside_others(session: Eager) -> None:
    rng = np.random.default_rng(4)
    x, w_in, w_out = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, 16), (32, 16), (16, 32)))
    packed = session.pack("ffn_relu", "w_out", w_out)
    np.testing.assert_array_equal(
        session.ffn_relu(x, w_in, None, packed, None), session.ffn_relu(x, w_in, None, w_out, None)
    )


def test_a_packed_weight_fits_one_input_of_one_device(session: Eager) -> None:
    x, weight = np.ones((2, 8), np.float32), np.ones((5, 8), np.float32)
    packed = session.pack("linear", "weight", weight)
    session.lm_head(x, session.pack("lm_head", "weight", weight))
    for _ in range(2):
        with pytest.raises(OperatorError, match=r"packed for linear's input 'weight' on device .* passed to lm_head"):
            session.lm_head(x, packed)
    with pytest.raises(OperatorError, match="passed to silu as 'x'"):
        session.silu(packed)
    with pytest.raises(OperatorError, match="got PackedWeight"):
        session.silu(x, packed)
    with pytest.raises(OperatorError, match="has no weight 'x' to pack, only"):
        session.pack("linear", "x", x)
    with pytest.raises(OperatorError, match="got list"):
        session.pack("linear", "weight", [1.0])
    other = Eager(device="numpy")
    with pytest.raises(OperatorError, match="pack the array for that again"):
        other.linear(x, packed)
    other.close()


def test_without_gradients_parameters_are_tensors_like_others(session: Eager) -> None:
    with torch.no_grad():
        result = session.silu(torch.ones(3, requires_grad=True))
    torch.testing.assert_close(result, functional.silu(torch.ones(3)))


def test_nothing_of_the_caller_is_kept(session: Eager) -> None:
    for shape in ((2, 8), (300, 64)):
        x = np.ones(shape, np.float32)
        died = weakref.ref(x)
        result = weakref.ref(session.silu(x))
        del x
        gc.collect()
        assert died() is None
        assert result() is None


def test_threads_may_share_an_operation(session: Eager) -> None:
    arrays = [np.full((4, 8), number, np.float32) for number in range(40)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda x: session.add(x, x), arrays))
    for x, result in zip(arrays, results, strict=True):
        np.testing.assert_array_equal(result, 2 * x)


def test_the_module_has_every_operator() -> None:
    x = np.ones(4, np.float32)
    np.testing.assert_allclose(eager.silu(x), x / (1 + np.exp(-1.0)), rtol=1e-6)
    assert "silu(x: F[...])" in inspect.getdoc(eager.silu)
    assert eager.silu is eager.silu
    with pytest.raises(AttributeError, match="aethermind ops"):
        _ = eager.frobnicate
    with pytest.raises(DeviceError):
        Eager(device="frobnicator")


FOREIGN = {DType.BFLOAT16: (np.int16, torch.bfloat16), DType.FLOAT8_E4M3FN: (np.int8, torch.float8_e4m3fn)}


def to_torch(array: Any) -> torch.Tensor:
    integers, dtype = FOREIGN.get(DType.of_numpy(array.dtype), (array.dtype, None))
    tensor = torch.from_numpy(array.copy().view(integers))
    return tensor if dtype is None else tensor.view(dtype)


def to_numpy(tensor: torch.Tensor) -> Any:
    for ours, (integers, theirs) in FOREIGN.items():
        if tensor.dtype is theirs:
            return tensor.view(getattr(torch, np.dtype(integers).name)).numpy().view(ours.numpy)
    return tensor.numpy()


FLOATS, CACHE = np.ones((4, 8), np.float32), np.zeros((2, 1, 4, 8), np.float32)


def ints(*values: Any, dtype: Any = np.int32) -> Any:
    return np.array(values, dtype)


@pytest.mark.parametrize(
    ("name", "inputs", "attributes", "problem"),
    [
        ("embedding", (ints(0, 4), FLOATS), {}, "token_ids holds 4, which is not from 0 to 3"),
        ("embedding", (ints(-1), FLOATS), {}, "token_ids holds -1"),
        ("gather_rows", (FLOATS, ints(9)), {}, "rows holds 9"),
        ("scatter_rows", (FLOATS, FLOATS[:1], ints(-2)), {}, "rows holds -2"),
        ("token_logprobs", (FLOATS, ints(0, 1, 8, 0)), {"k": 2}, "token_ids holds 8"),
        ("token_logprobs", (FLOATS, ints(0, 1, 1, 0)), {"k": -2}, "Dim k would be -2"),
        ("split_heads", (FLOATS,), {"num_heads": -2}, "Dim num_heads would be -2"),
        ("suppress_tokens", (FLOATS[:1], ints(8), ints(0, 1)), {}, "tokens holds 8"),
        ("suppress_tokens", (FLOATS[:1], ints(1), ints(0, 99)), {}, "cu_tokens should not decrease"),
        ("mask_tokens", (FLOATS, np.zeros((len(FLOATS), 0), np.int32)), {}, "mask has 0 words of 32 tokens"),
        ("suppress_tokens", (FLOATS[:2], ints(1), ints(0, 1, 0)), {}, "cu_tokens should not decrease"),
        ("repetition_penalty", (FLOATS[:1], ints(-1), ints(0, 1), FLOATS[0, :1]), {}, "tokens holds -1"),
        (
            "paged_attention",
            (FLOATS[:, None], CACHE[:, [0, 0]], CACHE[:, [0, 0]], ints(0, 4), ints(4), ints([0, 1])),
            {},
            "1 query heads",
        ),
        ("attention", (FLOATS[:, None], FLOATS[:, None][:, [0, 0]], FLOATS[:, None][:, [0, 0]]), {}, "1 query heads"),
        ("paged_attention", (FLOATS[:, None], CACHE, CACHE, ints(0, 5), ints(5), ints([0, 1])), {}, "cu_seqlens_q"),
        ("paged_attention", (FLOATS[:, None], CACHE, CACHE, ints(0, 4), ints(3), ints([0, 1])), {}, "fewer keys"),
        (
            "paged_attention",
            (FLOATS[:, None], CACHE, CACHE, ints(0, 4), ints(9), ints([0, 1])),
            {},
            "block_tables has 2",
        ),
        ("paged_attention", (FLOATS[:, None], CACHE, CACHE, ints(0, 4), ints(8), ints([0, 2])), {}, "holds 2"),
    ],
)
def test_integers_that_point_outside_are_errors(
    session: Eager, name: str, inputs: Any, attributes: dict[str, Any], problem: str
) -> None:
    if name in ("attention", "paged_attention"):
        attributes = {"scale": 1.0}
    for given in (inputs, tuple(torch.from_numpy(array) for array in inputs)):
        with pytest.raises(OperatorError, match=problem):
            getattr(session, name)(*given, **attributes)


def test_slots_beyond_the_cache_are_errors_and_nothing_is_written(session: Eager) -> None:
    k, cache = np.ones((1, 1, 8), np.float32), CACHE.copy()
    with pytest.raises(OperatorError, match="slot_mapping holds 8, but the cache has 8 slots"):
        session.kv_cache_write(k, k, ints(8, dtype=np.int64), cache, cache.copy())
    assert not cache.any()


def test_block_tables_may_hold_anything_beyond_the_keys(session: Eager) -> None:
    operands = (FLOATS[:1, None], CACHE, CACHE, ints(0, 1), ints(1), ints([1, -7]))
    assert session.paged_attention(*operands, scale=1.0).shape == (1, 1, 8)


def test_operators_are_found_by_who_looks_for_names() -> None:
    assert {"Eager", "pack", "rms_norm", "silu"} <= set(dir(eager))
