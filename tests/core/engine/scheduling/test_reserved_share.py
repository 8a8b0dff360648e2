"""The share of sequences and blocks that the policy `priority` reserves for VIP requests."""

from __future__ import annotations

import pytest
from tests.core.engine.engines import open_engine

from aethermind import RequestOptions, Runtime, SamplingParams
from aethermind.engine.engine import Engine

LONG = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
VIP = RequestOptions(priority=-10)


def add(engine: Engine, *names: str, options: RequestOptions | None = None, length: int = 8, n: int = 1) -> None:
    for name in names:
        params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, n=n, seed=1)
        engine.add_request(name, [3 + len(name)] * length, params, options=options)


def running(engine: Engine) -> list[str]:
    engine.step()
    return sorted(request.request_id for request in engine.running)


def test_a_vip_request_finds_a_sequence_free(runtime: Runtime) -> None:
    engine = open_engine(runtime, "null", scheduling_policy="priority:vip_share=0.5", max_num_seqs=4)
    add(engine, "a", "b", "c", "d")
    assert running(engine) == ["a", "b"]
    add(engine, "v", options=VIP)
    assert running(engine) == ["a", "b", "v"]
    add(engine, "w", "x", options=VIP)
    assert running(engine) == ["a", "b", "v", "w"], "all four sequences are used"
    engine.abort("a")
    assert running(engine) == ["b", "v", "w", "x"], "VIP requests may take more than their share"


def test_a_vip_request_finds_blocks_free(runtime: Runtime) -> None:
    limits = {"num_kv_blocks": 8, "block_size": 4, "max_num_seqs": 4, "enable_prefix_caching": False}
    engine = open_engine(runtime, "null", scheduling_policy="priority:vip_share=0.5", **limits)
    add(engine, "a", "b", length=10)
    assert running(engine) == ["a"], "b needs 3 blocks, and a reserve of 4 leaves one"
    add(engine, "v", length=14, options=VIP)
    assert running(engine) == ["a", "v"]
    engine = open_engine(runtime, "null", scheduling_policy="priority", **limits)
    add(engine, "a", "b", length=10)
    assert running(engine) == ["a", "b"]


def test_the_forks_of_a_request_leave_the_reserve(runtime: Runtime) -> None:
    engine = open_engine(runtime, "null", scheduling_policy="priority:vip_share=0.5", max_num_seqs=4)
    add(engine, "a", n=4)
    running(engine)
    assert running(engine) == ["a", "a/1"]
    engine = open_engine(runtime, "null", scheduling_policy="priority", max_num_seqs=4)
    add(engine, "a", n=4)
    running(engine)
    assert running(engine) == ["a", "a/1", "a/2", "a/3"]


@pytest.mark.parametrize("share", [0.3, 0.99])
def test_all_requests_finish_under_a_reserve(runtime: Runtime, share: float) -> None:
    limits = {"num_kv_blocks": 12, "block_size": 4, "max_num_seqs": 3}
    engine = open_engine(runtime, "null", scheduling_policy=f"priority:vip_share={share}", **limits)
    for number in range(12):
        add(engine, f"r{number}", options=VIP if number % 3 == 0 else None, length=1 + number)
    finished = set()
    for _ in range(2000):
        finished |= {output.request_id for output in engine.step() if output.finished and output.error is None}
        if not engine.has_unfinished:
            break
    assert len(finished) == 12
