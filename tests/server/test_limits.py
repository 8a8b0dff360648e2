"""What stands at the door, with a clock that the test sets."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aethermind.errors import InvalidArgumentError
from aethermind.server.limits import Admission, AnswerRoom, Limits
from aethermind.server.openai.errors import ApiError
from aethermind.server.rate import WINDOW_S, SlidingSum
from aethermind.server.tenants import Quota, Tenant


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def refusal(admission: Admission, tenant: Tenant, num_answers: int = 1) -> ApiError:
    with pytest.raises(ApiError) as caught, admission.enter(num_answers, tenant):
        pass
    return caught.value


def test_answers_queue_until_they_begin(clock: Clock) -> None:
    admission = Admission(Limits(max_queued_requests=2, max_queued_tokens=10), clock)
    tenant = Tenant("one", "1")
    with admission.enter(2, tenant) as stay:
        stay.queue(8)
        assert (admission.num_open, admission.num_queued, admission.num_queued_tokens) == (2, 2, 8)
        assert refusal(admission, tenant).code == "queue_full"
        stay.begin()
        with admission.enter(1, tenant) as other:
            other.queue(30)  # nobody waits, so that it may be longer than what may wait
            with admission.enter(1, tenant) as third, pytest.raises(ApiError) as caught:
                third.queue(1)
            assert (caught.value.status, caught.value.code) == (429, "queue_full_of_tokens")
    assert (admission.num_open, admission.num_queued, admission.num_queued_tokens) == (0, 0, 0)


def test_a_key_has_so_many_answers_open(clock: Clock) -> None:
    admission = Admission(Limits(), clock)
    busy, other = Tenant("busy", "1", Quota(max_concurrency=2)), Tenant("other", "2", Quota(max_concurrency=2))
    with admission.enter(2, busy), admission.enter(2, other):
        assert refusal(admission, busy).code == "key_concurrency"
    with admission.enter(2, busy):
        pass


def test_a_key_makes_so_many_requests_a_minute(clock: Clock) -> None:
    admission = Admission(Limits(), clock)
    tenant = Tenant("one", "1", Quota(requests_per_minute=2))
    for _ in range(2):
        with admission.enter(16, tenant):
            clock.now += 10
    refused = refusal(admission, tenant)
    assert (refused.status, refused.code, refused.retry_after_s) == (429, "key_request_rate", 40)
    clock.now += 40
    with admission.enter(1, tenant):
        pass
    assert refusal(admission, tenant).retry_after_s == 10


def test_a_key_uses_so_many_tokens_a_minute(clock: Clock) -> None:
    admission = Admission(Limits(), clock)
    tenant = Tenant("one", "1", Quota(tokens_per_minute=100))
    with admission.enter(1, tenant) as stay:
        stay.queue(40)
        stay.spend(70)
    assert refusal(admission, tenant).retry_after_s == 60
    clock.now += 60
    with admission.enter(1, tenant) as stay:
        with pytest.raises(ApiError, match="Shorten it") as caught:
            stay.queue(101)
        assert caught.value.status == 400
        stay.queue(90)
    clock.now += 5
    with admission.enter(1, tenant) as stay, pytest.raises(ApiError) as caught:
        stay.queue(20)
    assert (caught.value.code, caught.value.retry_after_s) == ("key_token_rate", 55)


def test_what_may_still_be_written_is_reserved(clock: Clock) -> None:
    admission = Admission(Limits(), clock)
    tenant = Tenant("one", "1", Quota(tokens_per_minute=100))
    with admission.enter(1, tenant) as first:
        first.queue(10, AnswerRoom(60, "max_tokens"))
        with admission.enter(1, tenant) as second:
            with pytest.raises(ApiError) as caught:
                second.queue(10, AnswerRoom(21, "max_tokens"))
            assert (caught.value.status, caught.value.code) == (429, "key_token_rate")
            second.queue(10, AnswerRoom(20, "max_tokens"))
            assert refusal(admission, tenant).code == "key_token_rate"
        first.spend(30)
        with admission.enter(1, tenant) as third:
            third.queue(1, AnswerRoom(19, "max_tokens"))
            assert refusal(admission, tenant).code == "key_token_rate"
    clock.now += 1
    with admission.enter(1, tenant) as last:  # 51 were used
        with pytest.raises(ApiError) as caught:
            last.queue(10, AnswerRoom(40, "max_tokens"))
        assert caught.value.retry_after_s == 59
        last.queue(10, AnswerRoom(39, "max_tokens"))


def test_an_answer_of_any_length_takes_what_is_left(clock: Clock) -> None:
    admission = Admission(Limits(), clock)
    tenant, other = (Tenant(name, name, Quota(tokens_per_minute=100)) for name in ("one", "other"))
    for _ in range(3):
        with admission.enter(1, tenant) as stay, admission.enter(1, other):
            stay.queue(10, AnswerRoom(4096))
            assert refusal(admission, tenant).code == "key_token_rate"
            stay.spend(5)
    with admission.enter(1, tenant) as stay:
        stay.queue(10, AnswerRoom(40, "max_tokens"))


def test_what_will_never_be_possible_is_not_to_be_tried_again(clock: Clock) -> None:
    admission = Admission(Limits(max_open_requests=8, max_queued_requests=9), clock)
    tenant = Tenant("one", "1", Quota(max_concurrency=4, tokens_per_minute=100))
    for num_answers, code in ((5, "key_concurrency"), (9, "key_concurrency")):
        refused = refusal(admission, tenant, num_answers)
        assert (refused.status, refused.code, refused.param, refused.retry_after_s) == (400, code, "n", None)
    assert refusal(admission, Tenant("two", "2"), 9).code == "overloaded"
    with admission.enter(4, tenant) as stay:
        with pytest.raises(ApiError, match=r"Lower max_tokens\.") as caught:
            stay.queue(10, AnswerRoom(91, "max_tokens"))
        assert (caught.value.status, caught.value.param) == (400, "max_tokens")
        assert refusal(admission, tenant).status == 429
        stay.queue(10, AnswerRoom(90, "max_tokens"))


def test_who_leaves_by_an_error_leaves_nothing_behind(clock: Clock) -> None:
    admission = Admission(Limits(max_open_requests=1), clock)
    tenant = Tenant("one", "1", Quota(max_concurrency=1))
    for _ in range(3):
        with suppress(ZeroDivisionError), admission.enter(1, tenant) as stay:
            stay.queue(5)
            raise ZeroDivisionError
    assert admission.num_open == admission.num_queued == admission.num_queued_tokens == 0


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(1, 50)), max_size=40), st.integers(0, 400), st.floats(0, 90))
def test_a_sliding_sum_is_what_the_last_minute_held(events: list[tuple[float, int]], most: int, later: float) -> None:
    held, added, now = SlidingSum(), [], 0.0
    for pause, amount in events:
        now += pause
        held.add(amount, now)
        added.append((int(now), amount))
    now += later

    def expected(at: float) -> int:
        return sum(amount for second, amount in added if second > at - WINDOW_S)

    assert held.total(now) == expected(now)
    wait = held.wait_s(most, now)
    assert expected(now + wait) <= most
    assert wait == 0 or expected(now + wait - 1e-6) > most


def test_limits_that_let_nobody_in() -> None:
    for name in ("max_open_requests", "max_queued_tokens", "max_json_depth", "idle_timeout_s"):
        with pytest.raises(InvalidArgumentError, match=f"{name} should be more than 0"):
            Limits(**{name: 0})
