"""Tokens that a grammar forces take no step of their own, and change nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.engine.engines import open_engine
from tests.core.engine.speculative.drafting import Scripted, finish, speculate_with

from aethermind import CompletionOutput, Runtime, SamplingParams, StructuredOutputs
from aethermind.engine.engine import Engine

ANIMAL, NUMBER = {"enum": ["hedgehog", "squirrel"]}, {"type": "integer", "minimum": 0, "maximum": 99}
SCHEMA = {"properties": {"animal": ANIMAL, "number": NUMBER}, "required": ["animal", "number"]}
SCHEMA |= {"type": "object", "additionalProperties": False}
PROMPTS = [[(7 * index + 11 * token) % 900 + 5 for token in range(4 + 3 * index)] for index in range(5)]
OPTIONS: dict[str, Any] = {"max_model_len": 96, "num_kv_blocks": 96, "block_size": 4, "deterministic": True}


def params(index: int, **more: Any) -> SamplingParams:
    wanted = {"structured_outputs": StructuredOutputs(json=SCHEMA), "temperature": 1.0, "seed": index}
    return SamplingParams(**{"max_tokens": 60, **wanted, **more})


def run(engine: Engine, **more: Any) -> dict[str, list[CompletionOutput]]:
    """Answers to all prompts at once, and one request without a grammar among them."""
    for index, prompt in enumerate(PROMPTS):
        engine.add_request(f"guided {index}", prompt, params(index, **more))
    free = {"structured_outputs": None, "temperature": 0.0, "max_tokens": 30}
    engine.add_request("free", PROMPTS[0] * 3, params(9, **{**more, **free}))
    return {name: output.outputs for name, output in finish(engine).items()}


def contents(answers: dict[str, list[CompletionOutput]]) -> dict[str, list[tuple[Any, ...]]]:
    """All of the answers but log probabilities."""
    return {
        name: [(one.text, one.token_ids, one.finish_reason, one.stop_reason) for one in outputs]
        for name, outputs in answers.items()
    }


@pytest.fixture(scope="module")
def engine(runtime: Runtime) -> Engine:
    return open_engine(runtime, "cpu", **OPTIONS)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"temperature": 0.0},
        {"top_p": 0.8, "repetition_penalty": 1.2, "presence_penalty": 0.3},
        {"n": 3},
        {"max_tokens": 4},
        {"stop": ["hog"]},
        {"stop": ["quir", '"num']},
    ],
    ids=str,
)
def test_answers_are_those_of_single_steps(engine: Engine, more: dict[str, Any]) -> None:
    single = run(engine, **more, logprobs=1)  # who wants log probabilities has every token computed
    assert all(len(one.logprobs or ()) == len(one.token_ids) for outputs in single.values() for one in outputs)
    assert contents(run(engine, **more)) == contents(single)


def test_they_take_fewer_steps_than_tokens(engine: Engine) -> None:
    engine.add_request("one", PROMPTS[0], params(1))
    num_steps = 0
    while engine.has_unfinished:
        (output,) = engine.step()
        num_steps += 1
    answer = output.outputs[0]
    assert answer.finish_reason == "stop"
    assert answer.token_ids[-1] in engine.compiled.eos_token_ids
    assert num_steps <= len(answer.token_ids) / 2
    assert engine.cache.num_available_blocks == engine.compiled.num_kv_blocks


def test_forced_first_tokens_are_computed_with_the_prompt(engine: Engine) -> None:
    engine.add_request("one", PROMPTS[3], params(1))
    (request,) = engine.waiting
    beginning = list(request.output_token_ids)
    assert engine.tokenizer.decode(beginning).startswith('{"animal": "')
    (output,) = engine.step()
    assert request.num_computed_tokens == len(PROMPTS[3]) + len(beginning)
    assert output.outputs[0].token_ids[: len(beginning)] == beginning
    assert len(output.outputs[0].token_ids) > len(beginning)
    assert output.metrics.first_token_s is not None
    assert output.metrics.first_token_s > output.metrics.arrival_s
    whole = finish(engine)["one"]
    engine.add_request("again", PROMPTS[3], params(1))
    again = finish(engine)["again"]
    assert again.outputs == whole.outputs
    assert again.num_cached_tokens <= len(PROMPTS[3]), "of the prompt, whatever else is known"


@pytest.mark.parametrize("more", [{}, {"max_tokens": 1}, {"max_tokens": 3}, {"n": 2}], ids=str)
def test_an_answer_without_any_choice(engine: Engine, more: dict[str, Any]) -> None:
    """Its end needs a step, because the engine reports ends only after steps."""
    wanted = {"structured_outputs": StructuredOutputs(regex="one and only"), **more}
    engine.add_request("single", PROMPTS[1], params(1, **wanted, logprobs=0))
    single = finish(engine)["single"].outputs
    engine.add_request("one", PROMPTS[1], params(1, **wanted))
    assert contents({"": finish(engine)["one"].outputs}) == contents({"": single})
    assert engine.cache.num_available_blocks == engine.compiled.num_kv_blocks


@pytest.mark.parametrize(
    "options",
    [{"num_kv_blocks": 30}, {"max_num_batched_tokens": 7, "max_num_seqs": 6}, {"max_num_seqs": 1}],
    ids=str,
)
def test_neither_pressure_nor_limits_change_a_token(runtime: Runtime, engine: Engine, options: dict[str, Any]) -> None:
    other = open_engine(runtime, "cpu", **{**OPTIONS, **options})
    assert contents(run(other)) == contents(run(engine))
    assert other.num_preemptions > 0 or "num_kv_blocks" not in options


def test_other_requests_still_verify_drafts(runtime: Runtime, engine: Engine) -> None:
    expected = run(engine)
    (free,) = expected["free"]
    drafting = open_engine(runtime, "cpu", **OPTIONS, speculative_method="prompt_lookup")
    speculator = speculate_with(
        drafting, Scripted(lambda request, most: free.token_ids[request.num_output_tokens :][:most])
    )
    assert contents(run(drafting)) == contents(expected)
    assert speculator.num_accepted_tokens > 10


def test_other_constraints_are_kept(engine: Engine) -> None:
    """A bad word is one even where the grammar has no other."""
    engine.add_request("one", PROMPTS[0], params(1, bad_words=["number", '"number', "num"]))
    outputs = finish(engine)["one"].outputs
    assert "number" not in outputs[0].text
