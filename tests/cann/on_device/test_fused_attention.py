"""Attention beyond the kit's samples: fused, with blocks of a multiple of 128, and parts of the queries at a time."""

from __future__ import annotations

import numpy as np
import pytest

from aethermind import Runtime
from aethermind.hal.dtype import DType
from aethermind.ops.catalog._sample_inputs import paged_attention_sample
from aethermind.testing.operator_calls import KernelCase, check_kernel
from aethermind_cann.kernels import paged_attention

SEQUENCES = {
    "decode": [(1, 5), (1, 128), (1, 129), (1, 300)],
    "prefill": [(7, 7), (130, 130), (3, 200)],
    "mixed": [(1, 40), (5, 133), (0, 0), (1, 1)],
}


@pytest.mark.parametrize("window", [0, 1, 20])
@pytest.mark.parametrize("batch", SEQUENCES)
@pytest.mark.parametrize("dtype", [DType.BFLOAT16, DType.FLOAT16], ids=str)
def test_the_fused_attention(runtime: Runtime, dtype: DType, batch: str, window: int) -> None:
    check(runtime, "npu_fused_infer_attention_score", dtype, batch, window)


@pytest.mark.parametrize("window", [0, 20])
@pytest.mark.parametrize("batch", ["prefill", "mixed"])
def test_attention_in_parts_of_queries(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, batch: str, window: int
) -> None:
    monkeypatch.setattr(paged_attention, "_SCORES_AT_ONCE", 3000)
    check(runtime, "torch", DType.FLOAT32, batch, window)


def check(runtime: Runtime, name: str, dtype: DType, batch: str, window: int) -> None:
    opened = runtime.open_device("cann")
    (kernel,) = (
        kernel
        for kernel in runtime.kernels.kernels("cann")
        if kernel.operator == "paged_attention" and kernel.name == name
    )
    rng = np.random.default_rng(3)
    sample = paged_attention_sample(rng, batch, SEQUENCES[batch], 4, 2, 32, 128, window, num_padding_rows=2)
    case = KernelCase(runtime.operators["paged_attention"], kernel, dtype, sample)
    check_kernel(case, runtime.operators, opened)
