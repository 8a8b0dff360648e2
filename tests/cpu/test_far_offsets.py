"""Values beyond 32 bits: positions, offsets into a large cache; and the block table of a very long context."""

from __future__ import annotations

import mmap
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aethermind.dispatch import Kernel
from aethermind.graph import Operand, Place, Plan, Step
from aethermind.hal import DType
from aethermind.ops import TensorType, catalog
from aethermind.ops.operator import OperatorRegistry
from aethermind_cpu.backend import CpuBackend
from aethermind_cpu.kernels import kernels

REGISTRY = OperatorRegistry(catalog.load())
FAR = 2**31 + 5
NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM = 2, 16, 64
NUM_BLOCKS = FAR // (NUM_KV_HEADS * BLOCK_SIZE * HEAD_DIM) + 2
"""The last block begins beyond element 2^31 of its tensor."""
DTYPES = {"bfloat16": ml_dtypes.bfloat16, "int8": np.int8, "float8_e4m3fn": ml_dtypes.float8_e4m3fn}


def sparse(dtype: Any, *shape: int) -> np.ndarray[Any, Any]:
    """Zeros in an anonymous mapping: only touched pages take memory."""
    num_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    no_reserve = 0x4000
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve)
    return np.frombuffer(memory, dtype).reshape(shape)


def run(kernel: Kernel, *inputs: np.ndarray[Any, Any], **attributes: Any) -> list[np.ndarray[Any, Any]]:
    """Call a kernel once; optional inputs at the end may be left out; outputs that alias inputs are those inputs."""
    schema = REGISTRY[kernel.operator].schema
    whole = [*inputs, *[None] * (len(schema.inputs) - len(inputs))]
    held = {spec.name: array for spec, array in zip(schema.inputs, whole, strict=True) if array is not None}
    types = [None if array is None else TensorType(DType.of_numpy(array.dtype), array.shape) for array in whole]
    operands = [
        None if type is None else Operand(Place.INPUT, spec.name, type)
        for spec, type in zip(schema.inputs, types, strict=True)
    ]
    completed = schema.complete(attributes)
    results = []
    for spec, type in zip(schema.outputs, schema.infer(types, completed), strict=True):
        name = f"{spec.name} out"
        held[name] = held[spec.alias] if spec.alias else np.zeros(type.shape, type.dtype.numpy)
        results.append(Operand(Place.INPUT, name, type))
    step = Step(kernel, tuple(operands), tuple(results), completed, tuple(each.name for each in results))
    backend = CpuBackend()
    stream = backend.streams.create()
    memory = {(Place.INPUT, name): array.ctypes.data for name, array in held.items()}
    backend.compile(Plan("test", (step,), {}, 0, {}, {}, {}, {}), memory).run((), stream)
    stream.synchronize()
    backend.close()
    return [held[each.name] for each in results]


def kernel_of(operator: str, level: str, dtype: DType) -> Kernel:
    """The portable kernel, or the best one of this CPU."""
    found = [kernel for kernel in kernels() if kernel.operator == operator and dtype in kernel.dtypes]
    order = min if level == "portable" else max
    return order(found, key=lambda kernel: kernel.priority)


each_level = pytest.mark.parametrize("level", ["portable", "best"])


def test_angles_of_a_far_position() -> None:
    inv_freq = (1e6 ** -(np.arange(0, 128, 2) / 128)).astype(np.float32)
    positions = np.array([FAR, FAR + 1])
    (table,) = run(kernel_of("rope_table", "best", DType.FLOAT32), positions, inv_freq, scale=1.0)
    angle = positions.astype(np.float64)[:, None] * inv_freq.astype(np.float64)
    np.testing.assert_allclose(table, np.concatenate([np.cos(angle), np.sin(angle)], axis=1), atol=1e-6)


@pytest.mark.parametrize("stored", DTYPES)
@each_level
def test_a_cache_beyond_two_to_the_31_elements(stored: str, level: str) -> None:
    """Write, K-shift and attention in the last blocks of a large cache equal those in a small cache."""
    rng = np.random.default_rng(5)
    is_coded = stored != "bfloat16"
    suffix = "_quantized" if is_coded else ""
    k, v, q = (rng.standard_normal((20, heads, HEAD_DIM)).astype(ml_dtypes.bfloat16) for heads in (2, 2, 4))
    angles = rng.uniform(-3, 3, (2, HEAD_DIM // 2))
    turns = np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)

    def computed(num_blocks: int) -> list[np.ndarray[Any, Any]]:
        shape = (num_blocks, NUM_KV_HEADS, BLOCK_SIZE)
        caches = [sparse(DTYPES[stored], *shape, HEAD_DIM) for _ in range(2)]
        scales = [sparse(np.float32, *shape) for _ in range(2)] if is_coded else []
        table = np.array([[num_blocks - 1, num_blocks - 2]], np.int32)
        slots = (table[0].astype(np.int64)[:, None] * BLOCK_SIZE + np.arange(BLOCK_SIZE)).ravel()[:20]
        assert num_blocks < NUM_BLOCKS or caches[0].size - caches[0][-1].size > 2**31
        run(chosen(f"kv_cache_write{suffix}"), k, v, slots, *caches, *scales)
        filled = np.array([16, 4], np.int32)
        run(chosen(f"shift_keys{suffix}"), caches[0], table[0], filled, turns, *scales[:1], interleaved=False)
        queries, lengths = np.array([0, 20], np.int32), np.array([20], np.int32)
        attended = run(chosen(f"paged_attention{suffix}"), q, *caches, queries, lengths, table, *scales, scale=0.1)
        return [caches[0][table[0]], caches[1][table[0]], *attended]

    def chosen(operator: str) -> Kernel:
        return kernel_of(operator, level, DType.FLOAT32 if operator == "shift_keys_quantized" else DType.BFLOAT16)

    far, near = computed(NUM_BLOCKS), computed(3)
    assert np.abs(near[0].astype(np.float32)).max() > 0
    for left, right in zip(far, near, strict=True):
        np.testing.assert_array_equal(left.astype(np.float32), right.astype(np.float32))


@each_level
def test_a_table_for_two_million_tokens(level: str) -> None:
    """One head, scattered blocks; the last query attends to all keys, or to its window."""
    kernel = kernel_of("paged_attention", level, DType.BFLOAT16)
    num_keys, head_dim = 2_000_000, 4
    rng = np.random.default_rng(2)
    num_blocks = num_keys // BLOCK_SIZE
    table = rng.permutation(num_blocks).astype(np.int32)[None]
    k, v = (rng.standard_normal((num_blocks, 1, BLOCK_SIZE, head_dim), np.float32) for _ in range(2))
    k_cache, v_cache = k.astype(ml_dtypes.bfloat16), v.astype(ml_dtypes.bfloat16)
    q = np.ones((1, 1, head_dim), ml_dtypes.bfloat16)
    queries, lengths = np.array([0, 1], np.int32), np.array([num_keys], np.int32)
    keys, values = (cache[table[0], 0].reshape(num_keys, head_dim).astype(np.float64) for cache in (k_cache, v_cache))
    for window in (0, 1_000_003):
        (out,) = run(kernel, q, k_cache, v_cache, queries, lengths, table, scale=2.0, window=window)
        weights = np.exp(2 * keys.sum(axis=1)[-window:])
        expected = weights @ values[-window:] / weights.sum()
        np.testing.assert_allclose(out[0, 0].astype(np.float64), expected, rtol=2**-7, atol=2e-3)
