"""Prefill attention that Triton compiles: what it computes, by Triton's interpreter, and how cubins are launched."""

from __future__ import annotations

import ctypes
import math
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.cuda.check.kernels import load_builder
from tests.cuda.interpreted_triton import Interpreter, interpreter
from tests.scale import scaled

from aethermind.dispatch import Kernel, Signature
from aethermind.hal.dtype import DType
from aethermind.ops.catalog._sample_inputs import paged_attention_sample
from aethermind.ops.catalog.paged_attention import PAGED_ATTENTION
from aethermind.ops.operator import Array, Sample
from aethermind.ops.schema import TensorType
from aethermind_cuda.kernels import _triton_attention
from aethermind_cuda.kernels.paged_attention import KERNELS
from aethermind_cuda.launch import Call, DeviceArray, DeviceFacts, KernelFunction, Launch
from aethermind_cuda.library import Cubins
from aethermind_cuda.parameters import Parameters

pytestmark = pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="Triton is built with on Linux for x86-64 alone"
)

B200, H100, A100 = (10, 0), (9, 0), (8, 0)
ALL = load_builder().build_triton.KERNELS
TRITON, TENSOR_CORES = KERNELS[0], KERNELS[1]
SLACK = {DType.FLOAT16: 1, DType.BFLOAT16: 2}
"""In units of the operator's tolerance: the interpreter truncates where a GPU rounds to bfloat16."""
DTYPES = {str(dtype): dtype for dtype in SLACK}
WORKSPACE = 1 << 40

BATCHES = {
    "several tiles": ([(45, 45)], 7, 1, 64, 16, 0),
    "a chunk behind a long context": ([(30, 700)], 14, 1, 128, 32, 0),
    "a window that ends in the middle of a tile": ([(40, 700)], 4, 1, 128, 16, 300),
    "a window narrower than a tile of keys": ([(140, 200)], 4, 1, 64, 16, 50),
    "decodes, few drafts, a chunk, nothing": ([(1, 33), (3, 20), (40, 61), (0, 9), (1, 1), (2, 2)], 14, 2, 64, 16, 0),
    "more sequences than are looked at together": ([(1, 2)] * 135 + [(19, 19), (1, 3), (25, 40)], 2, 1, 64, 4, 0),
    "blocks of one token": ([(20, 70)], 3, 3, 64, 1, 0),
    "blocks larger than a tile of keys": ([(33, 400), (17, 17)], 2, 1, 128, 256, 0),
}


