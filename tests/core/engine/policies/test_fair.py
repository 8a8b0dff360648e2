"""Fair sharing between tenants: order, preemption, and the latency of a tenant with few requests."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.engine.engines import open_engine
from tests.core.engine.loops import Loop

from aethermind import RequestOptions, Runtime, SamplingParams
from aethermind.engine.engine import Engine
from aethermind.engine.policies import FairShare
from aethermind.engine.requests.request import Request
from aethermind.errors import InvalidArgumentError

POLICY = FairShare(spacing_s=10.0)


def come(arrival: float, tenant: str, waiting: list[Request], running: list[Request]) -> Request:
    """A request that comes to these."""
    request = Request(
        f"{tenant} {arrival}", [1], SamplingParams(), arrival, max_model_len=9, options=RequestOptions(tenant=tenant)
    )
    request.virtual_arrival = POLICY.virtual_arrival(request, waiting, running)
    return request


def test_a_tenants_first_request_precedes_the_queue_of_another() -> None:
    crowd: list[Request] = []
    for number in range(4):
        crowd.append(come(number / 10, "crowd", crowd, []))
    light = come(5.0, "light", crowd, [])
    assert [round(request.virtual_arrival, 3) for request in crowd] == [0.0, 10.1, 20.2, 30.3]
    order = sorted([*crowd, light], key=lambda request: POLICY.order_key(request, 99.0))
    assert order == [crowd[0], light, *crowd[1:]]
    assert come(35.0, "late", crowd, []).virtual_arrival > crowd[-1].virtual_arrival  # so it does not starve


def test_within_a_tenant_it_is_first_come_first_served() -> None:
    running = [come(0.0, "one", [], []) for _ in range(5)]
    waits = come(1.0, "one", [], running)
    later = come(2.0, "one", [waits], [])  # when the others have left
    assert POLICY.order_key(waits, 9.0) < POLICY.order_key(later, 9.0)


def test_the_last_request_of_the_tenant_that_runs_most_is_preempted() -> None:
    running: list[Request] = []
    for tenant, count in (("most", 4), ("some", 2)):
        for number in range(count):
            running.append(come(float(number), tenant, [], running))
    last = max((one for one in running if one.tenant == "most"), key=lambda one: one.virtual_arrival)
    light, some, most = (come(9.0, tenant, [], running) for tenant in ("light", "some", "most"))
    assert POLICY.choose_victim(light, running, running) is last
    assert POLICY.choose_victim(some, running, running) is last
    assert POLICY.choose_victim(most, running, running) is None
    assert POLICY.choose_victim(light, running, [one for one in running if one.tenant == "some"]) is running[-1]


def test_spacing_must_be_positive_and_finite() -> None:
    with pytest.raises(InvalidArgumentError, match="spacing_s"):
        FairShare(spacing_s=0.0)


def steps_to_first_token(engine: Engine, num_others: int, prompt_tokens: int = 8) -> int:
    """Steps that a light user waits beside others' requests, which came before and keep coming as they end."""
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    crowd, num_steps = RequestOptions(tenant="crowd"), 0
    for number in range(num_others):
        engine.add_request(f"crowd {number}", [number + 1] * 20, params, options=crowd)
    num_asked = num_others
    while True:
        if num_steps == 12 or not num_others:
            options = RequestOptions(tenant="light")
            engine.add_request("light", [7] * prompt_tokens, params, options=options)
            arrived = num_steps
            num_others = num_others or -1
        num_steps += 1
        for output in engine.step():
            if output.request_id == "light":
                return num_steps - arrived
            if output.finished:
                engine.add_request(f"crowd {num_asked}", [num_asked % 900 + 1] * 20, params, options=crowd)
                num_asked += 1


@pytest.mark.parametrize(
    "capacity", [{"max_num_seqs": 8}, {"max_num_seqs": 64, "num_kv_blocks": 40}, {"max_num_seqs": 64}], ids=str
)
def test_a_tenant_with_few_requests_is_not_delayed_by_one_with_many(runtime: Runtime, capacity: dict[str, int]) -> None:
    limits = {"max_num_batched_tokens": 72, "block_size": 4, "device": "null", **capacity}
    alone = steps_to_first_token(open_engine(runtime, scheduling_policy="fair", **limits), 0)
    beside = steps_to_first_token(open_engine(runtime, scheduling_policy="fair", **limits), 64)
    assert beside <= alone + 3
    unfair = steps_to_first_token(open_engine(runtime, scheduling_policy="fcfs", **limits), 64)
    assert unfair > alone + 3


