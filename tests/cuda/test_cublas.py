"""Calls of cuBLASLt against a library that computes, column-major as the real one, what it was asked for."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from aethermind.errors import DeviceError
from aethermind.graph.plan import BATCH_SIZES
from aethermind.hal import DType
from aethermind_cuda.cublas import WORKSPACE_BYTES, CublasLt, DenseProduct, bucket_of, prompt_buckets
from aethermind_cuda.kernels.linear import dense_product
from aethermind_cuda.launch import DeviceArray, Enqueue, Launch, Relocate

TYPES = {0: np.dtype(np.float32), 2: np.dtype(np.float16), 14: DType.BFLOAT16.numpy, 28: DType.FLOAT8_E4M3FN.numpy}


def contents(reference: Any, kind: Any) -> Any:
    """What a pointer argument points at."""
    return kind.from_address(ctypes.addressof(reference._obj)).value


class FakeCublasLt:
    """Handles are positions in `things`; what is destroyed becomes None.

    An algorithm is the number of tokens that the heuristics were asked for. `used` are those of the products, `checked`
    those that were checked, each with a number of tokens to be computed.
    """

    def __init__(self, num_algorithms: int = 1) -> None:
        self.things: list[Any] = [None]
        self.batches: dict[int, dict[int, int]] = {}
        """Attributes of layouts: 5, the number of matrices, and 6, their distance in elements."""
        self.num_algorithms = num_algorithms
        self.num_heuristics = self.heuristics_status = self.check_status = self.checked_workspace = 0
        self.used: list[tuple[int, int]] = []
        self.checked: list[tuple[int, int]] = []
        self.streams: list[int] = []
        self.preferences: dict[int, int] = {}

    def _new(self, reference: Any, thing: Any) -> int:
        self.things.append(thing)
        reference._obj.value = len(self.things) - 1
        return 0

    def _destroy(self, handle: ctypes.c_void_p) -> int:
        assert self.things[handle.value or 0] is not None
        self.things[handle.value or 0] = None
        return 0

    cublasLtDestroy = cublasLtMatrixLayoutDestroy = cublasLtMatmulDescDestroy = _destroy  # noqa: N815
    cublasLtMatmulPreferenceDestroy = _destroy  # noqa: N815

    def cublasLtCreate(self, handle: Any) -> int:  # noqa: N802
        return self._new(handle, "handle")

    def cublasLtMatrixLayoutCreate(self, layout: Any, type_: int, rows: Any, columns: Any, stride: Any) -> int:  # noqa: N802
        return self._new(layout, (TYPES[type_], rows.value, columns.value, stride.value))

    def cublasLtMatrixLayoutSetAttribute(self, layout: Any, attribute: int, value: Any, size: Any) -> int:  # noqa: N802
        kind = {4: ctypes.c_int32, 8: ctypes.c_int64}[size.value]
        self.batches.setdefault(layout.value, {})[attribute] = contents(value, kind)
        return 0

    def cublasLtMatmulDescCreate(self, desc: Any, compute: int, scale: int) -> int:  # noqa: N802
        assert (compute, scale) == (68, 0)
        return self._new(desc, {})

    def cublasLtMatmulDescSetAttribute(self, desc: Any, attribute: int, value: Any, size: Any) -> int:  # noqa: N802
        kind = {1: ctypes.c_uint8, 4: ctypes.c_uint32, 8: ctypes.c_uint64}[size.value]
        self.things[desc.value][attribute] = contents(value, kind)
        return 0

    def cublasLtMatmulPreferenceCreate(self, preference: Any) -> int:  # noqa: N802
        return self._new(preference, "preference")

    def cublasLtMatmulPreferenceSetAttribute(self, preference: Any, attribute: int, value: Any, size: Any) -> int:  # noqa: N802
        assert self.things[preference.value] == "preference"
        kind = {4: ctypes.c_uint32, 8: ctypes.c_uint64}[size.value]
        self.preferences[attribute] = contents(value, kind)
        return 0

    def cublasLtMatmulAlgoGetHeuristic(self, *arguments: Any) -> int:  # noqa: N802
        *_, d_layout, _, wanted, result, count = arguments
        assert wanted == 1
        assert ctypes.sizeof(result._obj) == 96
        result._obj.algorithm[0] = self.things[d_layout.value][2]
        count._obj.value = self.num_algorithms
        self.num_heuristics += 1
        return self.heuristics_status

    def cublasLtMatmulAlgoCheck(self, *arguments: Any) -> int:  # noqa: N802
        handle, desc, a_layout, b_layout, c_layout, d_layout, algorithm, result = arguments
        assert self.things[handle.value] == "handle"
        assert self.things[desc.value][3] == 1
        (_, inputs, outputs, _), (_, inputs_too, tokens, _) = (self.things[one.value] for one in (a_layout, b_layout))
        assert self.things[d_layout.value][1:3] == (outputs, tokens)
        assert (inputs_too, c_layout.value) == (inputs, d_layout.value)
        assert ctypes.sizeof(result._obj) == 96
        result._obj.workspace_bytes = self.checked_workspace
        self.checked.append((contents(algorithm, ctypes.c_uint64), tokens))
        return self.check_status

    def cublasLtMatmul(self, *arguments: Any) -> int:  # noqa: N802
        _, desc, alpha, a, a_layout, b, b_layout, beta, _, _, d, d_layout, algorithm, *rest = arguments
        _, workspace_bytes, stream = rest
        self.used.append((contents(algorithm, ctypes.c_uint64), self.things[d_layout.value][2]))
        assert workspace_bytes.value == WORKSPACE_BYTES
        assert (contents(alpha, ctypes.c_float), contents(beta, ctypes.c_float)) == (1.0, 0.0)
        attributes = self.things[desc.value]
        for matrix in range(1, self.batches.get(d_layout.value, {}).get(5, 1)):
            left, right, out = (
                self._matrix(one, layout, matrix) for one, layout in ((a, a_layout), (b, b_layout), (d, d_layout))
            )
            out[...] = left.T.astype(np.float32) @ right.astype(np.float32)
        left, right = self._matrix(a, a_layout), self._matrix(b, b_layout)
        result = (left.T if attributes[3] == 1 else left).astype(np.float32) @ right.astype(np.float32)
        for address, mode, axis in ((17, 31, 1), (18, 32, 0)):
            if address in attributes:
                assert (attributes[mode], attributes[25]) == (3, 1)
                scales = (ctypes.c_float * result.shape[1 - axis]).from_address(attributes[address])
                result *= np.expand_dims(np.ctypeslib.as_array(scales), axis)
        if attributes.get(7) == 4:
            bias = np.ctypeslib.as_array((ctypes.c_uint8 * (len(result) * 4)).from_address(attributes[8]))
            result += bias.view(TYPES[attributes[26]])[: len(result), None].astype(np.float32)
        self._matrix(d, d_layout)[...] = result
        self.streams.append(stream.value)
        return 0

    def _matrix(self, address: Any, layout: Any, matrix: int = 0) -> Any:
        dtype, rows, columns, stride = self.things[layout.value]
        begin = address.value + matrix * self.batches.get(layout.value, {}).get(6, 0) * dtype.itemsize
        memory = (ctypes.c_uint8 * (((columns - 1) * stride + rows) * dtype.itemsize)).from_address(begin)
        values = np.frombuffer(memory, dtype)
        return np.lib.stride_tricks.as_strided(values, (rows, columns), (dtype.itemsize, stride * dtype.itemsize))


def on_device(array: np.ndarray[Any, Any]) -> DeviceArray:
    """An array as if it were in device memory."""
    return DeviceArray(array.ctypes.data, DType.of_numpy(array.dtype), array.shape)


def test_heads_are_multiplied_by_matrices_of_their_own() -> None:
    rng = np.random.default_rng(3)
    x, weight = (rng.normal(size=shape).astype(np.float32) for shape in ((5, 3, 8), (3 * 6, 8)))
    out = np.zeros((5, 3, 6), np.float32)
    library = FakeCublasLt()
    cublas = CublasLt(library)
    operands = (on_device(array) for array in (out.reshape(5, 18), x.reshape(5, 24), weight))
    enqueue = cublas.bind(DenseProduct(*operands, None, 0, num_heads=3))
    assert enqueue is not None
    enqueue(7)
    np.testing.assert_allclose(out, np.einsum("thi,hoi->tho", x, weight.reshape(3, 6, 8)), rtol=1e-5)


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16], ids=str)
@pytest.mark.parametrize(("has_bias", "widens"), [(False, False), (False, True), (True, False)])
def test_a_product_matches_the_operators_definition(dtype: DType, has_bias: bool, widens: bool) -> None:
    rng = np.random.default_rng(3)
    x, weight, bias = (rng.normal(size=shape).astype(dtype.numpy) for shape in ((4, 8), (16, 8), (16, 1)))
    out = np.zeros((4, 16), np.float32 if widens else dtype.numpy)
    library = FakeCublasLt()
    cublas = CublasLt(library)
    enqueue = cublas.bind(
        DenseProduct(on_device(out), on_device(x), on_device(weight), on_device(bias) if has_bias else None, 0x1000)
    )
    assert enqueue is not None
    assert not out.any()
    enqueue(77)
    exact = x.astype(np.float32) @ weight.astype(np.float32).T + (bias.astype(np.float32)[:, 0] if has_bias else 0)
    np.testing.assert_allclose(out.astype(np.float32), exact, rtol=1e-2, atol=1e-2)
    assert library.streams == [77]
    assert library.preferences.pop(1) == WORKSPACE_BYTES
    assert library.preferences.pop(3) == 2, "parts of K may be rounded before they are added"
    aligned = [array.ctypes.data & -array.ctypes.data for array in (weight, x, out, out)]
    assert library.preferences == {5 + place: min(256, most) for place, most in enumerate(aligned)}
    del enqueue
    cublas.close()
    assert set(library.things) == {None}


def test_scales_multiply_the_rows_of_weight_and_inputs() -> None:
    rng = np.random.default_rng(4)
    x, weight = (aligned(rng.normal(size=shape).astype(DType.FLOAT8_E4M3FN.numpy)) for shape in ((4, 32), (16, 32)))
    scales = [aligned(rng.uniform(0.5, 2, size).astype(np.float32)) for size in (16, 4)]
    out = aligned(np.zeros((4, 16), np.float32))
    library = FakeCublasLt()
    cublas = CublasLt(library)
    product = DenseProduct(*map(on_device, (out, x, weight)), None, 0x1000)
    scaled = product._replace(scales=(on_device(scales[0]), on_device(scales[1])))
    for one, expected_scales in ((product, 1), (scaled, scales[1][:, None] * scales[0])):
        enqueue = cublas.bind(one)
        assert enqueue is not None
        enqueue(7)
        expected = x.astype(np.float32) @ weight.astype(np.float32).T * expected_scales
        np.testing.assert_allclose(out, expected, rtol=1e-5)
    assert library.num_heuristics == 2, "products with and without scales have algorithms of their own"


def product_of(
    bias: np.ndarray[Any, Any], seed: int = 0, num_tokens: int = 4
) -> tuple[DenseProduct, np.ndarray[Any, Any]]:
    """Arrays at multiples of 256, and what `out` is to become."""
    rng = np.random.default_rng(seed)
    arrays = [
        aligned(rng.normal(size=shape).astype(np.float32)) for shape in ((num_tokens, 5), (num_tokens, 8), (5, 8))
    ]
    out, x, weight = arrays
    return DenseProduct(*map(on_device, (out, x, weight, bias)), 0x1000), x @ weight.T + bias


def aligned(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A copy at a multiple of 256."""
    memory = np.zeros(array.nbytes + 256, np.uint8)
    KEPT.append(memory)
    begin = -memory.ctypes.data % 256
    copy = memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


