"""Output is due at once, or held for no longer than allowed and coalesced with that of other requests."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.core.engine.requests.sources import WordSource

from aethermind.engine.requests.output_coalescer import OutputCoalescer


def test_requests_with_equal_hold_times_are_due_together() -> None:
    now_s = 10.0
    coalescer = OutputCoalescer(lambda: now_s)
    sources: dict[str, WordSource] = {}
    for name in ("a", "b", "c"):
        now_s += 0.05
        coalescer.open(name, 0.25)
        sources[name] = WordSource(name)
        coalescer.put([sources[name].grow()])
        assert [taken for taken, _ in coalescer.take()] == [name], "the first output is due at once"
    for name in ("a", "b", "c"):
        coalescer.put([sources[name].grow()])
    assert not coalescer.is_due
    assert coalescer.take() == []
    now_s = 10.25
    assert coalescer.is_due
    assert [taken for taken, _ in coalescer.take()] == ["a", "b", "c"]


def test_only_output_of_quick_steps_is_held() -> None:
    now_s = 10.0
    coalescer = OutputCoalescer(lambda: now_s)
    source = WordSource("a")
    coalescer.open("a", 0.032)
    for _ in range(1, 20):
        now_s += 0.016
        coalescer.put([source.grow()])
        assert [name for name, _ in coalescer.take()] == ["a"], "the next output would come after the hold time"
    num_taken = 0
    for _ in range(20, 100):
        now_s += 0.001
        coalescer.put([source.grow()])
        num_taken += len(coalescer.take())
    assert 2 <= num_taken <= 3, "in 80 ms"


def test_output_of_requests_that_are_not_open_is_ignored() -> None:
    coalescer = OutputCoalescer(lambda: 10.0)
    coalescer.put([WordSource("unknown").grow()])
    source = WordSource("a")
    coalescer.open("a")
    coalescer.put([source.grow()])
    coalescer.drop("a")
    coalescer.drop("a")
    coalescer.put([source.grow()])
    coalescer.open("b")
    coalescer.put([WordSource("b").end()])
    assert [name for name, _ in coalescer.take()] == ["b"]
    coalescer.put([WordSource("b").grow(2)])
    assert coalescer.take() == []


def test_a_reused_name_gets_no_output_of_the_request_before() -> None:
    now_s = 10.0
    coalescer, before = OutputCoalescer(lambda: now_s), WordSource("a")
    coalescer.open("a", 0.25)
    coalescer.put([before.grow()])
    assert len(coalescer.take()) == 1
    now_s += 0.001
    coalescer.put([before.grow()])
    coalescer.drop("a")
    coalescer.open("a", 0.25)
    assert not coalescer.is_due
    now_s += 1.0
    assert coalescer.take() == []


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
def test_no_output_is_lost_or_held_longer_than_allowed(
    holds_s: list[float], steps: list[tuple[float, set[str], bool]]
) -> None:
    now_s = 100.0
    coalescer = OutputCoalescer(lambda: now_s)
    answers = {name: WordSource(name) for name in "abc"}
    received = dict.fromkeys("abc", 0)
    holds = dict(zip("abc", holds_s, strict=True))
    for name, hold_s in holds.items():
        coalescer.open(name, hold_s)
    waits_since_s: dict[str, float] = {}
    num_taken = dict.fromkeys("abc", 0)
    for index, (took_s, names, is_looked_at) in enumerate(steps, start=1):
        now_s += took_s
        is_last = index == len(steps)
        sources = [answers[name].grow() for name in sorted(names)]
        if is_last:
            sources = [one.end(0) for one in answers.values()]
            names = set(answers)
        coalescer.put(sources)
        for name in names:
            waits_since_s.setdefault(name, now_s)
        if not (is_looked_at or is_last):
            continue
        taken = dict(coalescer.take())
        for name, since_s in waits_since_s.copy().items():
            is_due = is_last or not num_taken[name] or now_s - since_s > holds[name] + 1e-9
            assert name in taken or not is_due
        for name, delta in taken.items():
            received[name] += len(delta.completions[0].token_ids)
            assert received[name] == answers[name].num_tokens, "all output so far"
            num_taken[name] += 1
            del waits_since_s[name]
        assert not coalescer.is_due
