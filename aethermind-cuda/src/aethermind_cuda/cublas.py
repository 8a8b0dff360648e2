"""Matrix products by cuBLASLt, dense and in fp8, called through its C interface without torch.

The library is the one of the `nvidia-cublas` wheel (which torch for CUDA also installs) or of an installed CUDA
toolkit. Numbers are those of cublasLt.h; see https://docs.nvidia.com/cuda/cublas/#using-the-cublaslt-api.
"""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from threading import Lock
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from aethermind.errors import DeviceError
from aethermind.graph.plan import BATCH_SIZES
from aethermind.hal.dtype import DType
from aethermind.hal.memory import align_up
from aethermind.log import get_logger
from aethermind_cuda.launch import DeviceArray, Enqueue, Launch, LaunchBinder, Relocate
from aethermind_cuda.relocation import relocated_address

__all__ = ["CublasLt", "DenseProduct", "WORKSPACE_BYTES", "bucket_of", "find_cublaslt", "prompt_buckets"]

logger = get_logger(__name__)

WORKSPACE_BYTES = 32 << 20
"""Workspace of cuBLASLt: NVIDIA's recommendation for sm_90, sufficient for other architectures."""

_DATA_TYPES = {DType.FLOAT32: 0, DType.FLOAT16: 2, DType.BFLOAT16: 14, DType.FLOAT8_E4M3FN: 28}
_COMPUTE_32F, _REAL_32F = 68, 0
_DESC_TRANSA, _DESC_EPILOGUE, _DESC_BIAS_POINTER, _DESC_BIAS_DATA_TYPE = 3, 7, 8, 26
_DESC_SCALES, _DESC_SCALE_MODES, _DESC_FAST_ACCUMULATION = (17, 18), (31, 32), 25
"""Attributes of the scales of A and B, which are the weight and x."""
_TRANSPOSED, _EPILOGUE_BIAS, _SCALE_OUTER_VECTOR = 1, 4, 3
_LAYOUT_BATCH_COUNT, _LAYOUT_BATCH_OFFSET = 5, 6
_PREFERENCE_MAX_WORKSPACE, _PREFERENCE_REDUCTION_SCHEMES = 1, 3
_REDUCE_IN_COMPUTE_TYPE = 2
"""Mask of split-K reduction schemes that accumulate in the compute type, not in the output's."""
_PREFERENCE_ALIGNMENTS = 5, 6, 7, 8
"""Minimum alignments of A, B, C and D."""
_MAX_ALIGNMENT = 256
_ROW_ALIGNMENT = 16
_HALF_DTYPES = (DType.FLOAT16, DType.BFLOAT16)
_MAX_ALGORITHMS = 1024
"""Capacity of the LRU cache of algorithms."""

_DECODE_SIZES = frozenset(BATCH_SIZES)
_BUCKET_STEPS = (64, 16), (512, 64), (1024, 128), (2048, 256)
"""Bucket granularity: (up to this many tokens, buckets are multiples of this)."""
_LARGEST_STEP = 512

_STATUS = {
    1: "not initialised",
    3: "out of memory",
    7: "invalid value",
    8: "architecture mismatch",
    15: "not supported",
}


