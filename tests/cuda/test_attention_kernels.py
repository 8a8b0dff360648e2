"""Attention on tensor cores, emulated: batches that the page has no samples of, because others need none of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cuda.emulator.opening import emulated_cuda
from tests.scale import scaled

from aethermind.hal.dtype import DType
from aethermind.ops.catalog import load
from aethermind.ops.catalog._quantized_rows import quantized_caches
from aethermind.ops.catalog._sample_inputs import paged_attention_sample
from aethermind.ops.operator import OperatorRegistry, Sample
from aethermind.runtime import OpenDevice, Runtime
from aethermind.testing.operator_calls import KernelCase, check_kernel
from aethermind_cuda.kernels import load_kernels

FAST = "cuda/tensor_cores"
BATCHES = {
    "one long sequence, split": ([(1, 1501)], 7, 1, 128, 16, 0),
    "long and short beside each other": ([(1, 700), (1, 1), (1, 290)], 4, 2, 64, 16, 0),
    "more heads of a group than a tile has rows": ([(1, 40), (1, 600)], 20, 1, 64, 16, 0),
    "a window that spans a split's end": ([(1, 1200), (1, 30)], 2, 1, 64, 16, 400),
    "blocks of no power of two": ([(1, 70), (1, 5)], 3, 3, 80, 5, 0),
    "prefill of several tiles": ([(45, 45)], 7, 1, 64, 16, 0),
    "a chunk behind a long context": ([(20, 150)], 14, 1, 128, 32, 0),
    "a chunk in a window": ([(40, 200)], 4, 1, 96, 16, 50),
    "decodes, few drafts, a chunk, nothing": ([(1, 33), (3, 20), (40, 61), (0, 9), (1, 1), (2, 2)], 14, 2, 64, 16, 0),
    "no more tokens than sequences, but not one each": ([(0, 4), (3, 9), (0, 2), (1, 7)], 2, 1, 64, 4, 0),
    "few drafts over a long context": ([(5, 4000)], 7, 1, 128, 16, 0),
    "a last chunk over a long context": ([(130, 1000)], 7, 1, 64, 16, 0),
    "decodes beside chunks that are split": ([(1, 900), (5, 2100), (0, 9), (40, 700), (1, 3)], 14, 2, 64, 16, 0),
    "drafts in a window that is split": ([(5, 1500), (19, 700), (3, 40)], 7, 1, 128, 16, 900),
    "a window that hides whole parts from some rows": ([(120, 900)], 1, 1, 64, 16, 512),
    "more split sequences than a warp has lanes": ([(3, 530)] * 35 + [(9, 600), (1, 800)], 7, 1, 64, 16, 0),
    "more sequences than a warp has lanes": ([(1, 2)] * 35 + [(9, 9)], 2, 1, 64, 4, 0),
}


@pytest.fixture(scope="module", params=[0, 1], ids=["seed0", "seed1"])
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenDevice]:
    """An emulated GPU, by two orders of threads and of asynchronous copies."""
    with emulated_cuda(tmp_path_factory.mktemp("cubins"), request.param):
        opened = Runtime.boot().open_device("cuda")
        yield opened
        opened.backend.close()


@pytest.mark.parametrize("label", BATCHES)
def test_ragged_batches(opened: OpenDevice, label: str) -> None:
    sequences, num_heads, num_kv_heads, head_dim, block_size, window = BATCHES[label]
    sample = paged_attention_sample(
        np.random.default_rng(11),
        "batch",
        sequences,
        num_heads,
        num_kv_heads,
        head_dim,
        block_size,
        window,
        num_padding_rows=2,
    )
    check(opened, "paged_attention", sample, DType.BFLOAT16)


@pytest.mark.parametrize("label", [label for label, batch in BATCHES.items() if batch[3] != 96])
def test_ragged_batches_over_codes(opened: OpenDevice, label: str) -> None:
    sequences, num_heads, num_kv_heads, head_dim, block_size, window = BATCHES[label]
    sample = paged_attention_sample(
        np.random.default_rng(11), "batch", sequences, num_heads, num_kv_heads, head_dim, block_size, window
    )
    q, k_cache, v_cache, *tables, sinks, slopes = sample.inputs
    _, (k_codes, v_codes, *scales) = list(quantized_caches(k_cache, v_cache))[len(label) % 2]
    quantized = Sample(label, (q, k_codes, v_codes, *tables, *scales, sinks, slopes), sample.attributes)
    check(opened, "paged_attention_quantized", quantized, DType.FLOAT16)


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("scale", [-0.25, 0.0, 4.0])
def test_any_scale(opened: OpenDevice, scale: float, head_dim: int) -> None:
    """A negative one turns the order of scores around, and 0 makes all weights equal."""
    sequences = [(1, 40), (20, 70), (4, 600)]
    rng = np.random.default_rng(11)
    sample = paged_attention_sample(rng, "batch", sequences, 7, 1, head_dim, 16, 0)
    for float_type in (DType.BFLOAT16, DType.FLOAT16):
        check(opened, "paged_attention", Sample("scaled", sample.inputs, {"scale": scale, "window": 0}), float_type)


@pytest.mark.parametrize("num_queries", [1, 12])
def test_scores_increasing_with_every_key(opened: OpenDevice, num_queries: int) -> None:
    """What was summed is rescaled again and again, by a little and by much."""
    sample = paged_attention_sample(np.random.default_rng(11), "batch", [(num_queries, 700)], 4, 1, 64, 16, 0)
    q, k_cache, v_cache, cu_seqlens_q, seqlens_k, block_tables, *absent = sample.inputs
    blocks, offsets = block_tables[0, : -(-700 // 16)], np.arange(16)
    grown = k_cache.copy()
    for i, block in enumerate(blocks):
        grown[block] = 0.01 * grown[block] + (i * 16 + offsets)[None, :, None] / 256
    inputs = (np.abs(q), grown, v_cache, cu_seqlens_q, seqlens_k, block_tables, *absent)
    check(opened, "paged_attention", Sample("growing", inputs, sample.attributes), DType.FLOAT16)


@pytest.mark.parametrize(
    ("name", "float_type"),
    [("cuda/by_row", DType.FLOAT32), ("cuda/tensor_cores", DType.FLOAT16), ("cuda/tensor_cores", DType.BFLOAT16)],
)
@pytest.mark.parametrize(
    ("sequences", "head_dim"), [([(1, 700), (70, 90)], 256), ([(1, 300), (1, 5)], 256), ([(5, 1300)], 192)]
)
def test_wide_heads_with_a_soft_cap(
    opened: OpenDevice, sequences: list[tuple[int, int]], head_dim: int, name: str, float_type: DType
) -> None:
    """Those of Gemma have 256 elements."""
    plain = paged_attention_sample(np.random.default_rng(11), "batch", sequences, 4, 2, head_dim, 16, 0)
    sample = Sample("wide", plain.inputs, {**plain.attributes, "softcap": 5.0})
    check(opened, "paged_attention", sample, float_type, name)


SEQUENCE = st.integers(0, 12).flatmap(lambda count: st.tuples(st.just(count), st.integers(max(1, count), 90)))
LONG_SEQUENCE = st.tuples(st.integers(0, 40), st.integers(500, 1100))


@settings(max_examples=scaled(2000), deadline=None)
@given(
    sequences=st.lists(st.one_of(SEQUENCE, LONG_SEQUENCE), min_size=1, max_size=5),
    heads=st.sampled_from([(1, 1), (6, 2), (7, 1), (17, 1)]),
    head_dim=st.sampled_from([16, 64, 80, 128]),
    block_size=st.sampled_from([1, 3, 16]),
    window=st.sampled_from([0, 1, 7, 64, 600]),
)
def test_any_batch(
    opened: OpenDevice,
    sequences: list[tuple[int, int]],
    heads: tuple[int, int],
    head_dim: int,
    block_size: int,
    window: int,
) -> None:
    sample = paged_attention_sample(np.random.default_rng(11), "batch", sequences, *heads, head_dim, block_size, window)
    check(opened, "paged_attention", sample, DType.FLOAT16)


def check(opened: OpenDevice, page: str, sample: Sample, float_type: DType, name: str = FAST) -> None:
    """By the kernels of a name, by default those on tensor cores."""
    operators = OperatorRegistry(load())
    kernel = next(kernel for kernel in load_kernels() if (kernel.operator, kernel.name) == (page, name))
    check_kernel(KernelCase(operators[page], kernel, float_type, sample), operators, opened)
