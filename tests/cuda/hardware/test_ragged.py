"""A thousand random ragged batches of paged attention against the NumPy reference in float64."""

from __future__ import annotations

import numpy as np
import pytest

from aethermind import Runtime
from aethermind.ops.catalog._sample_inputs import paged_attention_sample
from aethermind.ops.operator import Sample
from aethermind.runtime import OpenDevice
from aethermind.testing.kernel_cases import is_supported
from aethermind.testing.operator_calls import KernelCase, check_kernel

pytestmark = pytest.mark.cuda

BATCHES_OF_A_SEED = 100


@pytest.mark.parametrize("seed", range(10))
def test_random_batches(runtime: Runtime, opened: OpenDevice, seed: int) -> None:
    rng = np.random.default_rng(seed)
    operator = runtime.operators["paged_attention"]
    kernels = [kernel for kernel in runtime.kernels.kernels("cuda") if kernel.operator == operator.name]
    for _ in range(BATCHES_OF_A_SEED):
        batch, dtypes = random_batch(rng), sorted(operator.tolerances, key=str)
        dtype = dtypes[int(rng.integers(len(dtypes)))]
        cases = [case for kernel in kernels if is_supported(case := KernelCase(operator, kernel, dtype, batch))]
        check_kernel(cases[int(rng.integers(len(cases)))], runtime.operators, opened)


def random_batch(rng: np.random.Generator) -> Sample:
    """Up to nine sequences, each of no, one or many queries behind a context of its own."""
    num_kv_heads = int(rng.choice([1, 2, 4]))
    num_heads = num_kv_heads * int(rng.choice([1, 2, 7]))
    head_dim = int(rng.choice([64, 80, 96, 128]))
    sequences = []
    for _ in range(int(rng.integers(1, 10))):
        queries = int(rng.choice([0, 1, 1, 1, rng.integers(2, 70)]))
        sequences.append((queries, queries + int(rng.integers(0 if queries else 1, 300))))
    block_size, padding, window = int(rng.choice([1, 16, 32])), int(rng.integers(0, 3)), int(rng.choice([0, 0, 1, 33]))
    return paged_attention_sample(
        rng, "random", sequences, num_heads, num_kv_heads, head_dim, block_size, window, padding
    )