@pytest.fixture(autouse=True)
def on_b200(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Triton compiled is in the manifest that `make cuda-kernels` wrote; small batches take it, too."""
    monkeypatch.setattr(_triton_attention, "first_capability", lambda: B200)
    monkeypatch.setattr(_triton_attention, "fills_device", lambda _: True)


def call_of(arrays: Sequence[Any], out: Any, dtype: DType, sample: Sample, capability: tuple[int, int]) -> Call:
    """Arrays are at the addresses 0, 1, 2, …, the output behind the inputs."""
    dtypes = [dtype] * 3 + [DType.INT32] * 3
    inputs = [DeviceArray(i, *one) for i, one in enumerate(zip(dtypes, (tuple(a.shape) for a in arrays), strict=True))]
    output = DeviceArray(len(inputs), dtype, tuple(out.shape))
    facts = DeviceFacts(capability, 132, 227 << 10)
    return Call(tuple(inputs), (output,), sample.attributes, facts, WORKSPACE)


def launches_of(kernel: Kernel, call: Call) -> list[Launch]:
    assert isinstance(kernel.function, KernelFunction)
    launches = list(kernel.function(call))
    assert all(isinstance(launch, Launch) for launch in launches)
    return launches  # type: ignore[return-value]


def prefill_launch(call: Call) -> Launch:
    (launch,) = (launch for launch in launches_of(TRITON, call) if launch.source in ALL)
    return launch


def small_call(dtype: DType, head_dim: int, capability: tuple[int, int] = B200) -> Call:
    sample = paged_attention_sample(np.random.default_rng(5), "small", [(45, 45), (1, 9)], 7, 1, head_dim, 16, 0)
    return call_of(sample.inputs[:6], sample.inputs[0], dtype, sample, capability)


@pytest.fixture(scope="module")
def triton() -> Iterator[Interpreter]:
    with interpreter() as found:
        yield found


def check(triton: Interpreter, sample: Sample, dtype: DType) -> None:
    """The launch of the Python side, run by the interpreter, against the reference in float64."""
    floats = [array.astype(dtype.numpy) for array in sample.inputs[:3]]
    out = np.full_like(floats[0], math.nan)
    memory = [*floats, *sample.inputs[3:6], out]
    launch = prefill_launch(call_of(memory[:-1], out, dtype, sample, B200))
    *arguments, global_scratch, profile_scratch = (
        bits_of(memory[argument.address]) if isinstance(argument, DeviceArray) else argument
        for argument in launch.arguments
    )
    assert (global_scratch, profile_scratch) == (None, None)
    tile = ALL[launch.kernel]
    constants = {"HEAD_DIM": tile.head_dim, "ROWS": tile.rows, "KEYS": tile.keys}
    (written, *_) = triton.run("paged_attention_prefill", launch.grid, arguments, constants)

    exact = (*(array.astype(np.float64) for array in floats), *sample.inputs[3:])
    attributes = PAGED_ATTENTION.schema.complete(sample.attributes)
    expected = PAGED_ATTENTION.reference(*exact, **attributes)
    magnitude = PAGED_ATTENTION.term_magnitudes(*exact, **attributes)  # type: ignore[misc]
    is_taken = rows_of_prefill(sample)
    found = written.view(out.dtype).astype(np.float64)
    assert np.isnan(found[~is_taken]).all(), "rows that are another kernel's, or padding, were written"
    tolerance = PAGED_ATTENTION.tolerances[dtype]
    allowed = tolerance.relative_to_terms * magnitude + tolerance.relative * np.abs(expected) + tolerance.absolute
    excess = (np.abs(found - expected) / (SLACK[dtype] * allowed))[is_taken]
    assert excess.max(initial=0) <= 1


def bits_of(array: Array) -> Array:
    return array.view(np.uint16) if array.dtype == DType.BFLOAT16.numpy else array


def rows_of_prefill(sample: Sample) -> Array:
    """Of sequences whose rows fill more tiles of 16 than one query's, or of the only sequence."""
    q, k_cache, _, cu_seqlens_q, *_ = sample.inputs
    group = q.shape[1] // k_cache.shape[1]
    is_taken = np.zeros(len(q), bool)
    for begin, end in pairwise(cu_seqlens_q):
        is_taken[begin:end] = len(cu_seqlens_q) == 2 or (end - begin) * group > -(-group // 16) * 16
    return is_taken


@pytest.mark.parametrize("dtype", SLACK, ids=str)
@pytest.mark.parametrize("label", BATCHES)
def test_ragged_batches(triton: Interpreter, label: str, dtype: DType) -> None:
    sequences, *shape = BATCHES[label]
    check(triton, paged_attention_sample(np.random.default_rng(3), label, sequences, *shape, num_padding_rows=2), dtype)


SEQUENCE = st.integers(0, 60).flatmap(lambda count: st.tuples(st.just(count), st.integers(max(1, count), 300)))


@settings(max_examples=scaled(2000), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sequences=st.lists(SEQUENCE, min_size=1, max_size=5),
    heads=st.sampled_from([(1, 1), (6, 2), (7, 1), (17, 1)]),
    head_dim=st.sampled_from([64, 128]),
    block_size=st.sampled_from([1, 16, 128]),
    window=st.sampled_from([0, 1, 7, 64, 200]),
)
def test_any_batch(
    triton: Interpreter,
    sequences: list[tuple[int, int]],
    heads: tuple[int, int],
    head_dim: int,
    block_size: int,
    window: int,
) -> None:
    sample = paged_attention_sample(np.random.default_rng(3), "any", sequences, *heads, head_dim, block_size, window)
    q = sample.inputs[0]
    if len(q) <= len(sequences) or len(q) * (heads[0] // heads[1]) <= 32:
        return  # the shapes leave all of it to the decode kernel, or may do so
    check(triton, sample, DType.FLOAT16)


@pytest.fixture(params=ALL)
def compiled(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """A kernel, and what the manifest says of it."""
    name: str = request.param
    return name, Cubins().operators[name]["targets"]["100f"]["kernels"][name]


def test_arguments_are_the_parameters_of_the_compiled_kernel(compiled: tuple[str, dict[str, Any]]) -> None:
    name, facts = compiled
    launch = prefill_launch(small_call(DTYPES[ALL[name].dtype], ALL[name].head_dim))
    assert launch.kernel == name
    kinds = {ctypes.c_void_p: "u64", ctypes.c_int32: "u32", ctypes.c_float: "f32"}
    assert [kinds[type(value)] for value in Parameters(launch.arguments).values] == facts["parameters"]


def test_launches_match_what_their_kernel_was_compiled_for(compiled: tuple[str, dict[str, Any]]) -> None:
    name, facts = compiled
    launch = prefill_launch(small_call(DTYPES[ALL[name].dtype], ALL[name].head_dim))
    assert launch.block == (facts["threads"], 1, 1)
    assert launch.shared_bytes == facts["dynamic_shared_bytes"]
    assert facts["shared_bytes"] + launch.shared_bytes <= 227 << 10
    assert facts["threads"] * -(-facts["registers"] // 8) * 8 <= 65536


def test_products_are_those_of_the_newest_tensor_cores(compiled: tuple[str, dict[str, Any]]) -> None:
    _, facts = compiled
    assert facts["products"] == ["tcgen05.mma"]


def kernels_of(kernel: Kernel, call: Call) -> list[str]:
    return [launch.kernel for launch in launches_of(kernel, call)]


def qwen2_7b_call(num_tokens: int, num_sequences: int, capability: tuple[int, int] = B200) -> Call:
    shapes = [(num_tokens, 28, 128), *[(9000, 4, 16, 128)] * 2]
    floats = [DeviceArray(i, DType.BFLOAT16, shape) for i, shape in enumerate(shapes)]
    tables = [(num_sequences + 1,), (num_sequences,), (num_sequences, 1024)]
    inputs = (*floats, *(DeviceArray(3 + i, DType.INT32, shape) for i, shape in enumerate(tables)))
    facts = DeviceFacts(capability, 132, 227 << 10)
    return Call(inputs, (floats[0],), {"scale": 0.1, "window": 0}, facts, WORKSPACE)


TRITONS, OWN = "paged_attention_prefill_triton_bfloat16_128", "paged_attention_prefill_bfloat16_128"


@pytest.mark.parametrize(("num_tokens", "num_sequences"), [(2048, 1), (512, 1), (600, 64), (2048, 8)])
def test_prefills_that_fill_the_gpu_are_tritons(
    monkeypatch: pytest.MonkeyPatch, num_tokens: int, num_sequences: int
) -> None:
    monkeypatch.undo()
    kernels = kernels_of(TRITON, qwen2_7b_call(num_tokens, num_sequences))
    assert TRITONS in kernels
    assert OWN not in kernels
    assert kernels[0] == TRITONS or kernels[0].startswith("paged_attention_decode")


@pytest.mark.parametrize(("num_tokens", "num_sequences"), [(5, 1), (64, 1), (64, 64), (80, 64), (320, 64)])
def test_keys_of_few_rows_are_split_by_the_cuda_kernel(
    monkeypatch: pytest.MonkeyPatch, num_tokens: int, num_sequences: int
) -> None:
    monkeypatch.undo()
    call = qwen2_7b_call(num_tokens, num_sequences)
    assert kernels_of(TRITON, call) == kernels_of(TENSOR_CORES, call)


@pytest.mark.parametrize("capability", [A100, H100])
def test_a_gpu_without_triton_kernels_uses_the_cuda_kernel(capability: tuple[int, int]) -> None:
    call = qwen2_7b_call(2048, 1, capability)
    assert kernels_of(TRITON, call) == kernels_of(TENSOR_CORES, call)


def signature(head_dim: int = 128, block_size: int | str = 16, scale: float = 0.1) -> Signature:
    q = TensorType(DType.BFLOAT16, ("T", 28, head_dim))
    cache = TensorType(DType.BFLOAT16, ("N", 4, block_size, head_dim))
    tables = [TensorType(DType.INT32, shape) for shape in (("S1",), ("S",), ("S", "M"))]
    attributes = {"scale": scale, "window": 0}
    return Signature("paged_attention", "cuda", DType.BFLOAT16, (q, cache, cache, *tables), attributes)


def reasons() -> Iterator[tuple[Signature, str]]:
    yield signature(head_dim=96), "Triton compiled no kernel for heads of 96 elements of bfloat16"
    yield signature(block_size=24), "takes cache blocks of a power of two of tokens, not of 24"
    yield signature(block_size="P"), "not of P"
    yield signature(scale=-0.5), "takes positive scales, not -0.5"


def test_a_call_that_it_cannot_take_is_refused_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    assert TRITON.supports(signature()) is None
    for refused, reason in reasons():
        assert reason in str(TRITON.supports(refused))
    monkeypatch.setattr(_triton_attention, "first_capability", lambda: A100)
    assert str(TRITON.supports(signature())).endswith("and compute capability 8.0")
    monkeypatch.setattr(_triton_attention, "first_capability", lambda: None)
    assert str(TRITON.supports(signature())).startswith("no GPU was found")


def test_triton_kernels_are_preferred_and_triton_is_not_imported() -> None:
    assert TRITON.priority > TENSOR_CORES.priority
    code = (
        "import sys; from aethermind_cuda.kernels import load_kernels; load_kernels(); print('triton' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert answer.strip() == "False"
