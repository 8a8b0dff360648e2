"""The policy's order, its two guarantees, and engines that use it."""

from __future__ import annotations

import pytest

from aethermind import LLM, Runtime, SamplingParams
from aethermind.engine.policies import Request
from aethermind_lanes.policy import TwoLanes

POLICY = TwoLanes()
RUNTIME = Runtime.boot()


def request(request_id: str, arrival: float, max_tokens: int) -> Request:
    return Request(request_id, [1] * 10, SamplingParams(max_tokens=max_tokens), arrival, max_model_len=4096)


def order(*requests: Request, now: float = 100.0) -> list[str]:
    return [one.request_id for one in sorted(requests, key=lambda one: POLICY.order_key(one, now))]


def test_short_requests_overtake_long_ones_for_half_a_minute() -> None:
    long, short, late = request("long", 0.0, 1000), request("short", 29.0, 64), request("late", 31.0, 64)
    assert order(late, long, short) == ["short", "long", "late"]


def test_a_lane_is_first_come_first_served() -> None:
    assert order(request("b", 2.0, 8), request("a", 1.0, 60)) == ["a", "b"]
    assert order(request("d", 2.0, 800), request("c", 1.0, 900)) == ["c", "d"]


@pytest.mark.parametrize("max_tokens", [8, 800])
def test_a_key_never_decreases_and_no_request_starves(max_tokens: int) -> None:
    waiting = request("waiting", 5.0, max_tokens)
    keys = [POLICY.order_key(waiting, now) for now in (5.0, 50.0, 5e6)]
    assert keys == sorted(keys)
    assert keys[-1] < POLICY.order_key(request("newcomer", keys[-1][0] + 0.1, 1), 5e6)


def test_answers_do_not_depend_on_the_order() -> None:
    prompts = ["Once upon a time", "The little fox", "A"]
    params = [SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True) for count in (80, 8, 8)]
    answers = []
    for policy in ("fcfs", "lanes"):
        options = {"scheduling_policy": policy, "max_num_seqs": 1, "max_model_len": 128, "runtime": RUNTIME}
        with LLM("demo", device="cpu", **options) as llm:
            outputs = llm.generate(prompts, params)
            answers.append([output.outputs[0].token_ids for output in outputs])
    assert answers[0] == answers[1]


def test_an_engine_serves_the_fast_lane_first() -> None:
    lengths = {"first": 4, "long": 80, "short": 8}
    seen: dict[str, None] = {}
    with LLM("demo", device="cpu", scheduling_policy="lanes", max_num_seqs=1, runtime=RUNTIME) as llm:
        for name, max_tokens in lengths.items():
            params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
            llm.engine.add_request(name, [5, 6, 7], params)
        while llm.engine.has_unfinished:
            seen |= dict.fromkeys(output.request_id for output in llm.engine.step())
    assert list(seen) == ["first", "short", "long"]
