"""Kernels of attention, of the KV cache and of rotations, on the emulator, against the pages' NumPy references."""

from __future__ import annotations

import numpy as np
import pytest
from tests.cuda.emulated_calls import OPERATORS, check_call, supported_kernels

from aethermind.hal.dtype import DType

PAGES = (
    "attention",
    "kv_cache_write",
    "kv_cache_write_quantized",
    "paged_attention",
    "paged_attention_quantized",
    "rope",
    "rope_table",
    "shift_keys",
    "shift_keys_quantized",
)


@pytest.mark.parametrize("float_type", [DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16], ids=str)
@pytest.mark.parametrize("page", PAGES)
def test_kernels_say_what_their_page_says(page: str, float_type: DType) -> None:
    operator = OPERATORS[page]
    for sample in operator.samples(np.random.default_rng(5)):
        for kernel in supported_kernels(operator, sample, float_type):
            check_call(kernel, sample, float_type)
