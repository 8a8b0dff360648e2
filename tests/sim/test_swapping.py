"""An engine that swaps while its steps run: answers are those of an engine with enough memory, whatever the stream
order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.sim.small_model import write_small_model

from aethermind import Runtime, SamplingParams
from aethermind.engine.engine import Engine
from aethermind.engine.kv_memory.memory import KVMemory
from aethermind.engine.parts import EngineParts

PROMPTS = [[(7 * index + 11 * token) % 900 + 5 for token in range(4 + index)] for index in range(5)]
PARAMS = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True)
SEEDS = range(3)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small model."""
    demo = Path(Runtime.boot().models.locate("demo"))
    return str(write_small_model(demo, tmp_path_factory.mktemp("swapping") / "model"))


def answers(model: str, device: str, **options: Any) -> tuple[list[list[int]], int]:
    """All answers, and the number of blocks swapped out."""
    options = {"block_size": 4, "max_model_len": 32, "enable_prefix_caching": False, "dtype": "float32", **options}
    parts = EngineParts.of(Runtime.boot(), model, device=device, **options)
    engine = Engine(parts, parts.compiled.source.tokenizer())
    engine.costs.seconds_per_byte, engine.costs.seconds_per_token = 0.0, 1e6
    for index, prompt in enumerate(PROMPTS):
        engine.add_request(str(index), prompt, PARAMS)
    finished = {}
    while engine.has_unfinished:
        finished.update({one.request_id: one.outputs[0].token_ids for one in engine.step() if one.finished})
    num_moved = 0 if engine.swap_store is None else engine.swap_store.num_moved_out
    engine.close()
    return [finished[str(index)] for index in range(len(PROMPTS))], num_moved


def pressed_answers(model: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    monkeypatch.setenv("AETHERMIND_SIM_SEED", str(seed))
    found, num_moved = answers(model, "sim", num_kv_blocks=7, swap_space=0.01)
    assert num_moved > 0
    return found


def test_answers_are_those_without_pressure(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, _ = answers(model, "numpy")
    for seed in SEEDS:
        assert pressed_answers(model, seed, monkeypatch) == expected


def test_steps_that_do_not_wait_for_block_copies_are_detected(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, _ = answers(model, "numpy")
    monkeypatch.setattr(KVMemory, "wait_for_swaps", lambda self, blocks=None: None)
    assert any(pressed_answers(model, seed, monkeypatch) != expected for seed in SEEDS)