KEPT: list[np.ndarray[Any, Any]] = []


def result_of(product: DenseProduct) -> np.ndarray[Any, Any]:
    """What lies in `out`."""
    memory = (ctypes.c_float * product.out.size).from_address(product.out.address)
    return np.ctypeslib.as_array(memory).reshape(product.out.shape)


def test_products_of_a_kind_share_an_algorithm_and_have_biases_of_their_own() -> None:
    library = FakeCublasLt()
    cublas = CublasLt(library)
    biases = [aligned(np.full(5, value, np.float32)) for value in (1.0, 2.0, 3.0)]
    products = [product_of(bias, seed) for seed, bias in enumerate(biases)]
    bound = [cublas.bind(product) for product, _ in products]
    assert library.num_heuristics == 1
    for enqueue, (product, expected) in zip(bound, products, strict=True):
        assert enqueue is not None
        enqueue(7)
        np.testing.assert_allclose(result_of(product), expected, rtol=1e-5)
    other = products[0][0]
    for changed in (
        other._replace(bias=None),
        other._replace(x=other.x._replace(address=other.x.address + 4)),
        other._replace(bias=other.bias and other.bias._replace(address=other.bias.address + 4)),
        other._replace(out=other.out._replace(shape=(2, 5)), x=other.x._replace(shape=(2, 8))),
    ):
        before = library.num_heuristics
        assert cublas.bind(changed)
        assert library.num_heuristics == before + 1
        assert cublas.bind(changed)
        assert library.num_heuristics == before + 1
    num_things = sum(thing is not None for thing in library.things)
    bound.clear()
    enqueue = None
    assert sum(thing is not None for thing in library.things) == num_things - len(biases), "descriptions of biases"


