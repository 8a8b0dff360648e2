"""Models with recurrent layers: the state of a sequence is never another's, nor that of other tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count, cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.core.engine.speculative.drafting import Scripted, speculate_with
from tests.end_to_end.recurrent_model import OpenRecurrent, expected_logits, recurrent_models, weights_of

from aethermind import Runtime, SamplingParams
from aethermind.cache.recurrent_states import NUM_RESERVED_SLOTS
from aethermind.cache.serialization import read_blocks, write_blocks
from aethermind.cli.models import estimate_memory
from aethermind.engine.engine import Engine
from aethermind.engine.kv_memory.memory import MemoryContents
from aethermind.engine.loading.kv_plan import MemoryNeeds
from aethermind.engine.observation.engine_stats import EngineStats
from aethermind.engine.observation.model_info import describe_model
from aethermind.engine.observation.profiler import Profiler
from aethermind.engine.requests.request import Request, RequestOptions
from aethermind.engine.scheduling.decision import ScheduleDecision
from aethermind.engine.speculative.model_proposer import DraftModel
from aethermind.engine.speculative.prompt_lookup import PromptLookup
from aethermind.engine.speculative.speculator import Speculator
from aethermind.engine.steps.in_flight_step import InFlightStep
from aethermind.engine.steps.model_runner import ModelRunner, SampledToken
from aethermind.engine.text_pass import text_logits
from aethermind.errors import AetherMindError, CacheContentError
from aethermind.hal.builtin_backends import NumpyBackend
from aethermind.hal.device import DeviceProperties
from aethermind.hal.host_memory import HostDevices

KINDS = ["recurrent", "hybrid"]
PROMPTS = [[5, 9, 300, 41] * 3, [7] * 23, list(range(40, 61)), [11, 12], [13]]
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


@pytest.fixture
def open_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> OpenRecurrent:
    return recurrent_models(monkeypatch, tmp_path)


def run(engine: Engine, answers: dict[str, list[list[int]]] | None = None) -> dict[str, list[list[int]]]:
    """Step until all requests have ended; returns the answers by request."""
    answers = {} if answers is None else answers
    while engine.has_unfinished:
        for output in engine.step():
            answers[output.request_id] = [completion.token_ids for completion in output.outputs]
    stats = EngineStats.of(engine)
    spec = engine.compiled.cache_spec
    assert stats.num_free_state_slots == stats.num_state_slots == spec.max_sequences + spec.num_checkpoints + 1
    assert engine.cache.num_available_blocks == engine.compiled.num_kv_blocks
    return answers


def ask(engine: Engine, params: SamplingParams = GREEDY) -> list[list[int]]:
    """The first answers to all prompts, asked together."""
    for index, prompt in enumerate(PROMPTS):
        engine.add_request(str(index), prompt, params)
    answers = run(engine)
    return [answers[str(index)][0] for index in range(len(PROMPTS))]


def alone(engine: Engine) -> list[list[int]]:
    """The answers to all prompts, asked one after the other."""
    answers = []
    for prompt in PROMPTS:
        engine.add_request("alone", prompt, GREEDY)
        answers.append(run(engine)["alone"][0])
    return answers


@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_tokens_are_those_of_the_whole_text(open_model: OpenRecurrent, device: str, kind: str) -> None:
    engine = open_model(kind, device=device, max_num_seqs=64, max_num_batched_tokens=64)
    text = np.random.default_rng(3).integers(0, 400, 50).tolist()
    weights = weights_of(engine)
    wanted = expected_logits(kind, weights, text)
    np.testing.assert_allclose(text_logits(engine, text), wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
    for prompt, answer in zip(PROMPTS, ask(engine), strict=True):
        logits = expected_logits(kind, weights, [*prompt, *answer])[len(prompt) - 1 : -1]
        assert logits.argmax(axis=1).tolist() == answer


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "options",
    [
        {"max_num_batched_tokens": 5, "max_num_seqs": 3},
        {"num_kv_blocks": 14, "block_size": 4, "swap_space": 0.01},
        {"block_size": 1, "kv_cache_dtype": "int8", "max_num_batched_tokens": 16},
    ],
    ids=["chunks", "few_blocks", "cells"],
)
def test_tokens_equal_those_of_each_prompt_alone(open_model: OpenRecurrent, kind: str, options: dict[str, Any]) -> None:
    """Prefill chunks and decodes in one step, slots that were others' before, and preemption."""
    expected = alone(open_model(kind, kv_cache_dtype=options.get("kv_cache_dtype", "auto")))
    engine = open_model(kind, **options)
    assert ask(engine) == expected
    assert ask(engine) == expected
    if kind == "hybrid" and "num_kv_blocks" in options:
        assert engine.num_preemptions > 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("on", ["cpu", "sim"])
