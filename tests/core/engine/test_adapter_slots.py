"""Adapters loaded and unloaded while an engine runs, against engines that were started with them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.adapters import linear_shapes, write_adapter

from aethermind import LLM, RequestOptions, Runtime, SamplingParams
from aethermind.errors import CheckpointError, ConfigError, InvalidArgumentError

LIMITS: dict[str, Any] = {"device": "cpu", "dtype": "float32", "max_model_len": 128}
GREEDY = SamplingParams(temperature=0.0, max_tokens=8)
PROMPTS = ["Once upon a time", "The fox said"]


@pytest.fixture(scope="module")
def adapters(runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Adapters of different ranks, of which `v` changes some projections only."""
    shapes = linear_shapes(json.loads((runtime.models.locate("demo") / "config.json").read_text()))
    root = tmp_path_factory.mktemp("adapters")
    targets: dict[str, Any] = {"v": {"targets": ("v_proj", "down_proj"), "rank": 2}, "z": {"rank": 16}}
    return {
        name: str(write_adapter(root / name, shapes, seed=seed, size=0.4, **targets.get(name, {})))
        for seed, name in enumerate("vxyz")
    }


@pytest.fixture(scope="module")
def expected(runtime: Runtime, adapters: dict[str, str]) -> dict[str, list[list[int]]]:
    """The tokens of an engine that was started with the adapters; "" is the model itself."""
    with LLM(runtime=runtime, adapters=adapters, **LIMITS) as llm:
        found = {name: answers(llm, name) for name in ("", *adapters)}
    assert len({str(tokens) for tokens in found.values()}) == 5
    return found


@pytest.fixture
def llm(runtime: Runtime, adapters: dict[str, str]) -> Iterator[LLM]:
    with LLM(runtime=runtime, adapters={"x": adapters["x"]}, max_loras=2, max_lora_rank=8, **LIMITS) as llm:
        yield llm


def answers(llm: LLM, adapter: str) -> list[list[int]]:
    outputs = llm.generate(PROMPTS, GREEDY, adapter=adapter or None)
    return [output.outputs[0].token_ids for output in outputs]


def test_adapters_that_take_turns_in_slots_answer_as_those_loaded_at_start(
    llm: LLM, adapters: dict[str, str], expected: dict[str, list[list[int]]]
) -> None:
    loaded = ["x"]
    for name in ("y", "v", "x", "y", "v"):
        if name not in loaded:
            if len(loaded) == 2:
                llm.unload_adapter(loaded.pop(0))
            llm.load_adapter(name, adapters[name])
            loaded.append(name)
        for each in ("", *loaded):
            assert answers(llm, each) == expected[each], (each, loaded)
    mixed = llm.generate([PROMPTS[0]] * 3, GREEDY, adapter=[None, *loaded])
    assert [output.outputs[0].token_ids for output in mixed] == [expected[name][0] for name in ("", *loaded)]
    assert not np.allclose(llm.embed("a fox", adapter="v"), llm.embed("a fox"))


def test_a_request_finishes_with_the_adapter_that_it_began_with(
    llm: LLM, adapters: dict[str, str], expected: dict[str, list[list[int]]]
) -> None:
    engine, ids = llm.engine, list(llm.tokenizer.encode(PROMPTS[0]))
    engine.add_request("first", ids, GREEDY, options=RequestOptions(adapter="x"))
    engine.step()
    engine.unload_adapter("x")
    engine.load_adapter("x", adapters["y"])
    with pytest.raises(InvalidArgumentError, match="All 2 slots for adapters are in use"):
        engine.load_adapter("v", adapters["v"])
    engine.add_request("second", ids, GREEDY, options=RequestOptions(adapter="x"))
    found: dict[str, list[int]] = {}
    while engine.has_unfinished:
        found |= {output.request_id: list(output.outputs[0].token_ids) for output in engine.step()}
    assert found == {"first": expected["x"][0], "second": expected["y"][0]}
    engine.load_adapter("v", adapters["v"])  # now the slot is free
    assert answers(llm, "v") == expected["v"]


def test_mistakes_change_nothing(
    llm: LLM, adapters: dict[str, str], expected: dict[str, list[list[int]]], tmp_path: Path
) -> None:
    with pytest.raises(InvalidArgumentError, match="The adapter 'x' is loaded already"):
        llm.load_adapter("x", adapters["y"])
    with pytest.raises(ConfigError, match=r"rank 16, and slots have rank 8\. Start with --max-lora-rank 16"):
        llm.load_adapter("z", adapters["z"])
    with pytest.raises((ConfigError, CheckpointError)):
        llm.load_adapter("y", str(tmp_path))
    with pytest.raises(InvalidArgumentError, match="There is no adapter 'y'; there are x"):
        llm.unload_adapter("y")
    with pytest.raises(InvalidArgumentError, match="There is no adapter 'y'; there are x"):
        answers(llm, "y")
    assert answers(llm, "x") == expected["x"]
    llm.load_adapter("y", adapters["y"])
    assert answers(llm, "y") == expected["y"]


def test_options_of_slots(runtime: Runtime, adapters: dict[str, str]) -> None:
    with pytest.raises(InvalidArgumentError, match="max_loras is 1, and 2 adapters are given"):
        LLM(runtime=runtime, adapters={name: adapters[name] for name in "xy"}, max_loras=1, **LIMITS)
    with pytest.raises(ConfigError, match="max_loras needs steps in the engine's process"):
        LLM(runtime=runtime, max_loras=1, tensor_parallel_size=2, **LIMITS)
    with LLM(runtime=runtime, **LIMITS) as plain, pytest.raises(InvalidArgumentError, match="only with max_loras"):
        plain.load_adapter("x", adapters["x"])
