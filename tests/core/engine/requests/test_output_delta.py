"""Deltas add up to the same output, whether they are merged, encoded or neither."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.engine.engines import open_engine

from aethermind import Runtime, SamplingParams
from aethermind.engine.process.protocol import Unpacker, decode_delta, encode_delta, pack
from aethermind.engine.requests.output import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from aethermind.engine.requests.output_delta import (
    CompletionDelta,
    OutputAccumulator,
    OutputCursor,
    OutputDelta,
    OutputReader,
)

TEXT = st.text("añ🦊", max_size=3)
SCORE = st.dictionaries(st.integers(0, 9), st.builds(Logprob, st.floats(-9, 0), st.integers(1, 9), TEXT), max_size=2)


@st.composite
def lives(draw: Any) -> tuple[list[OutputDelta], RequestOutput]:
    """The deltas of one request with some answers, each of which grows now and then, and its last output."""
    num_answers = draw(st.integers(1, 3))
    has_logprobs, has_prompt_logprobs = draw(st.booleans()), draw(st.booleans())
    prompt_logprobs = draw(st.lists(st.none() | SCORE, min_size=2, max_size=2)) if has_prompt_logprobs else None
    reason = draw(st.sampled_from(["stop", "length", "abort"]))
    answers: dict[int, tuple[str, list[int], list[Any]]] = {}
    deltas: list[OutputDelta] = []
    num_deltas = draw(st.integers(1, 8))
    for number in range(num_deltas):
        is_last = number == num_deltas - 1
        completions = []
        for index in range(num_answers):
            if not (is_last or draw(st.booleans())):
                continue
            text, ids, logprobs = answers.get(index, ("", [], []))
            new_text, new_ids = draw(TEXT), draw(st.lists(st.integers(0, 99), max_size=3))
            new_logprobs = [draw(SCORE) for _ in new_ids]
            answers[index] = (text + new_text, ids + new_ids, logprobs + new_logprobs)
            end = (reason, 7) if is_last else (None, None)
            completions.append(
                CompletionDelta(
                    index, new_text, new_ids, new_logprobs if has_logprobs else None, len(answers[index][1]), *end
                )
            )
        metrics = RequestMetrics(1.0, 2.0, 3.0 if is_last else None, num_preemptions=number)
        error = ("no memory", "DeviceError") if is_last and reason == "abort" else (None, None)
        first_logprobs = prompt_logprobs if number == 0 else None
        deltas.append(OutputDelta("name", completions, is_last, metrics, 2, number, first_logprobs, *error))
    outputs = [
        CompletionOutput(index, text, ids, logprobs if has_logprobs else None, reason, 7)
        for index, (text, ids, logprobs) in sorted(answers.items())
    ]
    facts = (deltas[-1].metrics, deltas[-1].error, num_deltas - 1, prompt_logprobs, deltas[-1].error_type)
    return deltas, RequestOutput("name", "Once", [3, 1], outputs, True, *facts)


@settings(deadline=None)
@given(lives(), st.data())
def test_merged_and_encoded_deltas_add_up_to_the_same_output(
    life: tuple[list[OutputDelta], RequestOutput], data: st.DataObject
) -> None:
    deltas, whole = life
    accumulator, unpacker = OutputAccumulator("Once", [3, 1]), Unpacker()
    pending: OutputDelta | None = None
    for delta in deepcopy(deltas):
        if pending is None:
            pending = delta
        else:
            pending.merge(delta)
        if delta.finished or data.draw(st.booleans()):
            (values,) = unpacker.feed(pack(encode_delta(pending)))
            received = decode_delta("name", values)
            assert received == pending
            output, pending = accumulator.add(received), None
    assert output == whole


def test_an_output_once_returned_does_not_change() -> None:
    accumulator = OutputAccumulator("Once", [3, 1])
    metrics = RequestMetrics(1.0, 2.0, None)
    scores = [{1: Logprob(-1.0, 1, "a")}]
    first = accumulator.add(OutputDelta("name", [CompletionDelta(0, "a", [1], list(scores), 1)], False, metrics, 2))
    seen = deepcopy(first)
    accumulator.add(OutputDelta("name", [CompletionDelta(0, "b", [2], list(scores), 2, "stop")], True, metrics, 2))
    assert first == seen


def test_readers_of_one_request_have_cursors_of_their_own(runtime: Runtime) -> None:
    """One reads after each step, one now and then, one at the end: all get the same text and tokens."""
    engine = open_engine(runtime, "null")
    engine.add_request("a", [5, 6, 7], SamplingParams(max_tokens=9, n=2, ignore_eos=True, logprobs=1))
    often, cursor, rare = OutputReader(), OutputCursor(), OutputAccumulator(None, [5, 6, 7])
    sources, num_steps = [], 0
    while engine.has_unfinished:
        sources = engine.advance()
        num_steps += 1
        outputs = [often.read(source) for source in sources]
        if sources and (num_steps % 3 == 0 or sources[0].has_ended):
            delta = sources[0].delta(cursor)
            later = rare.add(delta)
    assert outputs == [later] == [OutputReader().read(source) for source in sources]
    assert [len(one.token_ids) for one in later.outputs] == [9, 9]


def test_an_answer_that_has_ended_is_not_repeated(runtime: Runtime) -> None:
    engine = open_engine(runtime, "null")
    engine.add_request("a", [5, 6, 7], SamplingParams(max_tokens=3, ignore_eos=True))
    cursor = OutputCursor()
    while engine.has_unfinished:
        (source,) = engine.advance()
        last = source.delta(cursor)
    assert (last.finished, last.completions[0].finish_reason, last.completions[0].num_tokens) == (True, "length", 3)
    assert source.delta(cursor).completions == []
