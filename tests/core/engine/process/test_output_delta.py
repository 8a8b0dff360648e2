"""Whatever is left out on the way, the far end has the state that was sent last, to the letter."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from aethermind.engine.process.output_delta import OutputAccumulator, SentOutput
from aethermind.engine.process.protocol import Unpacker, pack
from aethermind.engine.requests.output import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from aethermind.engine.requests.prompt_reader import EnginePrompt

TEXT = st.text("añ🦊", max_size=3)
PROMPT = EnginePrompt("Once", [3, 1])
SCORE = st.dictionaries(st.integers(0, 9), st.builds(Logprob, st.floats(-9, 0), st.integers(1, 9), TEXT), max_size=2)


@st.composite
def lives(draw: Any) -> list[RequestOutput]:
    """The states of one request: some answers, of which each grows now and then, to the end."""
    num_answers = draw(st.integers(1, 3))
    has_logprobs, has_scores = draw(st.booleans()), draw(st.booleans())
    scores = draw(st.lists(st.none() | SCORE, min_size=2, max_size=2)) if has_scores else None
    answers: dict[int, tuple[str, list[int], list[Any]]] = {}
    states = []
    for _ in range(draw(st.integers(1, 8))):
        for index in draw(st.sets(st.integers(0, num_answers - 1))):
            text, ids, logprobs = answers.get(index, ("", [], []))
            gained = draw(st.lists(st.integers(0, 99), max_size=3))
            text += draw(TEXT)
            answers[index] = (text, ids + gained, logprobs + [draw(SCORE) for _ in gained])
        states.append(_state(answers, has_logprobs, scores, None))
    return [*states, _state(answers, has_logprobs, scores, draw(st.sampled_from(["stop", "length", "abort"])))]


def _state(answers: dict[int, Any], has_logprobs: bool, scores: Any, reason: str | None) -> RequestOutput:
    outputs = [
        CompletionOutput(i, text, list(ids), list(logprobs) if has_logprobs else None, reason, reason and 7)
        for i, (text, ids, logprobs) in sorted(answers.items())
    ]
    metrics = RequestMetrics(1.0, 2.0 if answers else None, 3.0 if reason else None)
    error = "no room" if reason == "abort" else None
    return RequestOutput("name", "Once", [3, 1], outputs, reason is not None, metrics, error, len(answers), scores)


@settings(deadline=None)
@given(lives(), st.data())
def test_the_far_end_has_what_was_sent(states: list[RequestOutput], data: st.DataObject) -> None:
    sent, growing, unpacker = SentOutput(), OutputAccumulator("name", PROMPT), Unpacker()
    kept = []
    for state in states[:-1]:
        if data.draw(st.booleans()):
            kept.append(state)
    for state in [*kept, states[-1]]:
        (news,) = unpacker.feed(pack(sent.cut(state)))
        assert growing.grow(news) == state


def test_a_state_once_seen_does_not_change() -> None:
    sent, growing = SentOutput(), OutputAccumulator("name", PROMPT)
    first = _state({0: ("a", [1], [{1: Logprob(-1.0, 1, "a")}])}, True, None, None)
    more = _state({0: ("ab", [1, 2], [{1: Logprob(-1.0, 1, "a")}] * 2)}, True, None, "stop")
    seen = growing.grow(sent.cut(first))
    growing.grow(sent.cut(more))
    assert seen == first


def test_what_did_not_change_costs_next_to_nothing() -> None:
    sent = SentOutput()
    state = _state({0: ("a" * 1000, list(range(1000)), []), 1: ("b", [1], [])}, False, None, None)
    sent.cut(state)
    assert len(pack(sent.cut(state))) < 10