def test_prompts_of_a_bucket_share_an_algorithm() -> None:
    library = FakeCublasLt()
    cublas = CublasLt(library)
    bias = aligned(np.full(5, 3.0, np.float32))
    for num_tokens in (449, 481, 500, 512, 481):
        product, expected = product_of(bias, num_tokens, num_tokens)
        enqueue = cublas.bind(product)
        assert enqueue is not None
        enqueue(7)
        np.testing.assert_allclose(result_of(product), expected, rtol=1e-4, atol=1e-5)
    assert library.num_heuristics == 1
    assert library.used == [(512, num_tokens) for num_tokens in (449, 481, 500, 512, 481)]
    assert library.checked == [(512, num_tokens) for num_tokens in (449, 481, 500)]
    for num_tokens in (448, 513):
        assert cublas.bind(product_of(bias, 1, num_tokens)[0])
    assert library.num_heuristics == 3


@pytest.mark.parametrize("refusal", ["status", "workspace", "no algorithm for the bucket"])
def test_an_algorithm_invalid_for_a_number_of_tokens_is_not_shared(refusal: str) -> None:
    library = FakeCublasLt(num_algorithms=0 if "no algorithm" in refusal else 1)
    library.check_status = 15 if refusal == "status" else 0
    library.checked_workspace = WORKSPACE_BYTES + 1 if refusal == "workspace" else WORKSPACE_BYTES
    cublas = CublasLt(library)
    bias = aligned(np.full(5, 3.0, np.float32))
    if "no algorithm" in refusal:
        assert cublas.bind(product_of(bias, 0, 512)[0]) is None
        library.num_algorithms = 1
    product, expected = product_of(bias, 0, 500)
    enqueue = cublas.bind(product)
    assert enqueue is not None
    enqueue(7)
    np.testing.assert_allclose(result_of(product), expected, rtol=1e-4, atol=1e-5)
    assert library.used == [(500, 500)]
    assert library.num_heuristics == 2
    assert cublas.bind(product)
    assert library.num_heuristics == 2


