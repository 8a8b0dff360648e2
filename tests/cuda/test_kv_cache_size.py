"""The default size of the KV cache: by the GPU's free memory, with other processes counted."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
from tests.architecture.sources import ROOT
from tests.cuda.host_driver import HostDriver, fake_cubins

from aethermind import LLM, Runtime, SamplingParams
from aethermind.engine.loading.kv_plan import MemoryNeeds
from aethermind.errors import InvalidArgumentError, OutOfMemoryError
from aethermind.hal import Probe
from aethermind_cuda.backend import CudaBackend

MIB = 1 << 20
PROMPT = {"prompt_token_ids": [3, 1, 4, 1, 5]}
TOKEN_BYTES = 2048
"""Of the demo model's keys and values in float32."""
PAGES = 2 * MIB
"""What the allocator rounds large sizes up to."""
NUM_TENSORS = 8
"""Keys and values of four layers."""


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostDriver:
    """Of GPUs of 192 MiB, behind `--device cuda`."""
    driver = HostDriver(memory=192 * MIB)
    cubins = fake_cubins(tmp_path, [source.stem for source in (ROOT / "aethermind-cuda" / "csrc").glob("*.cu")])
    monkeypatch.setattr("aethermind_cuda.probe.probe", lambda: Probe(2, "GPUs that compute nothing."))
    monkeypatch.setattr("aethermind_cuda.probe.open_backend", lambda: CudaBackend(driver, cubins))
    monkeypatch.setattr("aethermind_cuda.kernels._cublaslt.find_cublaslt", lambda: None)
    return driver


def open_llm(**options: Any) -> LLM:
    return LLM("demo", device="cuda", dtype="float32", runtime=Runtime.boot(), **options)


def num_tokens(**options: Any) -> int:
    llm = open_llm(**options)
    found = llm.engine.compiled.num_kv_blocks * llm.engine.compiled.cache_spec.block_size
    llm.close()
    del llm
    gc.collect()
    return found


@pytest.mark.parametrize("utilization", [0.5, 0.9, 1.0])
@pytest.mark.parametrize(
    "options",
    [{}, {"max_num_batched_tokens": 2048}, {"quantization": "int8"}, {"kv_cache_dtype": "int8"}, {"block_size": 1}],
    ids=str,
)
def test_memory_is_full_up_to_the_utilization(driver: HostDriver, utilization: float, options: dict[str, Any]) -> None:
    allowed = int(utilization * driver.total)
    llm = open_llm(gpu_memory_utilization=utilization, max_num_seqs=512, **options)
    one_step = driver.used
    assert one_step <= allowed
    llm.generate([PROMPT], SamplingParams(max_tokens=4, logprobs=2, repetition_penalty=1.1))  # another kind of step
    assert driver.used > one_step
    assert 0 <= allowed - driver.used <= PAGES * (NUM_TENSORS + 4)


def test_memory_of_other_processes_is_counted(driver: HostDriver) -> None:
    alone = num_tokens(max_num_seqs=512)
    driver.used += 30 * MIB
    assert alone - num_tokens(max_num_seqs=512) == pytest.approx(30 * MIB / TOKEN_BYTES, abs=NUM_TENSORS * PAGES / 2048)
    driver.used -= 30 * MIB
    assert num_tokens(max_num_seqs=512) == alone


def test_there_are_no_more_blocks_than_requests_can_use(driver: HostDriver) -> None:
    assert num_tokens(max_num_seqs=20, max_model_len=1000) == 20 * 1008
    assert num_tokens(max_num_seqs=1, max_model_len=1000) == 1008 + 1008, "and the prefix cache"
    assert num_tokens(max_num_seqs=512, max_num_batched_tokens=16, max_model_len=1000) == 1008 + 16 * 1000
    assert driver.used == 0


def test_a_number_of_blocks_is_taken_as_it_is(driver: HostDriver) -> None:
    assert num_tokens(num_kv_blocks=5, gpu_memory_utilization=0.01) == 5 * 16
    assert driver.used == 0


def test_a_context_that_does_not_fit_is_refused_before_anything_is_loaded(driver: HostDriver) -> None:
    driver.used = 164 * MIB
    with pytest.raises(OutOfMemoryError) as caught:
        open_llm(max_model_len=2000)
    words = str(caught.value)
    assert words.startswith(
        "cuda:0 has too little memory for a KV cache of 2000 tokens, which takes 4.0 MiB: weights take"
    )
    assert "164.0 MiB of its 192.0 MiB are in use, and 90% may be. Lower --max-model-len or" in words
    assert driver.memory == {}


def test_the_default_context_is_as_long_as_memory_allows(driver: HostDriver, caplog: pytest.LogCaptureFixture) -> None:
    options: dict[str, Any] = {"gpu_memory_utilization": 1.0, "max_num_batched_tokens": 64, "max_num_seqs": 4}
    compiled = open_llm(num_kv_blocks=128, **options).engine.compiled
    needs, most_stop_tokens = MemoryNeeds.of(compiled), compiled.step.plan.symbols["Y"]
    del compiled
    gc.collect()
    driver.used = driver.total - needs.weights - needs.steps - 1000 * TOKEN_BYTES
    llm = open_llm(**options)
    compiled = llm.engine.compiled
    assert compiled.max_model_len == compiled.num_kv_blocks * 16 < 2048
    assert f"holds the KV cache of {compiled.max_model_len} tokens" in caplog.text
    assert compiled.step.plan.symbols["B"] == compiled.num_kv_blocks
    assert compiled.step.plan.symbols["Y"] == most_stop_tokens
    assert 500 <= compiled.max_model_len <= 1000
    with pytest.raises(OutOfMemoryError, match="too little memory for a KV cache of 16 tokens"):
        open_llm()


def test_a_draft_model_has_its_share(driver: HostDriver) -> None:
    options: dict[str, Any] = {"speculative_method": "draft", "draft_model": "demo", "max_num_seqs": 512}
    llm = open_llm(**options)
    compiled = llm.engine.compiled
    assert compiled.draft is not None
    assert compiled.draft.num_kv_blocks == compiled.num_kv_blocks
    assert driver.used <= 0.9 * driver.total
    llm.generate([PROMPT], SamplingParams(max_tokens=4, logprobs=2))
    assert 0 <= 0.9 * driver.total - driver.used <= PAGES * 2 * NUM_TENSORS


@pytest.mark.parametrize("utilization", [0, -0.1, 1.01, "0.9", True, float("nan")])
def test_an_invalid_utilization_is_refused(utilization: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="gpu_memory_utilization should be more than 0 and at most 1, got"):
        LLM("demo", device="numpy", gpu_memory_utilization=utilization)