def test_preempted_requests_are_swapped_with_their_states(open_model: OpenRecurrent, kind: str, on: str) -> None:
    """Nothing is computed twice: a state that moved to host memory and back is that of the request alone."""
    expected = alone(open_model(kind))
    options = {"num_kv_blocks": 22, "block_size": 4, "swap_space": 0.01, "enable_prefix_caching": False}
    engine = open_model(kind, device=on, max_num_batched_tokens=16, **options)
    engine.costs.seconds_per_byte, engine.costs.seconds_per_token = 0.0, 1e6
    num_computed = _count_calls(engine.runner, lambda decision, *_: decision.num_batched_tokens)
    assert ask(engine) == expected
    assert engine.num_preemptions > 0
    stats, spec = EngineStats.of(engine), engine.compiled.cache_spec
    num_blocks, num_states = engine.swap_store.num_moved_in, engine.cache.num_moved_states[1]  # type: ignore[union-attr]
    assert min(num_blocks, num_states) > 0
    assert stats.swapped_in_bytes == num_blocks * spec.bytes_per_block + num_states * spec.bytes_per_slot
    assert stats.swapped_in_bytes == stats.swapped_out_bytes
    if on == "cpu":
        assert num_computed() == sum(len(prompt) + 12 - 1 for prompt in PROMPTS)


@pytest.mark.parametrize("kind", KINDS)
def test_another_engine_resumes_a_saved_sequence(open_model: OpenRecurrent, kind: str) -> None:
    first, second = (open_model(kind, block_size=4) for _ in range(2))
    whole = alone(first)[1]
    tokens = [*PROMPTS[1], *whole[:5]]
    first.add_request("r", PROMPTS[1], GREEDY)
    while "r" not in [each.request_id for each in first.running] or first.cache.num_tokens("r") < len(tokens):
        first.step()
    stored = first.cache.save("r", MemoryContents(first.runner.kv_memory, "same"), tokens).data
    first.abort("r")
    contents = MemoryContents(second.runner.kv_memory, "same")
    without = write_blocks(replace(read_blocks(stored), states={}))
    with pytest.raises(CacheContentError, match="other tensors"):
        second.cache.load("s", without, contents, tokens)
    assert second.cache.load("s", stored, contents, tokens).num_cached_tokens == len(tokens) == 28
    second.cache.release("s", tokens)
    num_computed = _count_calls(second.runner, lambda decision, *_: decision.num_batched_tokens)
    second.add_request("r", [*tokens, whole[5]], SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True))
    assert run(second)["r"] == [whole[6:]]
    assert num_computed() == 6


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("max_num_seqs", [2, 8])
def test_several_answers_to_a_prompt_fork_its_state(open_model: OpenRecurrent, kind: str, max_num_seqs: int) -> None:
    """Where all answers run at once, the prompt is computed once; the last token of it by each answer."""
    expected = alone(open_model(kind))
    engine = open_model(kind, max_num_seqs=max_num_seqs, max_num_batched_tokens=16)
    num_computed = _count_calls(engine.runner, lambda decision, *_: decision.num_batched_tokens)
    several = SamplingParams(n=3, temperature=0.0, max_tokens=12, ignore_eos=True)
    for index, prompt in enumerate(PROMPTS[:2] if max_num_seqs > 2 else PROMPTS):
        engine.add_request(str(index), prompt, several)
    for name, answers in run(engine).items():
        assert answers == [expected[int(name)]] * 3
    if max_num_seqs > 2:
        assert num_computed() == sum(len(prompt) - 1 + 3 * 12 for prompt in PROMPTS[:2])


