"""Devices with little memory: the KV cache gets the rest of it, and answers do not change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.sim.small_model import write_small_model

from aethermind import LLM, Runtime, SamplingParams
from aethermind.errors import InvalidArgumentError
from aethermind_sim.backend import SimBackend

PROMPTS = [{"prompt_token_ids": [(7 * index + token) % 900 + 5 for token in range(40)]} for index in range(6)]
PARAMS = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True, logprobs=1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small model."""
    demo = Path(Runtime.boot().models.locate("demo"))
    return str(write_small_model(demo, tmp_path_factory.mktemp("memory") / "model"))


def answers(llm: LLM) -> list[list[int]]:
    return [list(output.outputs[0].token_ids) for output in llm.generate(PROMPTS, PARAMS)]


def test_a_cache_that_fills_what_is_left(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"dtype": "float32", "max_num_seqs": 6, "max_num_batched_tokens": 32}
    expected = answers(LLM(model, device="numpy", runtime=Runtime.boot(), **options))
    total = 2 << 20
    monkeypatch.setenv("AETHERMIND_SIM_MEMORY", "2")
    llm = LLM(model, device="sim", runtime=Runtime.boot(), **options)
    compiled, backend = llm.engine.compiled, llm.engine.compiled.open_device.backend
    assert isinstance(backend, SimBackend)
    assert answers(llm) == expected
    free = backend.free_memory()
    assert free is not None
    assert 0.1 * total <= free <= 0.1 * total + 2 * compiled.cache_spec.bytes_per_block
    assert compiled.num_kv_blocks < 6 * compiled.cache_spec.num_blocks_for(compiled.max_model_len)


def test_invalid_memory_sizes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AETHERMIND_SIM_MEMORY", "much")
    with pytest.raises(InvalidArgumentError, match="set it to MiB such as 64"):
        LLM("demo", device="sim", runtime=Runtime.boot())
