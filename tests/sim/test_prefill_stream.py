"""Prefill on a second stream gives the tokens and log probabilities of one stream, bit for bit, in any stream order."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.sim.small_model import write_small_model

from aethermind import Runtime, SamplingParams
from aethermind.engine.engine import Engine
from aethermind.engine.loading.loader import compile_model
from aethermind.engine.parts import EngineParts
from aethermind.errors import InvalidArgumentError

PROMPTS = [[(7 * index + 11 * token) % 900 + 5 for token in range(3 + 5 * index)] for index in range(6)]
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True),
    SamplingParams(temperature=0.9, top_p=0.9, seed=4, max_tokens=7, ignore_eos=True, logprobs=2),
    SamplingParams(temperature=0.7, repetition_penalty=1.2, seed=5, max_tokens=8, ignore_eos=True),
]
SEEDS = range(3)
Answers = dict[str, tuple[list[int], Any]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small model."""
    demo = Path(Runtime.boot().models.locate("demo"))
    return str(write_small_model(demo, tmp_path_factory.mktemp("prefill") / "model"))


def open_engine(model: str, **options: Any) -> Engine:
    options = {"block_size": 4, "max_model_len": 48, "max_num_batched_tokens": 8, "max_num_seqs": 4, **options}
    parts = EngineParts.of(Runtime.boot(), model, **{"device": "sim", "dtype": "float32", **options})
    return Engine(parts, parts.compiled.source.tokenizer())


def answers(engine: Engine) -> tuple[Answers, int]:
    """All answers to requests that arrive two by two, and the number of runs on the second stream.

    The second of them begins in a step that only prefills, on the default stream, and continues on the other one.
    """
    prefill, num_runs = engine.runner._prefill_stream, 0
    for (_, _, is_for_prefill), variant in engine.runner._loaded_graphs.items():
        if is_for_prefill:
            run = variant.executor.run

            def counting(*arguments: Any, run: Any = run) -> None:
                nonlocal num_runs
                num_runs += 1
                run(*arguments)

            variant.executor.run = counting  # type: ignore[method-assign]
    arriving, found = list(enumerate(PROMPTS)), Answers()
    while arriving or engine.has_unfinished:
        for _ in range(min(2, len(arriving))):
            index, prompt = arriving.pop(0)
            engine.add_request(str(index), prompt, PARAMS[index % len(PARAMS)])
        for output in engine.step():
            if output.finished:
                (answer,) = output.outputs
                found[output.request_id] = answer.token_ids, answer.logprobs
    assert (prefill is None) == (num_runs == 0)
    engine.close()
    return found, num_runs


@pytest.fixture(scope="module")
def expected(model: str) -> Answers:
    """Those of steps on one stream."""
    return answers(open_engine(model, deterministic=True))[0]


@pytest.mark.parametrize("seed", SEEDS)
def test_bits_are_those_of_one_stream(
    model: str, expected: Answers, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AETHERMIND_SIM_SEED", str(seed))
    found, num_runs = answers(open_engine(model, deterministic=True, prefill_stream=True))
    assert found == expected
    assert num_runs > 5


def test_shifted_and_preempted_requests(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are copied, swapped and rotated in the right order with both streams."""
    options: dict[str, Any] = {"num_kv_blocks": 10, "max_model_len": 32, "swap_space": 0.01, "context_shift": True}
    wanted, _ = answers(open_engine(model, deterministic=True, **options))
    for seed in SEEDS:
        monkeypatch.setenv("AETHERMIND_SIM_SEED", str(seed))
        found, num_runs = answers(open_engine(model, deterministic=True, prefill_stream=True, **options))
        assert found == wanted
        assert num_runs > 0


@pytest.mark.parametrize("missing", ["before", "behind"])
def test_streams_that_do_not_wait_are_detected(
    model: str, expected: Answers, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def forked(backend: Any, main: Any, other: Any) -> Any:
        begun, ended = backend.events.create(), backend.events.create()
        if missing != "before":
            begun.record(main)
            other.wait_event(begun)
        yield
        if missing != "behind":
            ended.record(other)
            main.wait_event(ended)

    monkeypatch.setattr("aethermind.engine.steps.model_runner.forked", forked)
    differs = False
    for seed in range(8):
        monkeypatch.setenv("AETHERMIND_SIM_SEED", str(seed))
        differs = differs or answers(open_engine(model, deterministic=True, prefill_stream=True))[0] != expected
    assert differs


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"device": "numpy"}, "numpy:0 computes on the host's cores"),
        ({"device": "cpu"}, "cpu:0 computes on the host's cores"),
        ({"tensor_parallel_size": 2}, "cannot be combined with tensor_parallel_size"),
        ({"speculative_method": "mtp"}, "cannot be combined with speculative_method mtp"),
    ],
    ids=str,
)
def test_what_has_one_stream_is_refused(model: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        compile_model(Runtime.boot(), model, **{"device": "sim", "prefill_stream": True, **options})