def test_no_more_sequences_run_than_there_are_slots(open_model: OpenRecurrent) -> None:
    engine = open_model("hybrid", max_num_seqs=2)
    assert engine.compiled.cache_spec.num_slots == 2 + NUM_RESERVED_SLOTS + 4
    seen: set[tuple[int, ...]] = set()
    launch = engine.runner.launch

    def watched(decision: ScheduleDecision, *more: Any) -> Any:
        seen.add(tuple(engine.cache.state_slot(entry.request.request_id) for entry in decision.scheduled))
        return launch(decision, *more)

    engine.runner.launch = watched  # type: ignore[method-assign]
    ask(engine)
    assert max(map(len, seen)) == 2
    assert all(len(set(slots)) == len(slots) and 0 not in slots for slots in seen)


def test_a_text_is_embedded_and_scored_beside_a_full_batch(open_model: OpenRecurrent) -> None:
    expected = alone(open_model("hybrid"))
    engine = open_model("hybrid", max_num_seqs=2)
    engine.add_request("0", PROMPTS[0], GREEDY)
    engine.add_request("1", PROMPTS[1], GREEDY)
    engine.step()
    first = engine.embed(PROMPTS[2], "last", is_normalized=False)
    engine.step()
    np.testing.assert_array_equal(engine.embed(PROMPTS[2], "last", is_normalized=False), first)
    scored = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, prompt_logprobs=0)
    engine.add_request("2", PROMPTS[2], scored)
    assert run(engine) == {str(index): [expected[index]] for index in range(3)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("on", ["cpu", "sim"])
def test_a_conversation_continues_from_the_last_snapshot(open_model: OpenRecurrent, kind: str, on: str) -> None:
    """Each turn reuses the full blocks of the one before, an aborted turn and a changed one those of its prompt."""
    plain = open_model(kind, enable_prefix_caching=False)
    engine = open_model(kind, device=on, block_size=4, max_num_batched_tokens=16)
    block_size = engine.compiled.cache_spec.block_size
    talk, seen = list(PROMPTS[0]), 0
    for turn in range(4):
        plain.add_request("talk", talk, GREEDY)
        (expected,) = run(plain)["talk"]
        engine.add_request("talk", talk, GREEDY, options=RequestOptions(session="talk"))
        request = engine._outputs["talk"].request
        answers = run(engine)
        assert answers["talk"] == [expected]
        assert request.num_cached_tokens == seen // block_size * block_size
        seen = len(talk) + len(expected) - 1
        talk = [*talk, *expected, 30 + turn, 31]
    engine.add_request("changed", [*PROMPTS[0][:9], 77, 78], GREEDY)
    plain.add_request("changed", [*PROMPTS[0][:9], 77, 78], GREEDY)
    assert run(engine) == run(plain)


@pytest.mark.parametrize("seed", range(3))
def test_steps_that_run_ahead(open_model: OpenRecurrent, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Requests that end without notice leave a step in flight, which writes to a slot that another request gets."""
    monkeypatch.setenv("AETHERMIND_SIM_SEED", str(seed))
    expected = alone(open_model("hybrid"))
    engine = open_model("hybrid", device="sim", max_num_seqs=3, max_num_batched_tokens=16)
    for index, answer in enumerate(expected):
        stops = SamplingParams(temperature=0.0, max_tokens=12, stop_token_ids=[answer[2 + index]], ignore_eos=True)
        engine.add_request(str(index), PROMPTS[index], stops)
    engine.add_request("several", PROMPTS[2], SamplingParams(n=2, temperature=0.0, max_tokens=12, ignore_eos=True))
    ahead = _count_calls(engine.runner, lambda _, before=None: before is not None)
    answers = run(engine)
    assert ahead() > 5
    assert answers.pop("several") == [expected[2]] * 2
    assert answers == {
        str(index): [answer[: answer.index(answer[2 + index]) + 1]] for index, answer in enumerate(expected)
    }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("on", ["cpu", "sim"])
@pytest.mark.parametrize("params", [GREEDY, replace(GREEDY, temperature=1.2, seed=5)], ids=["greedy", "sampled"])
def test_answers_do_not_depend_on_drafts(open_model: OpenRecurrent, kind: str, on: str, params: SamplingParams) -> None:
    """After a wrong draft a state is that before all drafts, and the right ones are computed again."""
    expected = ask(open_model(kind, enable_prefix_caching=False), params)
    wholes = [[*prompt, *answer] for prompt, answer in zip(PROMPTS, expected, strict=True)]

    def draft(request: Request, most: int) -> list[int]:
        """As many right tokens as the answer's length says, then a wrong one."""
        start = request.num_tokens
        right = wholes[int(request.request_id)][start : start + most]
        num_right = start % 4
        return [*right[:num_right], *(399 - token for token in right[num_right:])]

    engine = open_model(kind, device=on, speculative_method="prompt_lookup", block_size=4, max_num_seqs=3)
    speculator = speculate_with(engine, Scripted(draft), 3)
    assert ask(engine, params) == expected
    assert 20 < speculator.num_accepted_tokens < speculator.num_draft_tokens - 5
    assert ask(engine, params) == expected, "snapshots in the prefix cache are those of their tokens"


def test_prompt_lookup_drafts_for_a_model_with_states(open_model: OpenRecurrent) -> None:
    engine = open_model("hybrid", speculative_method="prompt_lookup", prompt_lookup_min=1, prompt_lookup_max=1)
    plain = open_model("hybrid")
    assert engine.compiled.cache_spec.max_sequences == plain.compiled.cache_spec.max_sequences
    assert engine.compiled.cache_spec.num_slots == plain.compiled.cache_spec.num_slots + engine.budget.max_num_seqs
    speculator = speculate_with(engine, PromptLookup(engine.compiled))
    assert ask(engine) == ask(plain)
    assert speculator.num_draft_tokens > 0


def _draft_with(engine: Engine, corrupt: Callable[[Request, list[int]], list[int]]) -> Speculator:
    """Let the draft model draft at every opportunity; `corrupt` changes the drafts before they are verified."""
    proposer = DraftModel(engine.compiled)
    for tensor in proposer._runner.kv_memory.state_tensors.values():
        engine.compiled.open_device.backend.transfer.fill(tensor, 0xFF)
    propose = proposer.propose

    def corrupted(requests: Sequence[Request], limits: Sequence[int]) -> list[list[int]]:
        drafts = propose(requests, limits)
        return [corrupt(request, some) for request, some in zip(requests, drafts, strict=True)]

    proposer.propose = corrupted  # type: ignore[method-assign]
    return speculate_with(engine, proposer)


@pytest.mark.parametrize("on", ["cpu", "sim"])
@pytest.mark.parametrize("draft_model", KINDS)
def test_a_recurrent_draft_model_continues_behind_the_accepted_drafts(
    open_model: OpenRecurrent, draft_model: str, on: str
) -> None:
    """The model drafts for itself, so that it would choose every draft. After a wrong one, its state is that of the
    accepted tokens, and it drafts as before.
    """
    expected = ask(open_model(draft_model, device=on))
    wholes = [[*prompt, *answer] for prompt, answer in zip(PROMPTS, expected, strict=True)]
    options: dict[str, Any] = {"speculative_method": "draft", "draft_model": draft_model, "device": on}
    for more in ({}, {"max_num_batched_tokens": 8, "max_num_seqs": 3, "block_size": 4}):
        engine = open_model(draft_model, **options, **more)
        chosen: list[bool] = []

        def corrupt(request: Request, drafts: list[int], chosen: list[bool] = chosen) -> list[int]:
            behind = wholes[int(request.request_id)][request.num_tokens :]
            chosen.extend(draft == token for draft, token in zip(drafts, behind, strict=False))
            position = request.num_tokens % (len(drafts) + 1)  # each number of accepted drafts, and all
            return [*drafts[:position], *(399 - token for token in drafts[position:])]

        speculator = _draft_with(engine, corrupt)
        runner = speculator._proposer._runner  # type: ignore[attr-defined]
        num_computed = _count_calls(runner, lambda decision, *_: decision.num_batched_tokens)
        assert ask(engine) == expected, more
        num_tokens = sum(map(len, wholes))
        assert num_computed() <= num_tokens + len(chosen), "an accepted draft is computed twice, a prompt is not"
        assert ask(engine) == expected, "with prefixes in the draft model's cache"
        assert all(chosen), more
        assert len(chosen) > 40
        assert 0 < speculator.num_accepted_tokens < speculator.num_draft_tokens, more


def test_a_recurrent_draft_model_of_another_kind(open_model: OpenRecurrent) -> None:
    expected = ask(open_model("hybrid"))
    engine = open_model("hybrid", speculative_method="draft", draft_model="recurrent", num_speculative_tokens=3)
    assert engine.compiled.draft is not None
    spec, draft = engine.compiled.cache_spec, engine.compiled.draft.cache_spec
    assert draft.num_checkpoints == draft.max_sequences == spec.max_sequences
    with_draft, alone = MemoryNeeds.of(engine.compiled), MemoryNeeds.of(replace(engine.compiled, draft=None))
    assert with_draft.states >= alone.states + draft.num_slots * draft.bytes_per_slot
    speculator = _draft_with(engine, lambda _, drafts: drafts)
    assert ask(engine) == expected
    assert speculator.num_draft_tokens > 0


def test_a_step_of_a_recurrent_draft_model_that_failed_is_computed_again(open_model: OpenRecurrent) -> None:
    engine = open_model("hybrid", speculative_method="draft", draft_model="hybrid")
    expected = ask(open_model("hybrid"))
    speculator = _draft_with(engine, lambda _, drafts: drafts)
    runner, numbers = speculator._proposer._runner, count()  # type: ignore[attr-defined]
    run_step = runner.run

    def failing(decision: ScheduleDecision) -> list[SampledToken]:
        sampled: list[SampledToken] = run_step(decision)
        if next(numbers) in (2, 5, 9):
            raise AetherMindError("broken")
        return sampled

    runner.run = failing
    answers: dict[str, list[list[int]]] = {}
    for index, prompt in enumerate(PROMPTS):
        engine.add_request(str(index), prompt, GREEDY)
    for _ in range(3):
        with pytest.raises(AetherMindError, match="broken"):
            run(engine, answers)
    assert run(engine, answers) == {str(index): [answer] for index, answer in enumerate(expected)}
    assert speculator.num_accepted_tokens == speculator.num_draft_tokens > 20


@pytest.mark.parametrize("fails", ["before", "after", "when read"])
@pytest.mark.parametrize(("on", "is_every_third"), [("cpu", False), ("sim", False), ("sim", True)])
def test_requests_of_a_failed_step_are_computed_again(
    open_model: OpenRecurrent, monkeypatch: pytest.MonkeyPatch, on: str, is_every_third: bool, fails: str
) -> None:
    """A step that is repeated would advance the states of its sequences twice, whether it ran ahead or not."""
    expected = alone(open_model("hybrid"))
    engine = open_model("hybrid", device=on, max_num_batched_tokens=16)
    if is_every_third:
        may_run_ahead, turns = engine.pipeline._may_run_ahead, cycle([True, False, False])
        monkeypatch.setattr(engine.pipeline, "_may_run_ahead", lambda *given: may_run_ahead(*given) and next(turns))
    failing = _failing(engine, {3, 8, 13}, fails)
    for index, prompt in enumerate(PROMPTS):
        engine.add_request(str(index), prompt, GREEDY)
    answers: dict[str, list[list[int]]] = {}
    for _ in range(3):
        with pytest.raises(AetherMindError, match="broken"):
            run(engine, answers)
    assert run(engine, answers) == {str(index): [answer] for index, answer in enumerate(expected)}
    assert failing() > 13


def _failing(engine: Engine, steps: set[int], when: str) -> Callable[[], int]:
    """Make steps of these numbers fail, before or after the device computed them; returns a count of steps."""
    number, launch = 0, engine.runner.launch

    def broken(*arguments: Any) -> InFlightStep:
        nonlocal number
        number += 1
        if number - 1 not in steps:
            return launch(*arguments)
        if when == "before":
            raise AetherMindError("The device is broken.")
        step = launch(*arguments)
        if when == "after":
            step.read()
            raise AetherMindError("The device is broken.")
        step.read = partial(_read_and_fail, step.read)
        return step

    engine.runner.launch = broken  # type: ignore[method-assign]
    return lambda: number


def _count_calls(runner: ModelRunner, count: Callable[..., int]) -> Callable[[], int]:
    """Add up `count` of the arguments of all launches from now on; returns a function to the sum."""
    total, launch = 0, runner.launch

    def counted(*arguments: Any) -> InFlightStep:
        nonlocal total
        total += count(*arguments)
        return launch(*arguments)

    runner.launch = counted  # type: ignore[method-assign]
    return lambda: total


def _read_and_fail(read: Callable[[], list[SampledToken]]) -> list[SampledToken]:
    read()
    raise AetherMindError("The device is broken.")


def test_a_model_without_attention_has_a_cache_of_states_only(open_model: OpenRecurrent) -> None:
    engine = open_model("recurrent", max_num_seqs=3, max_model_len=None)
    compiled = engine.compiled
    assert compiled.max_model_len == compiled.model.config.max_position_embeddings
    assert compiled.cache_spec.bytes_per_block == 0
    assert compiled.num_kv_blocks * compiled.cache_spec.block_size >= 3 * compiled.max_model_len
    assert engine.runner.kv_cache_bytes == compiled.cache_spec.num_slots * compiled.cache_spec.bytes_per_slot
    assert compiled.cache_spec.bytes_per_slot == 2 * 16 * 4


def test_the_bytes_of_states_are_estimated_and_described(open_model: OpenRecurrent) -> None:
    engine = open_model("hybrid", num_kv_blocks=8)
    compiled, info = engine.compiled, describe_model(engine, 0.0)
    assert info.state_bytes == compiled.cache_spec.num_slots * 2 * 16 * 4
    assert info.kv_cache_bytes == info.state_bytes + 8 * compiled.cache_spec.bytes_per_block
    path, config = compiled.source.path, replace(compiled.config, num_kv_blocks=8)
    estimate = estimate_memory(Runtime.boot(), path, config)
    assert (estimate["kv_cache_bytes"], estimate["state_bytes"]) == (info.kv_cache_bytes, info.state_bytes)


def test_states_fit_a_third_of_the_memory(open_model: OpenRecurrent, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device whose memory holds the states of fewer sequences runs fewer at once."""
    expected = alone(open_model("recurrent"))
    of_device = HostDevices.properties
    bytes_of_five = 5 * 2 * 16 * 4

    def small(self: HostDevices, index: int) -> DeviceProperties:
        return replace(of_device(self, index), total_memory_bytes=3 * bytes_of_five)

    monkeypatch.setattr(HostDevices, "properties", small)
    engine = open_model("recurrent", device="numpy", max_num_seqs=8)
    spec = engine.compiled.cache_spec
    assert (spec.num_slots, spec.num_snapshots, engine.budget.max_num_seqs) == (5, 1, 2)
    assert ask(engine) == expected
    engine = open_model("recurrent", device="numpy", max_num_seqs=8, enable_prefix_caching=False)
    assert engine.budget.max_num_seqs == 3


def test_states_are_counted_beside_blocks_in_device_memory(
    open_model: OpenRecurrent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device that reports its free memory gets as many blocks as fit beside the states of all requests."""
    expected = alone(open_model("hybrid"))
    monkeypatch.setenv("AETHERMIND_SIM_MEMORY", "1")
    engine = open_model("hybrid", device="sim", max_num_batched_tokens=64)
    compiled = engine.compiled
    needs = MemoryNeeds.of(compiled)
    assert needs.states >= compiled.cache_spec.num_slots * compiled.cache_spec.bytes_per_slot > 0
    assert sum(needs.block_parts) == compiled.cache_spec.bytes_per_block
    allowed = int(0.9 * (1 << 20))
    in_all = needs.weights + needs.steps + needs.states + needs.of_blocks(compiled.num_kv_blocks)
    assert in_all <= allowed < in_all + 2 * needs.of_blocks(1)
    assert ask(engine) == expected


def test_padded_decodes_leave_states_alone(open_model: OpenRecurrent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Padding of a decode step has the null slot, which no sequence has."""
    expected = alone(open_model("hybrid"))
    create = NumpyBackend.__init__

    def with_sizes(self: NumpyBackend) -> None:
        create(self)
        self.capabilities = replace(self.capabilities, batch_sizes=(2, 4, 8))

    monkeypatch.setattr(NumpyBackend, "__init__", with_sizes)
    engine = open_model("hybrid", device="numpy")
    inputs = engine.runner.executor.host_inputs
    inputs["state_slots"][:] = 77
    assert ask(engine) == expected
    assert inputs["state_slots"][: len(PROMPTS) + 1].max() < 77
    assert inputs["state_slots"][len(PROMPTS) : 8].tolist() == [0, 0, 0]


def test_a_profiled_step_advances_states_once(open_model: OpenRecurrent) -> None:
    engine = open_model("hybrid", max_num_batched_tokens=16)
    expected = ask(engine)
    engine.runner.observer = Profiler(engine.compiled.operators, engine.runner.kv_memory, repeat=2)
    assert ask(engine) == expected