def test_decode_steps_have_the_algorithm_of_their_own_size() -> None:
    library = FakeCublasLt()
    cublas = CublasLt(library)
    bias = aligned(np.full(5, 3.0, np.float32))
    sizes = [size for size in BATCH_SIZES if size > 8]
    for num_tokens in (*range(9, 513), *sizes):
        enqueue = cublas.bind(product_of(bias, 0, num_tokens)[0])
        assert enqueue is not None
        if num_tokens in BATCH_SIZES:
            enqueue(7)
    assert library.used == [(size, size) for size in (*sizes, *sizes)]
    assert library.num_heuristics == len(sizes), "buckets of prompts are sizes of decode steps"


def test_every_prompt_has_one_of_the_buckets() -> None:
    prompts = [number for number in range(9, 16_385) if number not in BATCH_SIZES]
    assert {bucket_of(number) for number in prompts} == set(prompt_buckets(9, 16_384))
    assert all(bucket_of(bucket) == bucket >= number for number in prompts for bucket in [bucket_of(number)])
    assert [bucket_of(number) for number in (9, 37, 65, 481, 513, 1993, 2047, 2049, 4096)] == [
        *(16, 48, 128, 512, 640, 2048, 2048, 2560, 4096)
    ]
    assert list(prompt_buckets(449, 700)) == [512, 640, 768]
    assert list(prompt_buckets(9, 8)) == []


