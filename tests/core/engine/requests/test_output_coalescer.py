"""News of growing answers is told at once, or held back for no longer than allowed, together with others'."""

from __future__ import annotations

from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from aethermind.engine.requests.output import CompletionOutput, RequestMetrics, RequestOutput
from aethermind.engine.requests.output_builder import OutputUpdate
from aethermind.engine.requests.output_coalescer import OutputCoalescer


def state(num_tokens: int, *, finished: bool = False, name: str = "a") -> RequestOutput:
    answer = CompletionOutput(0, "", list(range(num_tokens)), None, "length" if finished else None, None)
    return RequestOutput(name, None, [3], [answer], finished, RequestMetrics(0.0, None, None))


class Growing:
    """An answer that goes on, as an engine tells of it: its state is written down when it is asked for."""

    def __init__(self, name: str) -> None:
        self.request_id = name
        self.num_tokens = 0

    def snapshot(self) -> RequestOutput:
        return state(self.num_tokens, name=self.request_id)


def grown(answer: Growing) -> OutputUpdate:
    """The answer with one more token."""
    answer.num_tokens += 1
    return cast(OutputUpdate, answer)


def test_those_who_hold_back_as_long_are_told_together() -> None:
    now_s = 10.0
    news = OutputCoalescer(lambda: now_s)
    for name in ("a", "b", "c"):
        now_s += 0.05
        news.open(name, 0.25)
        news.put([state(1, name=name)])
        assert [told for told, _ in news.take()] == [name], "the first state is told at once"
    for name in ("a", "b", "c"):
        news.put([state(2, name=name)])
    assert not news.is_due
    assert news.take() == []
    now_s = 10.25
    assert news.is_due
    assert [told for told, _ in news.take()] == ["a", "b", "c"]


def test_only_what_comes_quickly_is_held_back() -> None:
    now_s = 10.0
    news = OutputCoalescer(lambda: now_s)
    news.open("a", 0.032)
    for num_tokens in range(1, 20):
        now_s += 0.016
        news.put([state(num_tokens)])
        assert [name for name, _ in news.take()] == ["a"], "the next one would come when the hold is over"
    num_told = 0
    for num_tokens in range(20, 100):
        now_s += 0.001
        news.put([state(num_tokens)])
        num_told += len(news.take())
    assert 2 <= num_told <= 3, "in 80 ms"


def test_what_nobody_waits_for_is_not_kept() -> None:
    news = OutputCoalescer(lambda: 10.0)
    news.put([state(1, name="unknown")])
    news.open("a")
    news.put([state(1)])
    news.drop("a")
    news.drop("a")
    news.put([state(2)])
    news.open("b")
    news.put([state(1, finished=True, name="b")])
    assert [name for name, _ in news.take()] == ["b"]
    news.put([state(2, name="b")])
    assert news.take() == []


def test_a_name_that_comes_again_gets_nothing_of_the_request_before() -> None:
    now_s = 10.0
    news, before = OutputCoalescer(lambda: now_s), Growing("a")
    news.open("a", 0.25)
    news.put([grown(before)])
    assert len(news.take()) == 1
    now_s += 0.001
    news.put([grown(before)])
    news.drop("a")
    news.open("a", 0.25)
    assert not news.is_due
    now_s += 1.0
    assert news.take() == []


STEPS = st.lists(
    st.tuples(
        st.one_of(st.floats(0.0, 0.02), st.floats(0.0, 0.5)),
        st.sets(st.sampled_from("abc")),
        st.booleans(),
    ),
    min_size=1,
    max_size=60,
)


@given(st.lists(st.sampled_from((0.0, 1 / 30, 0.25)), min_size=3, max_size=3), STEPS)
def test_nothing_is_lost_nor_held_longer_than_allowed(
    holds_s: list[float], steps: list[tuple[float, set[str], bool]]
) -> None:
    now_s = 100.0
    news = OutputCoalescer(lambda: now_s)
    answers = {name: Growing(name) for name in "abc"}
    holds = dict(zip("abc", holds_s, strict=True))
    for name, hold_s in holds.items():
        news.open(name, hold_s)
    waits_since_s: dict[str, float] = {}
    num_told = dict.fromkeys("abc", 0)
    for index, (took_s, names, is_looked_at) in enumerate(steps, start=1):
        now_s += took_s
        is_last = index == len(steps)
        updates = [grown(answers[name]) for name in sorted(names)]
        if is_last:
            updates = [state(one.num_tokens, finished=True, name=name) for name, one in answers.items()]
            names = set(answers)
        news.put(updates)
        for name in names:
            waits_since_s.setdefault(name, now_s)
        if not (is_looked_at or is_last):
            continue
        told = dict(news.take())
        for name, since_s in waits_since_s.copy().items():
            must_tell = is_last or not num_told[name] or now_s - since_s > holds[name] + 1e-9
            assert name in told or not must_tell
        for name, output in told.items():
            assert len(output.outputs[0].token_ids) == answers[name].num_tokens, "the newest state"
            num_told[name] += 1
            del waits_since_s[name]
        assert not news.is_due
