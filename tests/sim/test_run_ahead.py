"""Asynchronous scheduling: steps enqueued before the previous one was read give the same answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.sim.small_model import write_small_model
from tests.sim.watched_engine import WatchedEngine, open_watched

from aethermind import Runtime, SamplingParams
from aethermind.engine.observation.engine_stats import EngineStats
from aethermind.engine.requests.request import FinishReason
from aethermind.engine.steps import step_pipeline
from aethermind.errors import DeviceError
from aethermind.sampling.params import StructuredOutputs
from aethermind_sim.backend import SimBackend
from aethermind_sim.streams import SimEvent

PROMPTS = [[(7 * index + 11 * token) % 900 + 5 for token in range(3 + 2 * index)] for index in range(5)]
NUM_TOKENS = 10

Open = Callable[..., WatchedEngine]
Answers = dict[str, list[int]]


@pytest.fixture(scope="module")
def model(runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_model(Path(runtime.models.locate("demo")), tmp_path_factory.mktemp("small") / "model")


@pytest.fixture
def open_engine(runtime: Runtime, model: Path) -> Iterator[Open]:
    with pytest.MonkeyPatch.context() as patch:
        yield lambda seed=0, **options: open_watched(runtime, model, patch, seed, **options)


def greedy(**options: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.0, "max_tokens": NUM_TOKENS, "ignore_eos": True, **options})


def ask(watched: WatchedEngine, *params: SamplingParams) -> Answers:
    """Answers to all prompts, with parameters assigned in turn."""
    for index, prompt in enumerate(PROMPTS):
        watched.engine.add_request(str(index), prompt, params[index % len(params)])
    return watched.run()


def one_by_one(num_steps: int) -> list[tuple[str, int]]:
    return [(what, number) for number in range(num_steps) for what in ("enqueue", "read")]


def assert_idle(watched: WatchedEngine) -> None:
    stats = EngineStats.of(watched.engine)
    assert stats.num_free_blocks == stats.num_blocks
    assert not watched.engine.pipeline.is_orphaned


@pytest.fixture(scope="module")
def expected(runtime: Runtime, model: Path) -> Answers:
    """Greedy answers of synchronous steps."""
    with pytest.MonkeyPatch.context() as patch:
        watched = open_watched(runtime, model, patch)
        watched.engine.pipeline.runs_ahead = False
        answers = ask(watched, greedy())
        assert watched.things() == one_by_one(watched.num_steps)
        return answers


@pytest.mark.parametrize("seed", range(4))
def test_a_step_is_enqueued_before_the_last_one_is_waited_for(open_engine: Open, expected: Answers, seed: int) -> None:
    """The host waits once per step, for its tokens only, and computes no token beyond a known end."""
    watched = open_engine(seed, enable_prefix_caching=False)
    assert ask(watched, greedy()) == expected
    num_steps = watched.num_steps
    things = watched.things()
    assert things[:3] == [("enqueue", 0), ("enqueue", 1), ("read", 0)]
    for number in range(num_steps - 1):
        assert things.index(("enqueue", number + 1)) < things.index(("read", number))
    waits = [what for kind, what in watched.log if kind == "wait"]
    assert set(waits) == {"event"}
    assert len(waits) <= num_steps
    assert watched.num_sampled == sum(map(len, expected.values()))
    assert_idle(watched)


@pytest.mark.parametrize("is_watched", [False, True])
def test_an_unforeseen_end_wastes_one_token(open_engine: Open, expected: Answers, is_watched: bool) -> None:
    """With `is_watched` no block is freed while a step may write to it; otherwise blocks enter the prefix cache."""
    stops = [ids[4] for ids in expected.values()]
    watched = open_engine(1, enable_prefix_caching=not is_watched)
    answers = ask(watched, *(greedy(stop_token_ids=[stop]) for stop in stops))
    assert answers == {name: ids[: ids.index(ids[4]) + 1] for name, ids in expected.items()}
    assert watched.num_sampled == sum(map(len, answers.values())) + len(PROMPTS)
    assert_idle(watched)


def test_the_last_output_is_delivered_without_a_further_step(open_engine: Open, expected: Answers) -> None:
    engine = open_engine().engine
    engine.add_request("0", PROMPTS[0], greedy(stop_token_ids=[expected["0"][0]]))
    (output,) = engine.step()
    assert (output.finished, output.outputs[0].finish_reason) == (True, FinishReason.STOP)
    assert not engine.has_unfinished
    assert engine.cache.num_sequences == 0


def test_a_request_id_is_reusable_once_its_request_has_ended(open_engine: Open, expected: Answers) -> None:
    watched = open_engine(2, enable_prefix_caching=False)
    engine = watched.engine
    engine.add_request("other", PROMPTS[1], greedy())
    for _ in range(3):
        engine.add_request("again", PROMPTS[2], greedy(stop_token_ids=[expected["2"][1]]))
        while not any(output.request_id == "again" and output.finished for output in engine.step()):
            pass
        engine.add_request("again", PROMPTS[3], greedy())
        engine.step()
        aborted = engine.abort("again")
        assert aborted is not None
        assert aborted.outputs[0].token_ids == expected["3"][: len(aborted.outputs[0].token_ids)]
    engine.add_request("again", PROMPTS[4], greedy())
    answers = watched.run()
    assert answers["again"] == expected["4"]
    assert_idle(watched)


def test_aborting_all_requests_leaves_no_step_in_flight(open_engine: Open) -> None:
    watched = open_engine(3, enable_prefix_caching=False)
    for index, prompt in enumerate(PROMPTS[:3]):
        watched.engine.add_request(str(index), prompt, greedy())
    watched.engine.step()
    for index in range(3):
        assert watched.engine.abort(str(index)) is not None
    assert_idle(watched)


NEEDS_NO_HOST: dict[str, dict[str, Any]] = {
    "log probabilities": {"logprobs": 2},
    "a bias": {"logit_bias": {700: 3.0, 5: -100.0}},
    "a shortest answer": {"min_tokens": NUM_TOKENS - 2, "ignore_eos": False, "stop_token_ids": range(500, 560)},
    "allowed tokens": {"allowed_token_ids": range(100, 900)},
    "all of it": {"logprobs": 1, "logit_bias": {700: 3.0}, "allowed_token_ids": range(300, 800), "stop": ["e"]},
}


@pytest.mark.parametrize("option", list(NEEDS_NO_HOST))
def test_sampler_inputs_known_in_advance_do_not_prevent_running_ahead(open_engine: Open, option: str) -> None:
    """Every second request has the option; answers, texts and log probabilities are those of synchronous steps."""
    answers = []
    for seed, runs_ahead in ((8, False), (9, True)):
        watched = open_engine(seed, enable_prefix_caching=False)
        engine = watched.engine
        engine.pipeline.runs_ahead = runs_ahead
        for index, prompt in enumerate(PROMPTS):
            engine.add_request(str(index), prompt, greedy(**NEEDS_NO_HOST[option] if index % 2 else {}))
        finished = {}
        while engine.has_unfinished:
            finished.update({output.request_id: output.outputs for output in engine.step() if output.finished})
        answers.append(finished)
        things = watched.things()
        order = [things.index(("enqueue", step + 1)) < things.index(("read", step)) for step in range(NUM_TOKENS - 1)]
        assert order == [runs_ahead] * (NUM_TOKENS - 1)
        assert_idle(watched)
    assert answers[0] == answers[1]


def test_a_row_without_an_allowed_token_fails_alone(open_engine: Open, expected: Answers) -> None:
    """Its only token is suppressed, which is known one step later."""
    engine = open_engine(10).engine
    engine.add_request("special", PROMPTS[2], greedy(allowed_token_ids=[7], stop_token_ids=[7], min_tokens=5))
    engine.add_request("0", PROMPTS[0], greedy())
    finished = {}
    while engine.has_unfinished:
        finished.update({output.request_id: output for output in engine.step() if output.finished})
    assert "exclude every token" in str(finished["special"].error)
    assert finished["0"].outputs[0].token_ids == expected["0"]


NEEDS_THE_HOST: dict[str, dict[str, Any]] = {
    "penalties": {"repetition_penalty": 1.3, "logprobs": 2},
    "counts": {"frequency_penalty": 0.7},
    "bad words": {"bad_words": ["e", "the"]},
    "structured output": {"structured_outputs": StructuredOutputs(regex="[a-f]{3,9}"), "ignore_eos": False},
    "several answers": {"n": 3, "temperature": 0.9, "seed": 4},
    "scores of the prompt": {"prompt_logprobs": 1},
}


@pytest.mark.parametrize("option", list(NEEDS_THE_HOST))
def test_steps_that_need_host_values_are_not_run_ahead(open_engine: Open, expected: Answers, option: str) -> None:
    """A request with the option among plain ones: all answers are those of synchronous steps."""
    special = greedy(**NEEDS_THE_HOST[option])
    answers = []
    for seed, runs_ahead in ((5, False), (6, True)):
        engine = open_engine(seed).engine
        engine.pipeline.runs_ahead = runs_ahead
        engine.add_request("special", PROMPTS[2], special)
        for index in (0, 1, 3):
            engine.add_request(str(index), PROMPTS[index], greedy())
        finished = {}
        while engine.has_unfinished:
            finished.update({output.request_id: output for output in engine.step() if output.finished})
        assert {name: one.outputs[0].token_ids for name, one in finished.items() if name != "special"} == {
            name: expected[name] for name in ("0", "1", "3")
        }
        one = finished["special"]
        answers.append((one.outputs, one.prompt_logprobs))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("nth", [0, 3])
def test_a_trigger_discards_the_token_after_it_and_nothing_else(open_engine: Open, expected: Answers, nth: int) -> None:
    """Structural tags: steps run ahead before the trigger; the tag is that of synchronous steps."""
    answers, ran_ahead = [], []
    for seed, runs_ahead in ((5, False), (6, True)):
        watched = open_engine(seed)
        engine = watched.engine
        tokenizer = engine.tokenizer
        trigger = next(text for text in map(tokenizer.token_text, expected["2"][nth:]) if text.isprintable())
        tag = {"begin": trigger, "content": {"type": "regex", "pattern": "[a-f]{3,9}"}, "end": "!"}
        structure = {"type": "triggered_tags", "triggers": [trigger], "tags": [tag]}
        constraint = StructuredOutputs(structural_tag={"type": "structural_tag", "format": structure})
        engine.pipeline.runs_ahead = runs_ahead
        engine.add_request("special", PROMPTS[2], greedy(structured_outputs=constraint, max_tokens=30))
        for index in (0, 1, 3):
            engine.add_request(str(index), PROMPTS[index], greedy())
        finished = {}
        while engine.has_unfinished:
            ran_ahead.append(engine.pipeline._in_flight is not None)
            finished.update({output.request_id: output for output in engine.step() if output.finished})
        assert {name: one.outputs[0].token_ids for name, one in finished.items() if name != "special"} == {
            name: expected[name] for name in ("0", "1", "3")
        }
        text = finished["special"].outputs[0].text
        assert re.search(re.escape(trigger) + "[a-f]{3,9}(!|$)", text), text
        answers.append(finished["special"].outputs)
        assert_idle(watched)
    assert answers[0] == answers[1]
    assert sum(ran_ahead) > 3


def test_hooks_are_called_for_each_step(open_engine: Open, expected: Answers) -> None:
    watched = open_engine(7)
    seen = []
    with watched.engine.runner.hooks.on("sampler.sample_tokens", lambda name, array, info: seen.append(array.copy())):
        assert ask(watched, greedy()) == expected
    assert watched.things() == one_by_one(len(seen))


@pytest.mark.parametrize("seed", range(3))
def test_requests_are_unchanged_after_a_device_failure(open_engine: Open, expected: Answers, seed: int) -> None:
    """A copy fails: both steps in flight are lost and recomputed."""
    watched = open_engine(seed, enable_prefix_caching=False)
    engine, backend = watched.engine, watched.engine.compiled.open_device.backend
    assert isinstance(backend, SimBackend)
    for index, prompt in enumerate(PROMPTS):
        engine.add_request(str(index), prompt, greedy())
    answers: Answers = {}
    for nth in (2, 3, 5, 9):
        backend.faults.inject("copy", nth)
        with pytest.raises(DeviceError, match="copy of the simulated device failed"):
            watched.run(answers)
    answers.update(watched.run())
    assert answers == expected
    assert_idle(watched)


def test_prompts_enter_the_prefix_cache_after_the_step_that_computed_them(open_engine: Open) -> None:
    """Neither blocks still being computed nor blocks of a failed step are reused."""
    prompts = [[*range(5, 25), 40 + index] for index in range(3)]
    alone = [open_engine(8, enable_prefix_caching=False) for _ in prompts]
    expected = {}
    for index, (watched, prompt) in enumerate(zip(alone, prompts, strict=True)):
        watched.engine.add_request(str(index), prompt, greedy())
        expected.update(watched.run())
    engine = (watched := open_engine(9, max_num_batched_tokens=8, max_num_seqs=4)).engine
    backend = engine.compiled.open_device.backend
    assert isinstance(backend, SimBackend)
    for index, prompt in enumerate(prompts):
        engine.add_request(str(index), prompt, greedy())
    engine.step()
    assert engine.cache.query(prompts[0]) == 8, "of 16 that are on their way"
    backend.faults.inject("copy", 1)
    answers: Answers = {}
    with pytest.raises(DeviceError, match="copy of the simulated device failed"):
        watched.run(answers)
    assert engine.cache.query(prompts[0]) == 8
    cached = {}
    while engine.has_unfinished:
        for output in engine.step():
            answers[output.request_id] = output.outputs[0].token_ids
            cached[output.request_id] = output.num_cached_tokens
    assert answers == expected
    assert cached["2"] >= 16
    assert_idle(watched)


class TestPlantedBugs:
    """Each synchronisation is necessary: without it the simulated device fails."""

    def wrong_answers(self, open_engine: Open, expected: Answers) -> int:
        return sum(ask(open_engine(seed), greedy()) != expected for seed in range(6))

    def test_reading_before_the_event_is_a_race(
        self, open_engine: Open, expected: Answers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def open_and_forget_to_wait(seed: int) -> WatchedEngine:
            watched = open_engine(seed)
            monkeypatch.setattr(SimEvent, "synchronize", lambda event: None)
            return watched

        assert self.wrong_answers(open_and_forget_to_wait, expected) > 0

    def test_a_step_without_tokens(self, open_engine: Open, expected: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("aethermind.engine.steps.model_runner.device_tokens", lambda decision, before: ())
        assert self.wrong_answers(open_engine, expected) > 0

    def test_logprobs_of_missing_tokens(self, open_engine: Open) -> None:
        answers = []
        for looks_back in (True, False):
            params = greedy(frequency_penalty=2.0, logit_bias={700: 6.0})
            object.__setattr__(params, "looks_back", looks_back)
            answers.append(ask(open_engine(0), params))
        assert answers[0] != answers[1]

    def test_freeing_blocks_at_once(
        self, open_engine: Open, expected: Answers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(step_pipeline.StepPipeline, "retain_blocks", lambda pipeline, request: None)
        with pytest.raises(AssertionError, match="a step under way writes to block"):
            ask(open_engine(enable_prefix_caching=False), greedy(stop_token_ids=[expected["1"][2]]))
