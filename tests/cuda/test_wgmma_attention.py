"""Attention of prompts by wgmma, emulated (compute capability 9.0)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.cuda.emulator.opening import emulated_cuda
from tests.cuda.test_attention_kernels import check as check_attention
from tests.cuda.test_launch_limits import assert_fits

from aethermind.hal.dtype import DType
from aethermind.ops.catalog._sample_inputs import paged_attention_sample
from aethermind.runtime import OpenDevice, Runtime
from aethermind_cuda.kernels import _paged_attention
from aethermind_cuda.launch import Call, DeviceArray, DeviceFacts
from aethermind_cuda.library import Cubins

BATCHES = {
    "one tile": ([(45, 45)], 2, 1, 64, 16, 0),
    "a chunk behind a long context": ([(20, 300)], 3, 1, 128, 32, 0),
    "a window that begins and ends in tiles of keys": ([(40, 400)], 4, 2, 128, 16, 130),
    "blocks of no power of two": ([(40, 50)], 1, 1, 128, 5, 0),
    "decodes, few drafts, a chunk, nothing": ([(1, 33), (3, 20), (40, 141), (0, 9), (1, 1), (2, 2)], 6, 1, 64, 16, 0),
    "more sequences than a warp has lanes": ([(1, 2)] * 35 + [(9, 9), (33, 140)], 2, 1, 128, 4, 0),
}


def test_launches_fit_an_h100() -> None:
    for head_dim in (64, 128):
        (launch,) = _paged_attention.tensor_core_launches(prompt(head_dim, (9, 0)))
        assert launch.source == "paged_attention_prefill_wgmma"
        assert_fits(launch, Cubins().operators, 227 << 10)


def test_other_gpus_and_calls_use_the_other_kernel() -> None:
    calls = [
        prompt(128, (8, 0)),
        prompt(128, (10, 0)),
        prompt(96, (9, 0)),
        prompt(128, (9, 0), scale=-0.1),
        prompt(128, (9, 0), softcap=30.0),
        prompt(128, (9, 0), num_tokens=64),
        prompt(128, (9, 0), cache=DType.INT8),
    ]
    for call in calls:
        assert "wgmma" not in "".join(launch.source for launch in _paged_attention.tensor_core_launches(call))


def prompt(
    head_dim: int,
    capability: tuple[int, int],
    num_tokens: int = 2048,
    cache: DType = DType.BFLOAT16,
    **attributes: float,
) -> Call:
    """The attention of a prompt."""
    q = DeviceArray(0, DType.BFLOAT16, (num_tokens, 28, head_dim))
    caches = [DeviceArray(0, cache, (200, 4, 16, head_dim))] * 2
    tables = [DeviceArray(0, DType.INT32, shape) for shape in ((2,), (1,), (1, 128))]
    scales = [DeviceArray(0, DType.FLOAT32, (200, 4, 16))] * 2 if cache is DType.INT8 else []
    device = DeviceFacts(capability, 132, 227 << 10)
    return Call((q, *caches, *tables, *scales), (q,), {"scale": 0.1, "window": 0, **attributes}, device)


@pytest.fixture(scope="module", params=[0, 1], ids=["seed0", "seed1"])
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenDevice]:
    """An emulated H100, which few tiles fill."""
    attributes = {16: 132, 38: 50 << 20, 75: 9, 76: 0, 97: 227 << 10}
    folder = tmp_path_factory.mktemp("cubins")
    with emulated_cuda(folder, request.param, attributes), pytest.MonkeyPatch.context() as patch:
        patch.setattr(_paged_attention, "fills_device", lambda _: True)
        opened = Runtime.boot().open_device("cuda")
        yield opened
        opened.backend.close()


@pytest.mark.parametrize("label", BATCHES)
def test_attention_of_ragged_batches(opened: OpenDevice, label: str) -> None:
    sequences, *shape = BATCHES[label]
    sample = paged_attention_sample(np.random.default_rng(11), label, sequences, *shape, num_padding_rows=2)
    launched: Any = opened.backend._driver.launched  # type: ignore[attr-defined]
    launched.clear()
    check_attention(opened, "paged_attention", sample, DType.BFLOAT16)
    assert f"paged_attention_prefill_wgmma_bfloat16_{shape[2]}" in launched
