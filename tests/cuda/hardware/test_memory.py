"""Memory as the driver counts it, running out of it, a long context, and graphs against the same steps one by one."""

from __future__ import annotations

import gc
from itertools import count

import numpy as np
import pytest

from aethermind import LLM, Runtime, SamplingParams
from aethermind.errors import OutOfMemoryError
from aethermind.hal import Buffer, DeviceId, DType, Tensor
from aethermind.ops.operator import Sample
from aethermind.runtime import OpenDevice
from aethermind.testing.kernel_cases import is_supported
from aethermind.testing.operator_calls import KernelCase, run_kernel
from aethermind_cuda.memory import CudaAllocator

pytestmark = pytest.mark.cuda


@pytest.fixture
def allocator(opened: OpenDevice) -> CudaAllocator:
    """The GPU's."""
    assert isinstance(opened.backend.allocator, CudaAllocator)
    return opened.backend.allocator


def test_pressure_follows_what_is_taken_within_one_percent(allocator: CudaAllocator) -> None:
    before = allocator.pressure(0).free_bytes
    held = allocator.alloc(1 << 30)
    assert before - allocator.pressure(0).free_bytes == pytest.approx(held.nbytes, rel=0.01)
    held.free()
    assert allocator.pressure(0).free_bytes == pytest.approx(before, rel=0.01)


def test_serving_continues_after_out_of_memory(opened: OpenDevice, allocator: CudaAllocator) -> None:
    held: list[Buffer] = []
    with pytest.raises(OutOfMemoryError, match="Lower --num-kv-blocks"):
        held.extend(allocator.alloc(1 << 30) for _ in count())  # others may take memory meanwhile
    held.clear()
    gc.collect()
    array = np.arange(1000, dtype=np.int32)
    tensor = Tensor.of(allocator.alloc(array.nbytes), DType.INT32, array.shape)
    back = np.zeros_like(array)
    opened.backend.transfer.copy(tensor, Tensor.of_numpy(array, DeviceId("cuda", 0)))
    opened.backend.transfer.copy(Tensor.of_numpy(back, DeviceId("cuda", 0)), tensor)
    np.testing.assert_array_equal(back, array)


def test_graphs_give_the_answers_of_single_launches(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    params = SamplingParams(max_tokens=40, temperature=0.8, seed=5)
    prompts = ["Once upon a time", "The", "A dog"]
    answers = []
    for is_captured in (True, False):
        if not is_captured:
            monkeypatch.setattr("aethermind_cuda.executable.is_decode_size", lambda *_: False)
        outputs = LLM("demo", device="cuda", runtime=runtime).generate(prompts, params)
        answers.append([output.outputs[0].token_ids for output in outputs])
    assert answers[0] == answers[1]


@pytest.mark.parametrize(("dtype", "allowed"), [(DType.FLOAT32, 1e-5), (DType.FLOAT16, 1e-4)], ids=str)
def test_a_context_of_128k_tokens_decodes(runtime: Runtime, opened: OpenDevice, dtype: DType, allowed: float) -> None:
    """A query of zeros sees all keys alike: it gets the mean of the values."""
    operator = runtime.operators["paged_attention"]
    kernels = [kernel for kernel in runtime.kernels.kernels("cuda") if kernel.operator == operator.name]
    num_keys, block_size, head_dim = 131_072, 16, 128
    num_blocks = num_keys // block_size
    rng = np.random.default_rng(0)
    shape = (num_blocks, 1, block_size, head_dim)
    cache = [rng.standard_normal(shape, np.float32).astype(dtype.numpy) for _ in range(2)]
    tables = np.arange(num_blocks, dtype=np.int32)[None]
    lengths = np.array([0, 1], np.int32), np.array([num_keys], np.int32)
    inputs = (np.zeros((1, 2, head_dim), dtype.numpy), *cache, *lengths, tables, None, None)  # no sinks, no slopes
    sample = Sample("128k", inputs, {"scale": 0.1, "window": 0})
    case = next(case for kernel in kernels if is_supported(case := KernelCase(operator, kernel, dtype, sample)))
    (out,) = run_kernel(case, runtime.operators, opened, inputs)
    mean = cache[1].mean((0, 2), np.float64)
    np.testing.assert_allclose(out.astype(np.float64), np.broadcast_to(mean, out.shape), atol=allowed)
