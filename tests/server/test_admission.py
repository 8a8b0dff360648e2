"""Limits and quotas of admission control, with a clock that the test sets."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aethermind.errors import InvalidArgumentError
from aethermind.plugins import DeprecatedUseWarning
from aethermind.server.access import Quota, Tenant
from aethermind.server.admission import WINDOW_S, AdmissionController, Limits, OutputTokenBudget, SlidingSum
from aethermind.server.openai.errors import ApiError


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def rejection(admission: AdmissionController, tenant: Tenant, num_completions: int = 1) -> ApiError:
    with pytest.raises(ApiError) as caught, admission.admit(num_completions, tenant):
        pass
    return caught.value


def test_answers_are_queued_until_they_begin(clock: Clock) -> None:
    admission = AdmissionController(Limits(max_queued_requests=2, max_queued_tokens=10), clock)
    tenant = Tenant("one", "1")
    with admission.admit(2, tenant) as ticket:
        ticket.enqueue(8)
        assert (admission.num_open, admission.num_queued, admission.num_queued_tokens) == (2, 2, 8)
        assert rejection(admission, tenant).code == "queue_full"
        ticket.leave_queue()
        with admission.admit(1, tenant) as other:
            other.enqueue(30)  # the queue is empty, so the prompt may exceed it
            with admission.admit(1, tenant) as third, pytest.raises(ApiError) as caught:
                third.enqueue(1)
            assert (caught.value.status, caught.value.code) == (429, "token_queue_full")
    assert (admission.num_open, admission.num_queued, admission.num_queued_tokens) == (0, 0, 0)


def test_concurrent_answers_of_a_key_are_limited(clock: Clock) -> None:
    admission = AdmissionController(Limits(), clock)
    busy, other = Tenant("busy", "1", Quota(max_concurrency=2)), Tenant("other", "2", Quota(max_concurrency=2))
    with admission.admit(2, busy), admission.admit(2, other):
        assert rejection(admission, busy).code == "key_concurrency"
    with admission.admit(2, busy):
        pass


def test_requests_per_minute_of_a_key_are_limited(clock: Clock) -> None:
    admission = AdmissionController(Limits(), clock)
    tenant = Tenant("one", "1", Quota(requests_per_minute=2))
    for _ in range(2):
        with admission.admit(16, tenant):
            clock.now += 10
    error = rejection(admission, tenant)
    assert (error.status, error.code, error.retry_after_s) == (429, "key_request_rate", 40)
    clock.now += 40
    with admission.admit(1, tenant):
        pass
    assert rejection(admission, tenant).retry_after_s == 10


def test_tokens_per_minute_of_a_key_are_limited(clock: Clock) -> None:
    admission = AdmissionController(Limits(), clock)
    tenant = Tenant("one", "1", Quota(tokens_per_minute=100))
    with admission.admit(1, tenant) as ticket:
        ticket.enqueue(40)
        ticket.charge(70)
    assert rejection(admission, tenant).retry_after_s == 60
    clock.now += 60
    with admission.admit(1, tenant) as ticket:
        with pytest.raises(ApiError, match="Shorten it") as caught:
            ticket.enqueue(101)
        assert caught.value.status == 400
        ticket.enqueue(90)
    clock.now += 5
    with admission.admit(1, tenant) as ticket, pytest.raises(ApiError) as caught:
        ticket.enqueue(20)
    assert (caught.value.code, caught.value.retry_after_s) == ("key_token_rate", 55)


def test_output_tokens_are_reserved_until_they_are_generated(clock: Clock) -> None:
    admission = AdmissionController(Limits(), clock)
    tenant = Tenant("one", "1", Quota(tokens_per_minute=100))
    with admission.admit(1, tenant) as first:
        first.enqueue(10, OutputTokenBudget(60, "max_tokens"))
        with admission.admit(1, tenant) as second:
            with pytest.raises(ApiError) as caught:
                second.enqueue(10, OutputTokenBudget(21, "max_tokens"))
            assert (caught.value.status, caught.value.code) == (429, "key_token_rate")
            second.enqueue(10, OutputTokenBudget(20, "max_tokens"))
            assert rejection(admission, tenant).code == "key_token_rate"
        first.charge(30)
        with admission.admit(1, tenant) as third:
            third.enqueue(1, OutputTokenBudget(19, "max_tokens"))
            assert rejection(admission, tenant).code == "key_token_rate"
    clock.now += 1
    with admission.admit(1, tenant) as last:  # 51 tokens are used
        with pytest.raises(ApiError) as caught:
            last.enqueue(10, OutputTokenBudget(40, "max_tokens"))
        assert caught.value.retry_after_s == 59
        last.enqueue(10, OutputTokenBudget(39, "max_tokens"))


def test_an_answer_without_a_limit_reserves_what_is_left_of_the_quota(clock: Clock) -> None:
    admission = AdmissionController(Limits(), clock)
    tenant, other = (Tenant(name, name, Quota(tokens_per_minute=100)) for name in ("one", "other"))
    for _ in range(3):
        with admission.admit(1, tenant) as ticket, admission.admit(1, other):
            ticket.enqueue(10, OutputTokenBudget(4096))
            assert rejection(admission, tenant).code == "key_token_rate"
            ticket.charge(5)
    with admission.admit(1, tenant) as ticket:
        ticket.enqueue(10, OutputTokenBudget(40, "max_tokens"))


def test_a_request_beyond_a_limit_by_itself_is_a_400(clock: Clock) -> None:
    admission = AdmissionController(Limits(max_concurrent_requests=8, max_queued_requests=9), clock)
    tenant = Tenant("one", "1", Quota(max_concurrency=4, tokens_per_minute=100))
    for num_completions, code in ((5, "key_concurrency"), (9, "key_concurrency")):
        error = rejection(admission, tenant, num_completions)
        assert (error.status, error.code, error.param, error.retry_after_s) == (400, code, "n", None)
    assert rejection(admission, Tenant("two", "2"), 9).code == "overloaded"
    with admission.admit(4, tenant) as ticket:
        with pytest.raises(ApiError, match=r"Lower max_tokens\.") as caught:
            ticket.enqueue(10, OutputTokenBudget(91, "max_tokens"))
        assert (caught.value.status, caught.value.param) == (400, "max_tokens")
        assert rejection(admission, tenant).status == 429
        ticket.enqueue(10, OutputTokenBudget(90, "max_tokens"))


def test_a_request_that_fails_releases_its_ticket(clock: Clock) -> None:
    admission = AdmissionController(Limits(max_concurrent_requests=1), clock)
    tenant = Tenant("one", "1", Quota(max_concurrency=1))
    for _ in range(3):
        with suppress(ZeroDivisionError), admission.admit(1, tenant) as ticket:
            ticket.enqueue(5)
            raise ZeroDivisionError
    assert admission.num_open == admission.num_queued == admission.num_queued_tokens == 0


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(1, 50)), max_size=40), st.integers(0, 400), st.floats(0, 90))
def test_a_sliding_sum_covers_the_last_minute(events: list[tuple[float, int]], most: int, later: float) -> None:
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


def test_limits_that_admit_no_request_are_an_error() -> None:
    for name in ("max_concurrent_requests", "max_queued_tokens", "max_json_depth", "keep_alive_timeout_s"):
        with pytest.raises(InvalidArgumentError, match=f"{name} should be more than 0"):
            Limits(**{name: 0})
        with pytest.raises(
            InvalidArgumentError, match=rf"{name} should be more than 0 and less than 2\*\*40, got 1000"
        ):
            Limits(**{name: 10**400})


@pytest.mark.parametrize(
    ("former", "present"),
    [
        ("max_open_requests", "max_concurrent_requests"),
        ("idle_timeout_s", "keep_alive_timeout_s"),
        ("slow_reader_timeout_s", "send_timeout_s"),
    ],
)
def test_former_names_of_limits_are_deprecated_aliases(former: str, present: str) -> None:
    with pytest.warns(DeprecatedUseWarning, match=rf"Limits\.{former} .*use Limits\.{present}\.") as warned:
        limits = Limits(**{former: 5})
    assert warned[0].filename == __file__
    assert limits == Limits(**{present: 5})
    with pytest.warns(DeprecatedUseWarning) as warned:
        assert getattr(limits, former) == 5
    assert warned[0].filename == __file__
    with pytest.raises(AttributeError, match="no field 'max_requests'"):
        _ = limits.max_requests  # type: ignore[attr-defined]
