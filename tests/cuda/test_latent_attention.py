"""Latent attention on tensor cores, emulated: batches at the sizes of DeepSeek's heads, by both sizes of blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.cuda.emulator.opening import emulated_cuda
from tests.cuda.fake_gpus import ATTRIBUTES

from aethermind.hal.dtype import DType
from aethermind.ops.catalog._sample_inputs import normal, paged_attention_sample, weight
from aethermind.ops.catalog.latent_attention import LINEAR_PER_HEAD, MLA_ATTENTION
from aethermind.ops.operator import Sample
from aethermind.runtime import OpenDevice, Runtime
from aethermind.testing.operator_calls import KernelCase, check_kernel
from aethermind_cuda.kernels.latent_attention import KERNELS
from aethermind_cuda.launch import Call, DeviceArray, DeviceFacts, KernelFunction, Launch

RUNTIME = Runtime.boot()
MAJOR, SHARED_BYTES = 75, 97
"""Numbers of attributes of the driver: the major compute capability, and the shared memory of a block."""
GPUS = {
    "few rows": {**ATTRIBUTES, SHARED_BYTES: 99 << 10},
    "many rows": {**ATTRIBUTES, SHARED_BYTES: 227 << 10},
    "wgmma": {**ATTRIBUTES, SHARED_BYTES: 227 << 10, MAJOR: 9},
}


@pytest.fixture(scope="module", params=list(GPUS))
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenDevice]:
    """Emulated GPUs by what they compute."""
    with emulated_cuda(tmp_path_factory.mktemp("cubins"), attributes=GPUS[request.param]):
        opened = Runtime.boot().open_device("cuda")
        yield opened
        opened.backend.close()


def kernel_of(operator: str, name: str) -> Any:
    return next(kernel for kernel in KERNELS if (kernel.operator, kernel.name) == (operator, name))


@pytest.mark.parametrize(
    ("sequences", "num_heads", "name", "scale"),
    [
        ([(1, 170), (1, 1), (1, 97)], 16, "tensor_cores", 0.05),  # split, but for a sequence of one key
        ([(1, 150)], 64, "tensor_cores", -0.1),  # a negative scale turns the order of scores around
        ([(0, 4), (3, 40), (1, 33), (9, 9)], 5, "tensor_cores", 0.05),  # rows of several sequences in a block
        ([(1, 170), (4, 70)], 3, "batch_invariant", 0.0),
    ],
    ids=str,
)
def test_ragged_batches(
    opened: OpenDevice, sequences: list[tuple[int, int]], num_heads: int, name: str, scale: float
) -> None:
    """Unused slots of the cache are NaN, and the last rows are padding."""
    rng = np.random.default_rng(7)
    plain = paged_attention_sample(rng, "batch", sequences, num_heads, 1, 576, 16, 0, num_padding_rows=2, unused=np.nan)
    q, k_cache, _, *tables = plain.inputs[:6]
    sample = Sample("batch", (q, k_cache, *tables), {"value_dim": 512, "scale": scale})
    kernel = kernel_of("mla_attention", f"cuda/{name}")
    check_kernel(KernelCase(MLA_ATTENTION, kernel, DType.BFLOAT16, sample), RUNTIME.operators, opened)


def launches_of(num_tokens: int, num_sequences: int, num_heads: int, max_keys: int) -> list[Launch]:
    """The launches of attention on an H100."""

    def array(*shape: int, dtype: DType = DType.BFLOAT16) -> DeviceArray:
        return DeviceArray(1 << 20, dtype, shape)

    index = DType.INT32
    tables = array(num_sequences, max_keys // 16, dtype=index)
    inputs = (
        array(num_tokens, num_heads, 576),
        array(1000, 1, 16, 576),
        array(num_sequences + 1, dtype=index),
        array(num_sequences, dtype=index),
        tables,
    )
    attributes = {"value_dim": 512, "scale": 0.1}
    facts = DeviceFacts((9, 0), 132, 227 << 10)
    function: Any = kernel_of("mla_attention", "cuda/tensor_cores").function
    assert isinstance(function, KernelFunction)
    return list(function(Call(inputs, (array(num_tokens, num_heads, 512),), attributes, facts, 1 << 30)))  # type: ignore[arg-type]


def test_keys_are_split_among_the_blocks_that_run_at_once() -> None:
    """Two blocks of 16 rows a multiprocessor, or one of 64; parts of at least 64 keys."""
    attend, combine = launches_of(1, 1, 16, 4096)
    assert (attend.kernel, attend.grid) == ("mla_attention_bfloat16_16", (1, 64, 1))
    assert (combine.kernel, combine.grid) == ("mla_attention_combine_bfloat16_16", (16, 4, 1))
    assert launches_of(64, 64, 16, 4096)[0].grid == (64, 4, 1)
    (attend,) = launches_of(64, 64, 128, 4096)
    assert (attend.kernel, attend.grid) == ("mla_attention_wgmma_bfloat16", (128, 1, 1))
    (prompt,) = launches_of(2048, 1, 16, 4096)
    assert (prompt.kernel, prompt.grid) == ("mla_attention_wgmma_bfloat16", (512, 1, 1))


@pytest.mark.parametrize(("num_tokens", "format"), [(1, None), (11, None), (40, None), (11, "int4"), (40, "int8")])
def test_heads_are_multiplied_by_matrices_of_their_own(opened: OpenDevice, num_tokens: int, format: str | None) -> None:
    """By tiles of 8 tokens, and of 64; rows of a head begin within a tile of 16 outputs."""
    rng = np.random.default_rng(num_tokens)
    num_heads, num_outputs, num_inputs = 3, 24, 136
    x, w = normal(rng, num_tokens, num_heads, num_inputs), weight(rng, num_heads * num_outputs, num_inputs)
    sample = Sample("heads", (x, w), {"num_heads": num_heads})
    chosen = None if format is None else RUNTIME.weight_formats.get(format)
    kernels = (
        kernel for kernel in KERNELS if format is None or (kernel.weight_formats and format in kernel.weight_formats)
    )
    name = "cuda" if format is None else f"cuda/{format}"
    kernel = next(kernel for kernel in kernels if (kernel.operator, kernel.name) == ("linear_per_head", name))
    check_kernel(KernelCase(LINEAR_PER_HEAD, kernel, DType.BFLOAT16, sample, chosen), RUNTIME.operators, opened)
