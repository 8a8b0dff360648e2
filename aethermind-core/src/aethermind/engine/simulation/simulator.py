"""Simulation of a trace through the scheduler and the KV cache's bookkeeping, on a virtual clock."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from aethermind.cache import BlockPool, HashedPrefixCache, KVCache, KVCacheSpec
from aethermind.engine.policies.base import SchedulingPolicy, sharing_policy
from aethermind.engine.requests.request import FinishReason, Request, RequestOptions
from aethermind.engine.scheduling.decision import StepBudget
from aethermind.engine.scheduling.scheduler import Scheduler, WaitingQueue, publish_prefix
from aethermind.engine.simulation.cost_model import StepCosts
from aethermind.engine.simulation.trace import HASH_BLOCK_TOKENS, TraceRequest
from aethermind.sampling.params import SamplingParams

__all__ = ["RequestRecord", "Simulation", "simulate"]

_REPORT_EVERY = 64
"""Steps between two progress reports."""


@dataclass(slots=True)
class RequestRecord:
    """The result of one request, in seconds of the virtual clock. Mutable while it runs."""

    trace: TraceRequest
    first_token_s: float | None = None
    finished_s: float | None = None
    num_preemptions: int = 0
    num_cached_tokens: int = 0


@dataclass(slots=True)
class Simulation:
    """A run: its requests, and sums over its steps. Mutable while it runs."""

    records: list[RequestRecord]
    num_rejected: int = 0
    num_steps: int = 0
    busy_s: float = 0.0
    makespan_s: float = 0.0
    running_s: float = 0.0
    """Running requests, integrated over time; likewise the next two."""
    waiting_s: float = 0.0
    kv_usage_s: float = 0.0
    max_waiting: int = 0
    num_computed_tokens: int = 0
    queue: list[tuple[float, int]] = field(default_factory=list)
    """`(time, waiting requests)` at each change."""


def simulate(
    trace: Sequence[TraceRequest],
    policy: SchedulingPolicy,
    budget: StepBudget,
    costs: StepCosts,
    *,
    num_kv_blocks: int,
    block_size: int,
    on_progress: Callable[[int, int], None] | None = None,
) -> Simulation:
    """Run a trace, sorted by arrival, to its end.

    Prefix caching uses the `hash_ids` of prompts; without any it is off. `on_progress` gets the numbers of finished and
    of all requests.
    """
    longest = max(traced.num_prompt_tokens + traced.num_output_tokens for traced in trace)
    pool = BlockPool(num_kv_blocks)
    has_prefixes = any(traced.hash_ids for traced in trace)
    prefix_cache = HashedPrefixCache(pool, block_size) if has_prefixes else None
    spec = KVCacheSpec.uniform(1, 1, 8, "float32", block_size)
    cache = KVCache(spec, num_kv_blocks, longest + 2, prefix_cache=prefix_cache, pool=pool)
    scheduler, waiting, running = Scheduler(cache, policy), WaitingQueue(policy), list[Request]()
    sharing = sharing_policy(policy)
    result = Simulation([RequestRecord(traced) for traced in trace])
    records: dict[Request, RequestRecord] = {}
    now, num_arrived, num_done = 0.0, 0, 0
    while num_arrived < len(trace) or waiting or running:
        if not waiting and not running:
            now = max(now, trace[num_arrived].arrival_s)
        while num_arrived < len(trace) and trace[num_arrived].arrival_s <= now:
            request = _request(num_arrived, trace[num_arrived], longest + 2)
            records[request] = result.records[num_arrived]
            if sharing is not None:
                request.virtual_arrival = sharing.virtual_arrival(request, waiting, running)
            waiting.add(request, now)
            num_arrived += 1
        _note_queue(result, now, len(waiting))
        decision = scheduler.schedule(now, waiting, running, budget)
        for rejection in decision.rejected:
            scheduler.finish(rejection.request, FinishReason.ABORT, waiting, running)
            del records[rejection.request]
            result.num_rejected += 1
            num_done += 1
        if not decision.scheduled:
            continue
        seconds = costs.step_s(decision)
        now += seconds
        _add_step(result, seconds, len(running), len(waiting), cache.usage, decision.num_batched_tokens)
        scheduler.advance(decision)
        publish_prefix(cache, decision)
        for request, _, needs_logits in decision.scheduled:
            if not needs_logits:
                continue
            if not request.output_token_ids:
                records[request].first_token_s = now
            reason = request.append_token(-1)
            if reason is not None:
                scheduler.finish(request, reason, waiting, running)
                _finish(records.pop(request), request, now)
                num_done += 1
        if on_progress is not None and result.num_steps % _REPORT_EVERY == 0:
            on_progress(num_done, len(trace))
    result.makespan_s = now
    return result


def _request(index: int, one: TraceRequest, max_model_len: int) -> Request:
    params = SamplingParams(max_tokens=max(one.num_output_tokens, 1), ignore_eos=True)
    options = RequestOptions(
        priority=one.priority or 0, deadline_ms=one.deadline_ms, tenant="" if one.tenant is None else one.tenant
    )
    prompt = _token_ids(index, one)
    return Request(f"{index:08}", prompt, params, one.arrival_s, max_model_len=max_model_len, options=options)


def _token_ids(index: int, one: TraceRequest) -> Sequence[int]:
    """Return token ids that are equal where the trace's hash ids are, and unique to the request beyond those."""
    count = max(one.num_prompt_tokens, 1)
    ids = array("q")
    for hash_id in one.hash_ids:
        ids.extend(range(hash_id * HASH_BLOCK_TOKENS, (hash_id + 1) * HASH_BLOCK_TOKENS))
    ids.extend([-2 - index] * (count - len(ids)))
    return ids[:count].tolist()


def _note_queue(result: Simulation, now: float, num_waiting: int) -> None:
    result.max_waiting = max(result.max_waiting, num_waiting)
    if not result.queue or result.queue[-1][1] != num_waiting:
        result.queue.append((now, num_waiting))


def _add_step(
    result: Simulation, seconds: float, num_running: int, num_waiting: int, usage: float, num_tokens: int
) -> None:
    result.num_steps += 1
    result.busy_s += seconds
    result.running_s += seconds * num_running
    result.waiting_s += seconds * num_waiting
    result.kv_usage_s += seconds * usage
    result.num_computed_tokens += num_tokens


def _finish(record: RequestRecord, request: Request, now: float) -> None:
    record.finished_s = now
    record.num_preemptions = request.num_preemptions
    record.num_cached_tokens = request.num_cached_tokens