class _Heuristic(ctypes.Structure):
    """`cublasLtMatmulHeuristicResult_t`."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace_bytes", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


@cache
def find_cublaslt() -> Any | None:
    """Load cuBLASLt; None where it is not installed."""
    try:
        from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib
    except ImportError:
        return None
    try:
        return ctypes.CDLL(load_nvidia_dynamic_lib("cublasLt").abs_path)
    except (DynamicLibNotFoundError, OSError):
        return None


class DenseProduct(NamedTuple):
    """out[T, N] = x[T, K] · weight[N, K]ᵀ + bias[N], accumulated in float32; `workspace` has WORKSPACE_BYTES.

    `fallback(out, x, weight, bias)` is launched where cuBLASLt has no algorithm; without a fallback that raises
    DeviceError.

    `out_stride` is the row stride of `out` in elements, None for N: `out` may be columns of a wider matrix.

    x and weight may be float8_e4m3fn, K a multiple of 16. `scales` are then float32 [N] and [T], which multiply the
    weight's rows and those of x, on compute capability 9.0; None for none. With scales, sums have fewer bits than
    float32 ("fast accumulation"): the error of 4e-3 that they have is a tenth of that of fp8 inputs.

    With `num_heads` H > 1, this is a batched product over heads: x is [T, H · K], out [T, H · N] and weight [H · N, K].
    Each head has its own columns of x and out, and its own rows of the weight.
    """

    out: DeviceArray
    x: DeviceArray
    weight: DeviceArray
    bias: DeviceArray | None
    workspace: int
    fallback: Callable[[DeviceArray, DeviceArray, DeviceArray, DeviceArray | None], Launch] | None = None
    out_stride: int | None = None
    scales: tuple[DeviceArray, DeviceArray] | None = None
    num_heads: int = 1

    def bind(self, binder: LaunchBinder) -> Enqueue:
        """See `launch.Work`."""
        enqueue = binder.cublas.bind(self)
        return self._fallback_launch().bind(binder) if enqueue is None else enqueue

    def bind_relocatable(self, binder: LaunchBinder) -> Relocate | None:
        """See `launch.Work`."""
        bind_at = binder.cublas.choose(self)
        if bind_at is None:
            return self._fallback_launch().bind_relocatable(binder)
        symbolic = self.addresses

        def relocate(bases: Sequence[int]) -> Enqueue:
            return bind_at(*[relocated_address(address, bases) for address in symbolic])

        return relocate

    @property
    def addresses(self) -> tuple[int, ...]:
        """Of out, x, weight, workspace, bias (0 for none) and, if there are any, of both scales."""
        bias = 0 if self.bias is None else self.bias.address
        scales = () if self.scales is None else [array.address for array in self.scales]
        return self.out.address, self.x.address, self.weight.address, self.workspace, bias, *scales

    def _fallback_launch(self) -> Launch:
        if self.fallback is None:
            raise DeviceError("cuBLASLt has no algorithm for a product of this shape and type on this GPU.")
        return self.fallback(self.out, self.x, self.weight, self.bias)


class CublasLt:
    """cuBLASLt on the device whose context is current.

    Algorithm selection takes much longer than binding a product, so algorithms are cached by shapes, dtypes and
    alignments, which the layers of a model share; numbers of tokens share the algorithm of their bucket.
    """

    def __init__(self, library: Any) -> None:
        self._library = library
        self._handle = ctypes.c_void_p()
        self._call("cublasLtCreate", ctypes.byref(self._handle))
        self._one, self._zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
        self._lock = Lock()
        self._algorithms: OrderedDict[tuple[int, ...], _Algorithm | None] = OrderedDict()
        self._operations: WeakValueDictionary[tuple[int, ...], _Handle] = WeakValueDictionary()

    def close(self) -> None:
        """Release the library's handle."""
        self._algorithms.clear()
        self._call("cublasLtDestroy", self._handle)

    def bind(self, product: DenseProduct) -> Enqueue | None:
        """Bind a product; None where the library has no algorithm for it."""
        bind_at = self.choose(product)
        return None if bind_at is None else bind_at(*product.addresses)

    def choose(self, product: DenseProduct) -> Callable[..., Enqueue] | None:
        """Choose the algorithm of a product; returns a function that binds it to `DenseProduct.addresses` of the same
        alignment. None where the library has no algorithm.
        """
        if not all(product.out.shape):
            return lambda *_: _enqueue_nothing
        with self._lock:
            algorithm = self._algorithm(product)
        if algorithm is None:
            return None
        weight_layout, x_layout, out_layout, heuristic = algorithm
        library_handle, one, zero = self._handle, ctypes.byref(self._one), ctypes.byref(self._zero)
        algorithm_pointer, workspace_bytes = ctypes.byref(heuristic.algorithm), ctypes.c_size_t(WORKSPACE_BYTES)
        matmul, pointer = self._library.cublasLtMatmul, ctypes.c_void_p
        bias_dtype = product.out.dtype if product.bias is None else product.bias.dtype

        def bind_at(out: int, x: int, weight: int, workspace: int, bias: int, *scales: int) -> Enqueue:
            with self._lock:
                operation = self._operation(bias_dtype, bias, *scales)
            out_pointer = pointer(out)
            # The arguments keep the handles alive. They are C types already: with `argtypes` ctypes would convert each
            # of them at every call.
            arguments = (
                *(library_handle, operation, one, pointer(weight), weight_layout, pointer(x), x_layout, zero),
                *(
                    out_pointer,
                    out_layout,
                    out_pointer,
                    out_layout,
                    algorithm_pointer,
                    pointer(workspace),
                    workspace_bytes,
                ),
            )

            def enqueue(stream: int) -> None:
                status = matmul(*arguments, pointer(stream))
                if status:
                    raise _error("cublasLtMatmul", status)

            return enqueue

        return bind_at

    def _algorithm(self, product: DenseProduct) -> _Algorithm | None:
        """The cached algorithm of such products, or a newly chosen one."""
        key = _algorithm_key(product)
        if key in self._algorithms:
            self._algorithms.move_to_end(key)
            return self._algorithms[key]
        found = self._choose(product)
        self._store(key, found)
        if found is None:
            x, weight = product.x, product.weight
            logger.warning(
                "cuBLASLt has no algorithm for %s%s times the transpose of %s as %s; the fallback kernel computes it.",
                *(x.dtype, list(x.shape), list(weight.shape), product.out.dtype),
            )
        return found

    def _choose(self, product: DenseProduct) -> _Algorithm | None:
        """The bucket's algorithm if it is valid for this number of tokens, else the heuristics' choice."""
        if _rounds_before_bias(product):
            return None
        num_tokens = product.x.shape[0]
        bucket = bucket_of(num_tokens)
        if bucket != num_tokens:
            bucket_algorithm = self._bucket_algorithm(_with_tokens(product, bucket))
            found = None if bucket_algorithm is None else self._adapt(bucket_algorithm, product)
            if found is not None:
                return found
        return self._query_heuristics(product)

    def _bucket_algorithm(self, product: DenseProduct) -> _Algorithm | None:
        """The algorithm of the product with the bucket's number of tokens."""
        key = _algorithm_key(product)
        if key in self._algorithms:
            self._algorithms.move_to_end(key)
        else:
            self._store(key, self._query_heuristics(product))
        return self._algorithms[key]

    def _store(self, key: tuple[int, ...], found: _Algorithm | None) -> None:
        self._algorithms[key] = found
        if len(self._algorithms) > _MAX_ALGORITHMS:
            self._algorithms.popitem(last=False)

    def _adapt(self, bucket_algorithm: _Algorithm, product: DenseProduct) -> _Algorithm | None:
        """Reuse the algorithm of another number of tokens with this product's layouts; None if the library rejects
        it.
        """
        _, x, out = self._layouts(product)
        requirements = _Heuristic()
        status = self._library.cublasLtMatmulAlgoCheck(
            *(self._handle, self._operation_of(product), bucket_algorithm.weight, x, out, out),
            *(ctypes.byref(bucket_algorithm.heuristic.algorithm), ctypes.byref(requirements)),
        )
        is_supported = not status and not requirements.state and requirements.workspace_bytes <= WORKSPACE_BYTES
        return bucket_algorithm._replace(x=x, out=out) if is_supported else None

    def _query_heuristics(self, product: DenseProduct) -> _Algorithm | None:
        """Query the library's heuristics, which takes about a millisecond."""
        weight, x, out = self._layouts(product)
        preference, found, count = self._preference(product), _Heuristic(), ctypes.c_int()
        status = self._library.cublasLtMatmulAlgoGetHeuristic(
            *(self._handle, self._operation_of(product), weight, x, out, out, preference),
            *(1, ctypes.byref(found), ctypes.byref(count)),
        )
        return None if status or not count.value or found.state else _Algorithm(weight, x, out, found)

    def _layouts(self, product: DenseProduct) -> tuple[_Handle, _Handle, _Handle]:
        """Describe row-major weight, x and out as the transposes that the column-major library sees."""
        heads, (num_outputs, num_inputs) = product.num_heads, product.weight.shape
        weight = self._layout(product.weight.dtype, (num_outputs // heads, num_inputs), num_inputs)
        x = self._layout(product.x.dtype, (product.x.shape[0], num_inputs), heads * num_inputs)
        columns = product.out.shape[1] // heads
        out = self._layout(product.out.dtype, (product.out.shape[0], columns), product.out_stride or heads * columns)
        if heads > 1:
            for layout, offset in ((weight, num_outputs // heads * num_inputs), (x, num_inputs), (out, columns)):
                self._set("MatrixLayout", layout, _LAYOUT_BATCH_COUNT, ctypes.c_int32(heads))
                self._set("MatrixLayout", layout, _LAYOUT_BATCH_OFFSET, ctypes.c_int64(offset))
        return weight, x, out

    def _layout(self, dtype: DType, shape: tuple[int, int], stride: int) -> _Handle:
        columns, rows = shape
        sizes = ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(stride)
        return self._create("MatrixLayout", _DATA_TYPES[dtype], *sizes)

    def _operation(self, dtype: DType, bias: int, *scales: int) -> _Handle:
        """A matmul descriptor. It contains the addresses of a bias, 0 for none, and of the scales of weight and x."""
        key = (dtype.code if bias else 0, bias, *scales)
        operation = self._operations.get(key)
        if operation is None:
            operation = self._operations[key] = self._create("MatmulDesc", _COMPUTE_32F, _REAL_32F)
            self._set("MatmulDesc", operation, _DESC_TRANSA, ctypes.c_int32(_TRANSPOSED))
            if bias:
                self._set("MatmulDesc", operation, _DESC_EPILOGUE, ctypes.c_uint32(_EPILOGUE_BIAS))
                self._set("MatmulDesc", operation, _DESC_BIAS_POINTER, ctypes.c_void_p(bias))
                self._set("MatmulDesc", operation, _DESC_BIAS_DATA_TYPE, ctypes.c_int32(_DATA_TYPES[dtype]))
            for address, pointer, mode in zip(scales, _DESC_SCALES, _DESC_SCALE_MODES, strict=False):
                self._set("MatmulDesc", operation, pointer, ctypes.c_void_p(address))
                self._set("MatmulDesc", operation, mode, ctypes.c_int32(_SCALE_OUTER_VECTOR))
            if scales:
                self._set("MatmulDesc", operation, _DESC_FAST_ACCUMULATION, ctypes.c_int8(1))
        return operation

    def _operation_of(self, product: DenseProduct) -> _Handle:
        dtype = product.out.dtype if product.bias is None else product.bias.dtype
        return self._operation(dtype, *product.addresses[4:])

    def _preference(self, product: DenseProduct) -> _Handle:
        """The heuristics assume 256-byte aligned operands unless the preference states other alignments."""
        preference = self._create("MatmulPreference")
        self._set("MatmulPreference", preference, _PREFERENCE_MAX_WORKSPACE, ctypes.c_uint64(WORKSPACE_BYTES))
        self._set(
            "MatmulPreference", preference, _PREFERENCE_REDUCTION_SCHEMES, ctypes.c_uint32(_REDUCE_IN_COMPUTE_TYPE)
        )
        arrays = product.weight, product.x, product.out, product.out
        for attribute, array in zip(_PREFERENCE_ALIGNMENTS, arrays, strict=True):
            self._set("MatmulPreference", preference, attribute, ctypes.c_uint32(_alignment_of(array, product)))
        return preference

    def _create(self, kind: str, *arguments: Any) -> _Handle:
        handle = _Handle()
        self._call(f"cublasLt{kind}Create", ctypes.byref(handle), *arguments)
        handle.destroy = getattr(self._library, f"cublasLt{kind}Destroy")
        return handle

    def _set(self, kind: str, handle: _Handle, attribute: int, value: Any) -> None:
        size = ctypes.c_size_t(ctypes.sizeof(value))
        self._call(f"cublasLt{kind}SetAttribute", handle, attribute, ctypes.byref(value), size)

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise _error(name, status)


class _Handle(ctypes.c_void_p):
    """A handle that is destroyed with its last reference."""

    destroy: Callable[[ctypes.c_void_p], int] | None = None

    def __del__(self) -> None:
        if self.destroy is not None:
            self.destroy(ctypes.c_void_p(self.value))


class _Algorithm(NamedTuple):
    """The matrix layouts and the algorithm that products with the same key share."""

    weight: _Handle
    x: _Handle
    out: _Handle
    heuristic: _Heuristic


def _algorithm_key(product: DenseProduct) -> tuple[int, ...]:
    """The cache key of an algorithm; -1 and 0 for a missing bias."""
    out, x, weight, bias, *_, scales, heads = product
    stride = product.out_stride or out.shape[1]
    bias_key = (-1, 0) if bias is None else (bias.dtype.code, _alignment(bias.address))
    dtypes = out.dtype.code, x.dtype.code, weight.dtype.code
    alignments = (_alignment_of(array, product) for array in (out, x, weight))
    return (*x.shape, weight.shape[0], stride, heads, *dtypes, *alignments, *bias_key, scales is not None)


def bucket_of(num_tokens: int) -> int:
    """The number of tokens, equal or larger, whose algorithm this number shares.

    Decode steps have the sizes of `BATCH_SIZES`, so each of these is a bucket. Prompts have any size: algorithms cover
    tokens with tiles of 64 to 256, so the best one is the same for nearby sizes.
    """
    return num_tokens if num_tokens in _DECODE_SIZES else _rounded_up(num_tokens)


def prompt_buckets(first: int, last: int) -> Iterator[int]:
    """The buckets of prompts with `first` to `last` tokens."""
    while first <= last:
        bucket = _rounded_up(first)
        yield bucket
        first = bucket + 1


def _rounded_up(num_tokens: int) -> int:
    step = next((step for limit, step in _BUCKET_STEPS if num_tokens <= limit), _LARGEST_STEP)
    return align_up(num_tokens, step)


def _rounds_before_bias(product: DenseProduct) -> bool:
    """Whether the library would add the bias to rounded sums, or not support it."""
    if product.bias is None:
        return False
    # For rows that are not 16-byte aligned a second kernel adds the bias (observed on sm_90), which rounds twice.
    out = product.out.dtype
    is_split = bool(product.weight.shape[0] * out.itemsize % _ROW_ALIGNMENT) and out in _HALF_DTYPES
    return product.bias.dtype is not out or is_split


def _with_tokens(product: DenseProduct, num_tokens: int) -> DenseProduct:
    """The same product for another number of tokens."""
    out, x = (array._replace(shape=(num_tokens, array.shape[1])) for array in (product.out, product.x))
    return product._replace(out=out, x=x)


def _alignment_of(array: DeviceArray, product: DenseProduct) -> int:
    """The alignment of an operand, of every head's where there are several."""
    if product.num_heads == 1:
        return _alignment(array.address)
    width = array.shape[1] // (1 if array is product.weight else product.num_heads)
    return _alignment(array.address | width * array.dtype.itemsize)


def _alignment(address: int) -> int:
    """The alignment of an address: its largest power-of-two divisor, at most 256."""
    return min(_MAX_ALIGNMENT, address & -address) or _MAX_ALIGNMENT


def _enqueue_nothing(_: int) -> None:
    """The `Enqueue` of a product without tokens or outputs, which launches nothing."""


def _error(name: str, status: int) -> DeviceError:
    return DeviceError(f"{name} failed with status {status} ({_STATUS.get(status, 'see cublas_api.h')}).")
