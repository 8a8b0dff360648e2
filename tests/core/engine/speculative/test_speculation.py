"""Engines that check drafts, against the same engines without: same tokens, same bits, whatever is drafted."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.engine.engines import open_engine
from tests.core.engine.speculative.drafting import Scripted, finish, speculate_with

from aethermind import Runtime, SamplingParams, StructuredOutputs
from aethermind.engine.engine import Engine
from aethermind.engine.observation.engine_stats import EngineStats
from aethermind.engine.requests.request import Request
from aethermind.engine.scheduling.decision import ScheduleDecision
from aethermind.engine.steps.model_runner import SampledToken
from aethermind.errors import ConfigError, InvalidArgumentError

PROMPTS = [[(7 * index + 11 * token) % 900 + 5 for token in range(4 + 3 * index)] for index in range(4)]
OPTIONS: dict[str, Any] = {"max_model_len": 64, "num_kv_blocks": 64, "speculative_method": "prompt_lookup"}


def tags(trigger: str) -> StructuredOutputs:
    tag = {"begin": trigger, "content": {"type": "regex", "pattern": "[a-f]{2,4}"}, "end": "!"}
    structure = {"type": "triggered_tags", "triggers": [trigger], "tags": [tag]}
    return StructuredOutputs(structural_tag={"type": "structural_tag", "format": structure})


PARAMS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 1.0, "seed": 3},
    "cut": {"temperature": 1.3, "seed": 4, "top_k": 20, "top_p": 0.9, "min_p": 0.01},
    "penalties": {
        "temperature": 0.9,
        "seed": 5,
        "repetition_penalty": 1.3,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.4,
    },
    "biased": {"temperature": 0.0, "logit_bias": {300: 4.0, 301: 4.0}, "logprobs": 3},
    "held_back": {"temperature": 1.0, "seed": 7, "min_tokens": 9, "ignore_eos": False, "stop_token_ids": [300, 301]},
    "allowed": {"temperature": 1.0, "seed": 8, "allowed_token_ids": list(range(290, 320))},
    "bad_words": {"temperature": 0.0, "bad_words": ["the", " a", "was"]},
    "tag": {"temperature": 0.0, "structured_outputs": tags("e")},
    "tag of a token": {"temperature": 1.0, "seed": 2, "structured_outputs": tags(" the")},
    "several tags": {"temperature": 1.0, "seed": 9, "n": 3, "structured_outputs": tags("a")},
    "several": {"temperature": 1.0, "seed": 9, "n": 3},
}


def params(kind: str, **more: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 14, "ignore_eos": True, **PARAMS[kind], **more})


def oracle(answers: dict[str, list[int]], errors: int) -> Scripted:
    """Drafts that are those of known answers, but for every so many tokens."""

    def draft(request: Request, most: int) -> list[int]:
        start = len(request.output_token_ids)
        following = answers[request.request_id][start : start + most]
        return [token + (start + i) % errors // (errors - 1) for i, token in enumerate(following)]

    return Scripted(draft)


def answers_of(outputs: dict[str, Any]) -> dict[str, list[int]]:
    """Tokens by the ids of single answers."""
    return {
        f"{name}/{one.index}" if one.index else name: one.token_ids
        for name, output in outputs.items()
        for one in output.outputs
    }


def run(engine: Engine, *kinds: str, **more: Any) -> dict[str, Any]:
    for index, kind in enumerate(kinds):
        engine.add_request(f"{kind} {index}", PROMPTS[index % len(PROMPTS)], params(kind, **more))
    return finish(engine)


@pytest.mark.parametrize(
    ("kinds", "errors"), [*(((kind,), 3) for kind in PARAMS), *((tuple(PARAMS), errors) for errors in (2, 3, 100))]
)
def test_tokens_are_those_without_drafts(runtime: Runtime, kinds: tuple[str, ...], errors: int) -> None:
    expected = run(open_engine(runtime, "cpu", **OPTIONS, deterministic=True), *kinds)
    engine = open_engine(runtime, "cpu", **OPTIONS, deterministic=True)
    proposer = oracle(answers_of(expected), errors)
    speculator = speculate_with(engine, proposer)
    found = run(engine, *kinds)
    assert {name: one.outputs for name, one in found.items()} == {name: one.outputs for name, one in expected.items()}
    assert speculator.num_accepted_tokens > 0
    assert (speculator.num_accepted_tokens == speculator.num_draft_tokens) == (errors == 100)
    assert sorted(proposer.forgotten) == sorted(answers_of(expected))
    stats = EngineStats.of(engine)
    assert stats.num_free_blocks == stats.num_blocks
    assert stats.num_draft_tokens == sum(one.metrics.num_draft_tokens for one in found.values()) > 0
    assert stats.num_accepted_tokens == sum(one.metrics.num_accepted_tokens for one in found.values())
    assert stats.acceptance_rate == stats.num_accepted_tokens / stats.num_draft_tokens


def test_on_each_device_and_with_coded_keys_and_values(runtime: Runtime, device: str) -> None:
    for kv_cache_dtype in ("auto", "int8"):
        options = {**OPTIONS, "kv_cache_dtype": kv_cache_dtype, "max_num_seqs": 3}
        expected = run(open_engine(runtime, device, **options), "greedy", "cut", "greedy", max_tokens=8)
        engine = open_engine(runtime, device, **options)
        speculate_with(engine, oracle(answers_of(expected), 3))
        found = run(engine, "greedy", "cut", "greedy", max_tokens=8)
        assert answers_of(found) == answers_of(expected)


@pytest.mark.parametrize("is_swapping", [True, False], ids=["swap", "recompute"])
def test_under_pressure(runtime: Runtime, is_swapping: bool) -> None:
    options = {**OPTIONS, "block_size": 4, "enable_prefix_caching": False}
    kinds = ["greedy", "sampled"] * 3
    expected = run(open_engine(runtime, "cpu", **options), *kinds)
    spec = open_engine(runtime, "null", **options).compiled.cache_spec
    pressed = {**options, "num_kv_blocks": 14, "swap_space": 40 * spec.bytes_per_block / 2**30}
    engine = open_engine(runtime, "cpu", **pressed)
    engine.costs.seconds_per_byte, engine.costs.seconds_per_token = (0.0, 1e6) if is_swapping else (1e6, 0.0)
    speculator = speculate_with(engine, oracle(answers_of(expected), 3))
    for index, kind in enumerate(kinds):
        engine.add_request(f"{kind} {index}", PROMPTS[index % len(PROMPTS)], params(kind))
    requests = list(engine.waiting)
    assert answers_of(finish(engine)) == answers_of(expected)
    assert speculator.num_draft_tokens > 0
    assert sum(request.num_preemptions for request in requests) > 0
    assert engine.cache.num_available_blocks == 14


def test_an_answer_ends_in_the_middle_of_drafts(runtime: Runtime) -> None:
    engine = open_engine(runtime, "cpu", **OPTIONS)
    (whole,) = run(engine, "greedy", max_tokens=20).values()
    tokens, text = whole.outputs[0].token_ids, whole.outputs[0].text
    place = next(index for index in range(6, 20) if tokens[index] not in tokens[:index])
    ends: list[dict[str, Any]] = [{"stop_token_ids": [tokens[place]]}, {"stop": [text[-12:-7]]}, {"max_tokens": 7}]
    for more in ends:
        options = {"max_tokens": 20, **more}
        (expected,) = run(open_engine(runtime, "cpu", **OPTIONS), "greedy", **options).values()
        engine = open_engine(runtime, "cpu", **OPTIONS, block_size=4)
        speculator = speculate_with(engine, oracle({"greedy 0": tokens}, 100), max_drafts=8)
        (found,) = run(engine, "greedy", **options).values()
        assert found.outputs == expected.outputs
        assert speculator.num_accepted_tokens > 0
        # What was computed beyond the end is not remembered as the answer.
        known = [*PROMPTS[0], *expected.outputs[0].token_ids]
        assert engine.cache.query([*PROMPTS[0], *tokens]) <= len(known)


def test_tokens_that_the_model_does_not_have(runtime: Runtime) -> None:
    engine = open_engine(runtime, "cpu", **OPTIONS)
    speculator = speculate_with(engine, Scripted(lambda _, most: [17, -1, 2**31][:most]))
    vocab_size = engine.compiled.model.config.vocab_size
    assert answers_of(run(engine, "greedy")) == answers_of(run(open_engine(runtime, "cpu", **OPTIONS), "greedy"))
    assert speculator.num_draft_tokens <= 14, "one of each three"
    speculate_with(engine, Scripted(lambda _, most: [vocab_size] * most))
    assert run(engine, "greedy")["greedy 0"].metrics.num_draft_tokens == 0


def test_rejected_drafts_are_not_reused(runtime: Runtime) -> None:
    engine = open_engine(runtime, "cpu", **OPTIONS, block_size=4)
    speculate_with(engine, Scripted(lambda _, most: [17] * most))
    first = answers_of(run(engine, "greedy"))
    again = answers_of(run(engine, "greedy"))
    assert first == again == answers_of(run(open_engine(runtime, "cpu", **OPTIONS), "greedy"))
    assert engine.cache.query([*PROMPTS[0], *[17] * 12]) <= len(PROMPTS[0])


def test_prompts_and_drafts_in_one_step(runtime: Runtime) -> None:
    options = {**OPTIONS, "max_num_batched_tokens": 16, "max_num_seqs": 4}
    expected = run(open_engine(runtime, "cpu", **options), "greedy", "sampled")
    engine = open_engine(runtime, "cpu", **options)
    speculate_with(engine, oracle(answers_of(expected), 100))
    seen = []
    compute = engine.runner.run

    def look(decision: ScheduleDecision) -> list[SampledToken]:
        seen.append(decision)
        return compute(decision)

    engine.runner.run = look  # type: ignore[method-assign]
    engine.add_request("greedy 0", PROMPTS[0], params("greedy"))
    engine.step()
    engine.add_request("sampled 1", PROMPTS[1], params("sampled"))
    assert answers_of(finish(engine)) == answers_of(expected)
    assert any(one.num_extensions and one.phase == "mixed" for one in seen)
    assert any(one.num_extensions == 2 and one.phase == "decode" for one in seen)


def test_abort_between_steps(runtime: Runtime) -> None:
    engine = open_engine(runtime, "cpu", **OPTIONS)
    proposer = Scripted(lambda _, most: [17] * most)
    speculate_with(engine, proposer)
    engine.add_request("a", PROMPTS[0], params("greedy"))
    for _ in range(3):
        engine.step()
    output = engine.abort("a")
    assert output is not None
    assert len(output.outputs[0].token_ids) == 3
    assert proposer.forgotten == ["a"]
    assert engine.cache.num_available_blocks == engine.compiled.num_kv_blocks


def test_structured_answers_are_not_drafted(runtime: Runtime) -> None:
    engine = open_engine(runtime, "cpu", **OPTIONS)
    asked = []

    def draft(request: Request, most: int) -> list[int]:
        asked.append(request.request_id)
        return [17] * most

    speculate_with(engine, Scripted(draft))
    wanted = StructuredOutputs(choice=("yes, it was", "no, it was not"))
    engine.add_request("structured", PROMPTS[0], SamplingParams(structured_outputs=wanted, max_tokens=14))
    engine.add_request("free", PROMPTS[1], params("greedy"))
    assert finish(engine)["structured"].outputs[0].text in ("yes, it was", "no, it was not")
    assert set(asked) == {"free"}


def test_more_drafts_than_a_step_has_rows_for(runtime: Runtime) -> None:
    drafting = {"speculative_method": "prompt_lookup", "num_speculative_tokens": 2}
    engine = open_engine(runtime, "cpu", **{**OPTIONS, **drafting}, max_num_seqs=2)
    assert engine.budget.max_draft_tokens == 4
    speculator = speculate_with(engine, Scripted(lambda _, most: [17] * most), max_drafts=30)
    expected = run(open_engine(runtime, "cpu", **OPTIONS, max_num_seqs=2), "greedy", "sampled", "greedy")
    assert answers_of(run(engine, "greedy", "sampled", "greedy")) == answers_of(expected)
    assert speculator.num_draft_tokens > 0


def test_prompt_lookup_by_name(runtime: Runtime) -> None:
    prompt = [40, 41, 42, 43, 44, 45] * 5
    engines = [
        open_engine(runtime, "cpu", **{**OPTIONS, "speculative_method": method, "max_model_len": 128})
        for method in (None, "prompt_lookup")
    ]
    step_in_a_second(engines[1])
    plain, drafting = ([finish_one(engine, prompt) for _ in range(3)] for engine in engines)
    assert drafting == plain
    assert engines[0].speculator is None
    assert engines[1].speculator is not None
    assert engines[1].speculator.num_draft_tokens > 0


def step_in_a_second(engine: Engine) -> None:
    """Every step takes as long as any other, drafts or not, and finding drafts takes no time."""
    now, run = [0.0], engine.runner.run

    def run_for_a_second(decision: ScheduleDecision) -> list[SampledToken]:
        now[0] += 1.0
        return run(decision)

    engine.runner.run = run_for_a_second  # type: ignore[method-assign]
    assert engine.speculator is not None
    engine.speculator._clock = lambda: now[0]


def finish_one(engine: Engine, prompt: list[int]) -> list[int]:
    engine.add_request("one", prompt, SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True))
    tokens: list[int] = finish(engine)["one"].outputs[0].token_ids
    return tokens


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"speculative_method": "oracle"},
            ConfigError,
            "Unknown speculative method 'oracle'. Installed: .*prompt_lookup",
        ),
        ({"speculative_method": 3}, InvalidArgumentError, "speculative_method should be the name of a proposer"),
        ({"draft_model": "demo"}, InvalidArgumentError, "draft_model is given and speculative_method is not"),
        ({"num_speculative_tokens": 0}, InvalidArgumentError, "num_speculative_tokens should be a positive integer"),
        ({"num_speculative_tokens": 33}, InvalidArgumentError, "at most 32"),
        ({"num_speculative_tokens": 4}, InvalidArgumentError, "num_speculative_tokens is given and speculative_method"),
        ({"prompt_lookup_max": 6}, InvalidArgumentError, "prompt_lookup_max is given .*; set that to prompt_lookup"),
        ({"prompt_lookup_min": 5}, InvalidArgumentError, "prompt_lookup_min is 5 but prompt_lookup_max is 4"),
    ],
)
def test_invalid_options_are_refused(
    runtime: Runtime, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        open_engine(runtime, "null", **options)
