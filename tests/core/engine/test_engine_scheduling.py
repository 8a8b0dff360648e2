"""Scheduling options of an engine: limits, quotas, policies, and chunked prefill."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.core.engine.engines import answer, open_engine
from tests.core.plugins.fake_distributions import FakeDistributions

from aethermind import LLM, RequestOptions, Runtime, SamplingParams
from aethermind.engine.engine import Engine
from aethermind.engine.policies import PriorityWithAging
from aethermind.engine.requests.output_delta import OutputReader
from aethermind.errors import AetherMindError, ConfigError, ContextLengthError, InvalidArgumentError

PROMPT = [5, 9, 13, 17, 21, 25, 29, 33, 37, 41]
GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)


def replace_params(params: SamplingParams, **changes: Any) -> SamplingParams:
    kept = {"temperature": params.temperature, "max_tokens": params.max_tokens, "ignore_eos": params.ignore_eos}
    return SamplingParams(**{**kept, **changes})


def observe_rows(engine: Engine) -> list[tuple[int, int]]:
    """Tokens and rows of logits of every step from now on."""
    seen = []

    def run(executor: Any, symbols: tuple[int, ...], _: Any) -> None:
        seen.append((symbols[0], symbols[2]))
        executor.run(symbols)

    engine.runner.observer = run
    return seen


def test_a_chunk_that_is_not_the_last_computes_no_logits_and_changes_no_token(runtime: Runtime, device: str) -> None:
    whole = open_engine(runtime, device, enable_prefix_caching=False)
    chunked = open_engine(runtime, device, max_num_batched_tokens=4, max_num_seqs=2, enable_prefix_caching=False)
    seen = observe_rows(chunked)
    assert answer(chunked, PROMPT, 3) == answer(whole, PROMPT, 3)
    assert seen == [(4, 0), (4, 0), (2, 1), (1, 1), (1, 1)]


def test_output_read_now_and_then_is_the_same(runtime: Runtime) -> None:
    stepped, advanced = open_engine(runtime), open_engine(runtime)
    readers: dict[str, OutputReader] = {}
    for engine in (stepped, advanced):
        engine.add_request("short", PROMPT, SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True))
        engine.add_request("long", PROMPT, GREEDY)
        engine.add_request("two", PROMPT, SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, n=2))
    number = 0
    while stepped.has_unfinished:
        outputs, sources = stepped.step(), advanced.advance()
        assert [one.request_id for one in outputs] == [one.request_id for one in sources]
        number += 1
        if number % 3 == 0 or not stepped.has_unfinished:
            for output, source in zip(outputs, sources, strict=True):
                reader = readers.setdefault(source.request_id, OutputReader())
                assert reader.read(source).outputs == output.outputs
    assert not advanced.has_unfinished


def test_outputs_of_earlier_steps_keep_their_tokens(runtime: Runtime) -> None:
    engine = open_engine(runtime)
    engine.add_request("a", PROMPT, GREEDY)
    outputs = []
    while engine.has_unfinished:
        outputs += engine.step()
    answers = [output.outputs[0] for output in outputs]
    assert [answer.num_tokens for answer in answers] == list(range(1, len(answers) + 1))
    assert all(answer.token_ids == answers[-1].token_ids[: answer.num_tokens] for answer in answers)
    assert all(answers[-1].text.startswith(answer.text) for answer in answers)


def test_a_request_with_the_id_of_an_aborted_one_has_its_own_output(runtime: Runtime) -> None:
    engine = open_engine(runtime)
    engine.add_request("a", PROMPT, GREEDY)
    engine.step()
    engine.abort("a")
    engine.add_request("a", PROMPT, GREEDY)
    (output,) = engine.step()
    assert output.outputs[0].num_tokens == 1


def test_limits_can_be_adjusted_while_it_runs(runtime: Runtime) -> None:
    engine = open_engine(runtime, max_num_batched_tokens=8, max_num_seqs=4)
    seen = observe_rows(engine)
    engine.adjust(max_prefill_chunk=3)
    for name in ("a", "b"):
        engine.add_request(name, PROMPT, GREEDY)
    engine.step()
    engine.adjust(max_num_seqs=1, max_num_batched_tokens=2)
    engine.step()
    assert seen == [(6, 0), (2, 0)]
    while engine.has_unfinished:
        engine.step()
    assert max(tokens for tokens, _ in seen[1:]) == 2


def test_prompts_share_a_step_in_chunks_of_the_option(runtime: Runtime, device: str) -> None:
    whole = open_engine(runtime, device, enable_prefix_caching=False)
    chunked = open_engine(runtime, device, max_prefill_chunk=3, enable_prefix_caching=False)
    seen = observe_rows(chunked)
    assert answer(chunked, PROMPT, 2) == answer(whole, PROMPT, 2)
    assert seen == [(3, 0), (3, 0), (3, 0), (1, 1), (1, 1)]
    seen.clear()
    for name in ("a", "b"):
        chunked.add_request(name, PROMPT, GREEDY)
    chunked.step()
    assert seen == [(6, 0)]
    with pytest.raises(InvalidArgumentError, match="max_prefill_chunk should be a positive integer, got 0"):
        open_engine(runtime, device, max_prefill_chunk=0)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_num_seqs": 5}, "this engine was opened for 4"),
        ({"max_num_batched_tokens": 9}, "this engine was opened for 8"),
        ({"max_num_batched_tokens": 3}, "must be at least max_num_seqs"),
        ({"max_prefill_chunk": 0}, "max_prefill_chunk is 0"),
    ],
)
def test_limits_that_the_engine_cannot_keep(runtime: Runtime, limits: dict[str, int], message: str) -> None:
    engine = open_engine(runtime, device="null", max_num_batched_tokens=8, max_num_seqs=4)
    before = engine.budget
    with pytest.raises(InvalidArgumentError, match=message):
        engine.adjust(**limits)
    assert engine.budget == before


def test_quotas_end_answers_and_refuse_prompts(runtime: Runtime) -> None:
    engine = open_engine(runtime, device="null", max_new_tokens=3)
    engine.add_request("engine's", PROMPT, GREEDY)
    engine.add_request("own", PROMPT, GREEDY, options=RequestOptions(max_new_tokens=2))
    engine.add_request("context", PROMPT, GREEDY, options=RequestOptions(max_context_tokens=11, max_new_tokens=9))
    finished = {}
    while engine.has_unfinished:
        finished.update({one.request_id: one.outputs[0] for one in engine.step() if one.finished})
    assert {name: len(one.token_ids) for name, one in finished.items()} == {"engine's": 3, "own": 2, "context": 1}
    assert {one.finish_reason for one in finished.values()} == {"length"}
    with pytest.raises(ContextLengthError, match="10 tokens and the request's quota is 10"):
        engine.add_request("long", PROMPT, GREEDY, options=RequestOptions(max_context_tokens=10))


def test_a_request_with_prompt_logprobs_waits_in_the_queue(runtime: Runtime) -> None:
    limits = {"num_kv_blocks": 8, "block_size": 4, "max_num_seqs": 4, "enable_prefix_caching": False}
    engine = open_engine(runtime, "null", **limits)
    small, added = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True), 0
    finished: dict[str, Any] = {}
    for number in range(40):
        while len(engine.waiting) < 2:  # a steady load that fills the engine
            engine.add_request(f"small {added}", PROMPT[:3], small)
            added += 1
        if number == 4:
            engine.add_request("scored", [7] * 26, replace_params(GREEDY, prompt_logprobs=1, n=2))
            before = added
        finished.update({one.request_id: one for one in engine.step() if one.finished})
    assert len(finished["scored"].prompt_logprobs) == 26
    earlier = {f"small {index}" for index in range(before)}
    assert {name for name in list(finished)[: list(finished).index("scored")] if name != "scored"} <= earlier


def test_prompt_logprobs_without_free_blocks_are_refused(runtime: Runtime) -> None:
    engine = open_engine(runtime, "null", num_kv_blocks=8, block_size=4)
    engine.cache.open("another sequence")
    engine.cache.reserve("another sequence", 24)
    engine.add_request("scored", [7] * 20, replace_params(GREEDY, prompt_logprobs=1))
    assert engine.step() == []
    (refused,) = engine.step()
    assert refused.error is not None
    assert "too few free blocks for a text of 20 tokens" in refused.error
    assert not engine.has_unfinished


def test_a_request_that_waits_for_prompt_logprobs_can_be_aborted(runtime: Runtime) -> None:
    engine = open_engine(runtime, "null")
    engine.add_request("scored", PROMPT, replace_params(GREEDY, prompt_logprobs=1))
    assert engine.step() == []
    assert engine.abort("scored") is not None
    assert not engine.has_unfinished
    assert engine.step() == []


def test_the_policy_is_chosen_by_name(runtime: Runtime) -> None:
    assert isinstance(open_engine(runtime, "null", scheduling_policy="priority").scheduler.policy, PriorityWithAging)
    with pytest.raises(ConfigError, match="Unknown scheduling policy 'magic'"):
        open_engine(runtime, "null", scheduling_policy="magic")
    with pytest.raises(InvalidArgumentError, match="scheduling_policy should be a name, such as fair, got 3"):
        open_engine(runtime, "null", scheduling_policy=3)


def test_options_reach_the_scheduler_from_the_offline_api(runtime: Runtime) -> None:
    with LLM("demo", device="null", runtime=runtime, max_num_seqs=1, scheduling_policy="priority") as llm:
        order: list[str] = []

        def note(output: Any) -> None:
            if output.finished:
                order.append(output.request_id)

        options = [RequestOptions(priority=priority) for priority in (2, 0, 1)]
        llm.generate([{"prompt_token_ids": PROMPT}] * 3, GREEDY, options=options, on_output=note)
        assert order == ["1", "2", "0"]
        for wrong in (options[:2], "urgent"):
            with pytest.raises(AetherMindError, match="RequestOptions"):
                llm.generate([{"prompt_token_ids": PROMPT}] * 3, GREEDY, options=wrong)  # type: ignore[arg-type]


@pytest.mark.usefixtures("install_policy")
def test_a_plugin_brings_a_policy() -> None:
    runtime = Runtime.boot()
    assert "lifo" in runtime.policies.names()
    engine = open_engine(runtime, "null", scheduling_policy="lifo", max_num_seqs=1)
    for name in ("first", "second"):
        engine.add_request(name, PROMPT, GREEDY)
    engine.step()
    assert [request.request_id for request in engine.running] == ["second"]


@pytest.fixture
def install_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution with one plugin that registers the policy `lifo`."""
    source = """
        from aethermind.engine.policies import FirstComeFirstServed

        class LastComeFirstServed(FirstComeFirstServed):
            def order_key(self, request, now):
                return (-request.arrival, 0.0, request.request_id)

        @hookimpl
        def register_policies(registry):
            registry.register("lifo", __name__ + ":LastComeFirstServed", provider="fake-lifo")
    """
    FakeDistributions(tmp_path, monkeypatch).install("lifo", source)
