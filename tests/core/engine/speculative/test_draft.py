"""A draft model beside the model: what it drafts, what it keeps, and that answers do not depend on it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from tests.core.engine.engines import open_engine
from tests.core.engine.speculative.drafting import finish, speculate_with

from aethermind import RequestOptions, Runtime, SamplingParams
from aethermind.engine.engine import Engine
from aethermind.engine.speculative.model_proposer import DraftModel
from aethermind.errors import InvalidArgumentError

PROMPTS = [[(7 * index + 11 * token) % 900 + 5 for token in range(3 + 9 * index)] for index in range(4)]
OPTIONS: dict[str, Any] = {"max_model_len": 64, "num_kv_blocks": 64, "deterministic": True}
GREEDY = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
PARAMS = [
    GREEDY,
    SamplingParams(temperature=1.0, seed=3, max_tokens=16, ignore_eos=True),
    SamplingParams(temperature=1.3, seed=4, top_k=20, top_p=0.9, max_tokens=16, ignore_eos=True),
    SamplingParams(temperature=0.8, seed=5, repetition_penalty=1.2, max_tokens=16, ignore_eos=True),
]


def open_drafted(runtime: Runtime, device: str = "cpu", **options: Any) -> tuple[Engine, DraftModel]:
    """The demo model with a draft model beside it, by default itself, which drafts at every opportunity."""
    given = {**OPTIONS, "speculative_method": "draft", "draft_model": "demo", **options}
    engine = open_engine(runtime, device, **given)
    proposer = DraftModel(engine.compiled)
    speculate_with(engine, proposer)
    return engine, proposer


@pytest.fixture(scope="module")
def small_model(runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model with half of its layers."""
    demo = Path(runtime.models.locate("demo"))
    directory = tmp_path_factory.mktemp("small") / "model"
    shutil.copytree(demo, directory)
    config = json.loads((directory / "config.json").read_text())
    config["num_hidden_layers"] //= 2
    (directory / "config.json").write_text(json.dumps(config))
    weights = load_file(directory / "model.safetensors")
    dropped = tuple(f"model.layers.{layer}." for layer in range(config["num_hidden_layers"], 99))
    kept = {name: tensor for name, tensor in weights.items() if not name.startswith(dropped)}
    save_file(kept, directory / "model.safetensors")
    return directory


def run(engine: Engine) -> list[list[int]]:
    for index, (prompt, params) in enumerate(zip(PROMPTS, PARAMS, strict=True)):
        engine.add_request(str(index), prompt, params)
    finished = finish(engine)
    return [finished[str(index)].outputs[0].token_ids for index in range(len(PROMPTS))]


@pytest.fixture(scope="module")
def expected(runtime: Runtime) -> list[list[int]]:
    return run(open_engine(runtime, "cpu", **OPTIONS))


def test_an_identical_draft_model_is_always_accepted(runtime: Runtime, expected: list[list[int]]) -> None:
    engine, proposer = open_drafted(runtime)
    requests = []
    for index in range(3):
        engine.add_request(str(index), PROMPTS[index], PARAMS[index])
    requests = list(engine.waiting)
    finished = finish(engine)
    assert [finished[str(index)].outputs[0].token_ids for index in range(3)] == expected[:3]
    for request in requests:
        assert request.num_draft_tokens == request.num_accepted_tokens > 0, "sampled ones as well as greedy ones"
    assert proposer.cache.num_sequences == 0


def test_answers_do_not_depend_on_the_draft_model(
    runtime: Runtime, small_model: Path, expected: list[list[int]]
) -> None:
    options: list[dict[str, Any]] = [
        {},
        {"max_num_batched_tokens": 9, "max_num_seqs": 3},
        {"num_kv_blocks": 9, "block_size": 8},
        {"enable_prefix_caching": False, "num_speculative_tokens": 2},
    ]
    for one in options:
        engine, proposer = open_drafted(runtime, draft_model=str(small_model), **one)
        assert run(engine) == expected, one
        assert engine.speculator is not None
        assert engine.speculator.num_draft_tokens > 0, one
        assert proposer.cache.num_sequences == 0
        assert proposer.cache.num_available_blocks == proposer.cache.pool.num_blocks


def test_on_each_device(runtime: Runtime, device: str, small_model: Path) -> None:
    engine, _ = open_drafted(runtime, device, draft_model=str(small_model))
    engine.add_request("0", PROMPTS[0], GREEDY)
    drafted = finish(engine)["0"].outputs
    plain = open_engine(runtime, device, **OPTIONS)
    plain.add_request("0", PROMPTS[0], GREEDY)
    assert drafted == finish(plain)["0"].outputs


def test_full_draft_cache_and_preemption(runtime: Runtime, small_model: Path, expected: list[list[int]]) -> None:
    engine, proposer = open_drafted(runtime, draft_model=str(small_model), num_kv_blocks=7, block_size=8)
    for index, (prompt, params) in enumerate(zip(PROMPTS, PARAMS, strict=True)):
        engine.add_request(str(index), prompt, params)
    requests = list(engine.waiting)
    finished = finish(engine)
    assert [finished[str(index)].outputs[0].token_ids for index in range(len(PROMPTS))] == expected
    assert sum(request.num_preemptions for request in requests) > 0
    assert proposer.cache.num_sequences == 0


def test_the_draft_cache_is_reused(runtime: Runtime) -> None:
    engine, proposer = open_drafted(runtime, block_size=4)
    assert proposer.cache.query(PROMPTS[3]) == 0
    engine.add_request("first", PROMPTS[3], GREEDY)
    finish(engine)
    assert proposer.cache.query(PROMPTS[3]) == 28, "all blocks of four of its 30 tokens"


def test_a_draft_model_with_other_tokens_is_refused(runtime: Runtime, small_model: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="pass it as draft_model"):
        open_engine(runtime, "null", speculative_method="draft")
    other = tmp_path / "other"
    shutil.copytree(small_model, other)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = (next(token for token, id in vocabulary.items() if id == wanted) for wanted in (300, 301))
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(InvalidArgumentError, match=r"has other tokens: 300 is .* Take a smaller model"):
        open_engine(runtime, "null", speculative_method="draft", draft_model=str(other))


def test_what_was_computed_is_reused_for_requests_of_the_same_salt(runtime: Runtime) -> None:
    engine, proposer = open_drafted(runtime, "null", block_size=4)
    reused = []
    for name, salt in (("a", b"one"), ("b", b"one"), ("c", b"two")):
        engine.add_request(name, PROMPTS[2], GREEDY, options=RequestOptions(cache_salt=salt))
        reused.append(proposer.cache.query(PROMPTS[2], engine._outputs[name].request.extra_key))
        finish(engine)
    assert reused == [0, 20, 0]