def test_a_product_may_be_some_columns_of_a_wider_matrix() -> None:
    rng = np.random.default_rng(3)
    x, weight = (rng.normal(size=shape).astype(np.float32) for shape in ((4, 8), (5, 8)))
    wide = np.zeros((5, 16), np.float32)
    out = DeviceArray(wide.ctypes.data + 4 * 4, DType.FLOAT32, (4, 5))
    product = DenseProduct(out, on_device(x), on_device(weight), None, 0x1000, out_stride=16)
    enqueue = CublasLt(FakeCublasLt()).bind(product)
    assert enqueue is not None
    enqueue(1)
    np.testing.assert_allclose(wide[:4, 4:9], x @ weight.T, rtol=1e-5)
    wide[:4, 4:9] = 0
    assert not wide.any(), "the product wrote beside its columns"


def test_without_tokens_no_algorithm_is_queried() -> None:
    nothing = DeviceArray(0, DType.FLOAT32, (0, 8))
    product = DenseProduct(nothing, nothing, DeviceArray(0, DType.FLOAT32, (5, 8)), None, 0)
    library = FakeCublasLt()
    enqueue = CublasLt(library).bind(product)
    assert enqueue is not None
    enqueue(1)
    assert (library.streams, library.num_heuristics) == ([], 0)


class Launches:
    """What work is bound with: launches come back as they are."""

    def __init__(self, library: FakeCublasLt) -> None:
        self.cublas = CublasLt(library)
        self.bound: list[Launch] = []

    def bind_launch(self, launch: Launch) -> Enqueue:
        self.bound.append(launch)
        return lambda _: None

    def bind_relocatable(self, launch: Launch) -> Relocate | None:
        raise AssertionError(launch)


@pytest.mark.parametrize("refusal", ["no algorithm", "status", "bias of another dtype", "bias of 5 outputs"])
def test_products_without_a_library_algorithm_use_the_cuda_kernel(
    refusal: str, caplog: pytest.LogCaptureFixture
) -> None:
    library = FakeCublasLt(num_algorithms=int(refusal != "no algorithm"))
    library.heuristics_status = 15 if refusal == "status" else 0
    context = Launches(library)
    out_dtype = DType.FLOAT32 if refusal == "bias of another dtype" else DType.BFLOAT16
    # With rows that are no multiple of 16 bytes the library rounds a sum before it adds the bias, and again after.
    num_outputs = 5 if refusal == "bias of 5 outputs" else 16
    shapes = (40, 8), (num_outputs, 8), (num_outputs,)
    x, weight, bias = (DeviceArray(0x1000, DType.BFLOAT16, shape) for shape in shapes)
    out = DeviceArray(0x2000, out_dtype, (40, num_outputs))
    for _ in range(2):
        dense_product(out, x, weight, bias, 0).bind(context)(1)
    assert library.streams == []
    assert library.num_heuristics == int("bias" not in refusal)
    assert {launch.kernel for launch in context.bound} == {"linear_tiled_bfloat16"}
    assert len(caplog.records) == 1, "one warning for products of a kind"
    assert context.bound[0].arguments == (out, x, weight, bias, 40, num_outputs, 8, out_dtype is DType.FLOAT32)


def test_errors_name_the_call_and_the_cause() -> None:
    array = on_device(np.zeros((8, 8), np.float32))
    with pytest.raises(DeviceError, match="no algorithm for a product of this shape"):
        DenseProduct(array, array, array, None, 0).bind(Launches(FakeCublasLt(num_algorithms=0)))
    library = FakeCublasLt()
    library.cublasLtCreate = lambda _: 1  # type: ignore[method-assign]
    with pytest.raises(DeviceError, match=r"cublasLtCreate failed with status 1 \(not initialised\)"):
        CublasLt(library)