@pytest.mark.parametrize(
    ("options", "sampling"), [({}, {}), ({"kv_store": "host:64MiB"}, {}), ({}, {"prompt_logprobs": 0}), ({}, {"n": 3})]
)
def test_open_requests_count_wherever_they_wait(
    runtime: Runtime, options: dict[str, str], sampling: dict[str, Any]
) -> None:
    engine = open_engine(runtime, "null", block_size=4, **options)
    params = SamplingParams(temperature=1.0, max_tokens=6, **sampling)
    for number in range(3):
        engine.add_request(f"crowd {number}", [number + 1] * 20, params, options=RequestOptions(tenant="crowd"))
    requests = [builder.request for builder in engine._outputs.values()]
    firsts = requests[:: params.n]
    assert [round(one.virtual_arrival - one.arrival) for one in firsts] == [
        30 * params.n * number for number in range(3)
    ]
    assert [one.virtual_arrival for one in requests] == [
        first.virtual_arrival for first in firsts for _ in range(params.n)
    ]
    while engine.has_unfinished:
        engine.step()
    engine.close()


def crowded(num_others: int, limits: dict[str, int]) -> Loop:
    """A loop in which a tenant runs some requests of three blocks each."""
    loop = Loop(policy=POLICY, **limits)
    for _ in range(num_others):
        loop.add(9, max_tokens=4, tenant="crowd")
    loop.step()
    assert len(loop.running) == num_others
    return loop


@pytest.mark.parametrize(
    ("num_seats", "num_prompt"), [(8, 48), (3, 48)], ids=["no blocks", "no blocks and no sequences"]
)
def test_no_request_is_preempted_if_that_does_not_free_enough_blocks(num_seats: int, num_prompt: int) -> None:
    loop = crowded(3, {"num_blocks": 13, "max_num_seqs": num_seats})
    light = loop.add(num_prompt, tenant="light")
    assert loop.step().preempted == []
    assert loop.scheduler.runs_without_preemption(loop.now, loop.waiting, loop.running, loop.budget)
    loop.run()
    assert light in loop.finished


def test_as_many_requests_are_preempted_as_needed_in_one_step() -> None:
    loop = crowded(4, {"num_blocks": 13, "max_num_seqs": 4})
    *_, third, last = loop.running
    light = loop.add(26, tenant="light")
    assert not loop.scheduler.runs_without_preemption(loop.now, loop.waiting, loop.running, loop.budget)
    assert loop.step().preempted == [last, third]
    assert light in loop.running


def test_blocks_that_a_victim_shares_with_the_new_request_count_once() -> None:
    loop = Loop(policy=POLICY, num_blocks=13, is_reusing=True)
    loop.add(5, max_tokens=30, tenant="crowd")
    other = loop.add(17, max_tokens=30, tenant="crowd")
    victim = loop.add(16, max_tokens=30, tenant="crowd", family=1)
    loop.step()
    light = loop.add(36, tenant="light", family=1)  # nine blocks, of which four are the victim's
    assert loop.step().preempted == [victim, other]
    assert light in loop.running


def test_preemption_for_another_tenant_changes_no_token(runtime: Runtime) -> None:
    def answers(policy: str, max_num_seqs: int) -> dict[str, list[int]]:
        engine = open_engine(runtime, scheduling_policy=policy, max_num_seqs=max_num_seqs, block_size=4)
        params, found = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True), {}
        for number in range(4):
            engine.add_request(f"crowd {number}", [number + 5] * 9, params, options=RequestOptions(tenant="crowd"))
        for _ in range(3):
            engine.step()
        engine.add_request("light", [4, 8, 15], params, options=RequestOptions(tenant="light"))
        while engine.has_unfinished:
            found.update({one.request_id: one.outputs[0].token_ids for one in engine.step() if one.finished})
        assert (engine.num_preemptions > 0) == (policy == "fair")
        return found

    assert answers("fair", 2) == answers("fcfs", 8)
