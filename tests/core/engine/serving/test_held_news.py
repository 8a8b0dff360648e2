"""News of growing answers is told at once, or held back for no longer than allowed, together with others'."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aethermind.engine.requests.output import CompletionOutput, RequestMetrics, RequestOutput
from aethermind.engine.serving.held_news import HeldNews


def state(num_tokens: int, *, finished: bool = False) -> RequestOutput:
    answer = CompletionOutput(0, "", list(range(num_tokens)), None, "length" if finished else None, None)
    return RequestOutput("name", None, [3], [answer], finished, RequestMetrics(0.0, None, None))


def test_those_who_hold_back_as_long_are_told_together() -> None:
    now_s = 10.0
    news: HeldNews[str] = HeldNews(lambda: now_s)
    for name in ("a", "b", "c"):
        now_s += 0.05
        news.open(name, 0.25)
        news.put([(name, state(1))])
        assert [key for key, _ in news.take()] == [name], "the first state is told at once"
    for name in ("a", "b", "c"):
        news.put([(name, state(2))])
    assert not news.is_due
    assert news.take() == []
    now_s = 10.25
    assert news.is_due
    assert [key for key, _ in news.take()] == ["a", "b", "c"]


def test_only_what_comes_quickly_is_held_back() -> None:
    now_s = 10.0
    news: HeldNews[str] = HeldNews(lambda: now_s)
    news.open("a", 0.032)
    for num_tokens in range(1, 20):
        now_s += 0.016
        news.put([("a", state(num_tokens))])
        assert [key for key, _ in news.take()] == ["a"], "the next one would come when the hold is over"
    num_told = 0
    for num_tokens in range(20, 100):
        now_s += 0.001
        news.put([("a", state(num_tokens))])
        num_told += len(news.take())
    assert 2 <= num_told <= 3, "in 80 ms"


def test_what_nobody_waits_for_is_not_kept() -> None:
    news: HeldNews[str] = HeldNews(lambda: 10.0)
    news.put([("unknown", state(1))])
    news.open("a")
    news.put([("a", state(1))])
    news.drop("a")
    news.drop("a")
    news.put([("a", state(2))])
    news.open("b")
    news.put([("b", state(1, finished=True))])
    assert [key for key, _ in news.take()] == ["b"]
    news.put([("b", state(2))])
    assert news.take() == []


@given(
    st.sampled_from((0.0, 1 / 30, 0.25)),
    st.lists(st.tuples(st.floats(0.0, 0.5), st.booleans()), min_size=1, max_size=40),
)
def test_nothing_is_lost_nor_held_longer_than_allowed(hold_s: float, waits: list[tuple[float, bool]]) -> None:
    now_s, num_told, waits_since_s = 100.0, 0, None
    news: HeldNews[int] = HeldNews(lambda: now_s)
    news.open(1, hold_s)
    for num_tokens, (wait_s, is_looked_at) in enumerate(waits, start=1):
        now_s += wait_s
        is_last = num_tokens == len(waits)
        news.put([(1, state(num_tokens, finished=is_last))])
        waits_since_s = now_s if waits_since_s is None else waits_since_s
        if not (is_looked_at or is_last):
            continue
        told = [len(output.outputs[0].token_ids) for _, output in news.take()]
        must_tell = is_last or not num_told or now_s - waits_since_s > hold_s + 1e-9
        assert told == [num_tokens] or (told == [] and not must_tell), "the newest state, or none while it may wait"
        if told:
            num_told, waits_since_s = num_told + 1, None
    assert not news.is_due
