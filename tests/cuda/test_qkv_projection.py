"""Queries, keys and values of few tokens come out of one launch, and a token's do not depend on the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from tests.cuda.emulator.opening import emulated_cuda

from aethermind.dispatch import Kernel
from aethermind.dispatch.reference import rounded_inputs
from aethermind.hal.dtype import DType
from aethermind.ops.catalog.qkv_projection import QKV_ROPE_CACHE_WRITE
from aethermind.ops.operator import Sample
from aethermind.ops.weight_format import parse_format
from aethermind.runtime import OpenDevice, Runtime
from aethermind.testing.operator_calls import KernelCase, check_kernel, run_kernel
from aethermind_cuda.kernels import _quantized_wgmma
from aethermind_cuda.kernels.qkv_rope_cache_write import KERNELS
from aethermind_cuda.launch import Call, DeviceArray, DeviceFacts, Launch

RUNTIME = Runtime.boot()
HIDDEN, HEADS, KV_HEADS, HEAD_DIM = 264, 3, 1, 24


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenDevice]:
    with emulated_cuda(tmp_path_factory.mktemp("cubins")):
        opened = Runtime.boot().open_device("cuda")
        yield opened
        opened.backend.close()


def takes(kernel: Kernel, weight_format: str) -> bool:
    return kernel.weight_formats is not None and weight_format in kernel.weight_formats


def sample_of(num_tokens: int, head_dim: int = HEAD_DIM, kv_heads: int = KV_HEADS) -> Sample:
    rng = np.random.default_rng(5)
    weights = [rng.standard_normal((rows * head_dim, HIDDEN)) / 16 for rows in (HEADS, kv_heads, kv_heads)]
    biases = [rng.standard_normal(rows * head_dim) for rows in (HEADS, kv_heads, kv_heads)]
    x, table = rng.standard_normal((num_tokens, HIDDEN)), rng.uniform(-1, 1, (num_tokens, head_dim))
    slots = rng.permutation(48)[:num_tokens].astype(np.int64)
    caches = np.zeros((2, 3, kv_heads, 16, head_dim))
    heads = {"num_heads": HEADS, "num_kv_heads": kv_heads}
    return Sample("tokens", (x, *weights, *biases, None, None, table, slots, *caches), heads)


def of_token(inputs: Sequence[Any], token: int) -> list[Any]:
    by_token = {0, 9, 10}
    return [array[token : token + 1].copy() if i in by_token else array for i, array in enumerate(inputs)]


@pytest.mark.parametrize(("name", "head_dim"), [("dense", HEAD_DIM), ("int4_offset_g64", HEAD_DIM), ("int4", 64)])
def test_projections_are_batch_invariant(opened: OpenDevice, name: str, head_dim: int) -> None:
    kernel = next(kernel for kernel in KERNELS if takes(kernel, name) and kernel.is_batch_invariant)
    format = None if name == "dense" else parse_format(name)
    case = KernelCase(QKV_ROPE_CACHE_WRITE, kernel, DType.BFLOAT16, sample_of(40, head_dim), format)
    inputs: Sequence[Any] = rounded_inputs(case.operator, case.sample, case.float_type)
    q, k_cache, v_cache = run_kernel(case, RUNTIME.operators, opened, inputs)
    caches = [cache.swapaxes(1, 2).reshape(48, -1) for cache in (k_cache, v_cache)]
    for token in (0, 7, 8, 39):
        alone, *caches_alone = run_kernel(case, RUNTIME.operators, opened, of_token(inputs, token))
        assert alone[0].tobytes() == q[token].tobytes()
        slot = inputs[10][token]
        for together, single in zip(caches, caches_alone, strict=True):
            assert single.swapaxes(1, 2).reshape(48, -1)[slot].tobytes() == together[slot].tobytes()


@pytest.mark.parametrize("name", ["int4", "int4_zp_g128", "int4_offset", "int2", "int1"])
@pytest.mark.parametrize(
    ("num_tokens", "head_dim", "has_bias"), [(1, 128, True), (3, 64, False), (8, 96, True), (5, 32, False)]
)
def test_few_tokens_with_weights_of_up_to_four_bits_take_one_launch(
    opened: OpenDevice, name: str, num_tokens: int, head_dim: int, has_bias: bool
) -> None:
    """Several heads of keys; a token that is not written to the cache."""
    kernel = next(kernel for kernel in KERNELS if takes(kernel, name) and kernel.priority == 0)
    sample = sample_of(num_tokens, head_dim, kv_heads=2)
    inputs = list(sample.inputs)
    inputs[10][-1] = -1 if num_tokens > 1 else inputs[10][-1]
    if not has_bias:
        inputs[4:7] = [None] * 3
    driver = opened.backend._driver  # type: ignore[attr-defined]
    dtype = DType.FLOAT16 if has_bias else DType.BFLOAT16
    entry = f"qkv_rope_quantized_gemv_{name.removesuffix('_g128')}_{dtype}"
    epilogue = f"qkv_rope_cache_write_{dtype}"
    before = driver.launched[entry], driver.launched[epilogue]
    sample = Sample("few", tuple(inputs), sample.attributes)
    check_kernel(KernelCase(QKV_ROPE_CACHE_WRITE, kernel, dtype, sample, parse_format(name)), RUNTIME.operators, opened)
    assert driver.launched[entry] > before[0]
    assert driver.launched[epilogue] == before[1]


@pytest.mark.parametrize(("name", "most"), [("cuda", 32), ("cuda/cublaslt", 32), ("cuda/int8", 8), ("cuda/int4", 8)])
def test_few_tokens_of_a_layer_take_two_launches(name: str, most: int) -> None:
    """Where heads have norms, with weights of few bits, too."""
    weight_format = name.removeprefix("cuda/") if "int" in name else "dense"
    kernel = next(kernel for kernel in KERNELS if kernel.name == name and takes(kernel, weight_format))
    launches = {num_tokens: [*launches_of(kernel, num_tokens)] for num_tokens in (1, most, most + 1)}
    *few, many = (len(found) for found in launches.values())
    assert few == [2, 2]
    assert many >= 3
    for num_tokens in (1, most):
        projection = launches[num_tokens][0]
        assert projection.source.startswith("qkv_projection")
        assert projection.grid == (1, (3584 + 2 * 512) // 16, 1)


@pytest.mark.parametrize("name", ["int4", "int8_zp", "int4_offset_g64"])
@pytest.mark.parametrize("start_groups", [2.0, 0.0])
def test_quantised_projections_by_wgmma(
    opened: OpenDevice, monkeypatch: pytest.MonkeyPatch, name: str, start_groups: float
) -> None:
    """In one launch, and with parts of K, which cost nothing there but their time."""
    monkeypatch.setattr(_quantized_wgmma, "_CAPABILITY", (8, 0))
    monkeypatch.setattr(_quantized_wgmma, "_START_GROUPS", start_groups)
    kernel = next(kernel for kernel in KERNELS if takes(kernel, name) and kernel.priority == 0)
    case = KernelCase(QKV_ROPE_CACHE_WRITE, kernel, DType.BFLOAT16, sample_of(23), parse_format(name))
    check_kernel(case, RUNTIME.operators, opened)
    backend: Any = opened.backend
    family = name.removesuffix("_g64")
    assert backend._driver.launched[f"qkv_projection_quantized_wgmma32_{family}_bfloat16"]
    assert start_groups or backend._driver.launched["split_k_reduce_qkv_bfloat16"]


def launches_of(kernel: Kernel, num_tokens: int) -> Iterator[Launch]:
    """Of the shapes of Qwen2-7B."""

    def array(*shape: int, dtype: DType = DType.BFLOAT16) -> DeviceArray:
        return DeviceArray(1 << 20, dtype, shape)

    weights = [array(rows, 3584) for rows in (3584, 512, 512)]
    biases = [array(rows) for rows in (3584, 512, 512)]
    placed = array(num_tokens, 128, dtype=DType.FLOAT32), array(num_tokens, dtype=DType.INT64)
    caches = [array(100, 4, 16, 128)] * 2
    norms = [array(128)] * 2
    inputs = (array(num_tokens, 3584), *weights, *biases, *norms, *placed, *caches)
    outputs = (array(num_tokens, 28, 128), *caches)
    function: Any = kernel.function
    yield from function(Call(inputs, outputs, {"eps": 1e-6}, DeviceFacts((9, 0), 132, 227 << 10), 1 << 21))
