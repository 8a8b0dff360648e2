"""Names of dtypes against the safetensors library's own."""

from __future__ import annotations

import json

import numpy as np
import pytest
import safetensors.torch
import torch

from aethermind.checkpoint.source import TensorInfo, dtype_names

TORCH_DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "U16": torch.uint16,
    "U32": torch.uint32,
    "U64": torch.uint64,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
}


def test_every_dtype_is_checked() -> None:
    assert dtype_names().keys() == TORCH_DTYPES.keys()


@pytest.mark.parametrize("name", TORCH_DTYPES)
def test_dtype_is_what_the_library_writes_and_torch_reads(name: str) -> None:
    numbers = [1, 1, 1] if name == "F8_E8M0" else [0, 1, 1]  # a power of two is not 0
    values = torch.tensor(numbers).to(TORCH_DTYPES[name])
    written = safetensors.torch.save({"x": values})
    end = 8 + int.from_bytes(written[:8], "little")
    assert json.loads(written[8:end])["x"]["dtype"] == name
    assert np.frombuffer(written[end:], dtype_names()[name]).astype(np.float64).tolist() == numbers


def test_info_has_size_and_dtype() -> None:
    info = TensorInfo("F16", (2, 3), 8, 20)
    assert info.num_bytes == 12
    assert info.dtype == np.float16
