"""Replays a request trace through the real scheduler and KV block manager on a virtual clock, without a model."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from aethermind.cache import BlockPool, HashedPrefixCache, KVCache, KVCacheSpec
from aethermind.engine.policies.base import SchedulingPolicy, sharing_policy
from aethermind.engine.requests.request import FinishReason, Request, RequestOptions
from aethermind.engine.scheduling.decision import ScheduleDecision, StepBudget
from aethermind.engine.scheduling.scheduler import Scheduler, WaitingQueue, publish_prefix
from aethermind.engine.simulation.cost_model import StepCosts
from aethermind.engine.simulation.trace import HASH_BLOCK_TOKENS, TraceRequest
from aethermind.sampling.params import SamplingParams

__all__ = ["RequestRecord", "SimulationResult", "simulate"]

_REPORT_EVERY_STEPS = 64
"""Steps between two progress reports."""
_DUMMY_TOKEN_ID = -1
"""The id of all output tokens. No prompt token has it."""


@dataclass(slots=True)
class RequestRecord:
    """The result of one request, in seconds of the virtual clock. Mutable while it runs."""

    trace: TraceRequest
    first_token_s: float | None = None
    finished_s: float | None = None
    num_preemptions: int = 0
    num_cached_tokens: int = 0


@dataclass(slots=True)
class SimulationResult:
    """The result of a simulation: one record per request, and totals over all steps. Mutable while it runs."""

    records: list[RequestRecord]
    num_rejected: int = 0
    num_steps: int = 0
    busy_s: float = 0.0
    """Time spent in steps."""
    makespan_s: float = 0.0
    """Time from 0 to the end of the last step."""
    running_s: float = 0.0
    """Number of running requests, integrated over time; `waiting_s` and `kv_usage_s` are the integrals of the waiting
    requests and of KV cache usage.
    """
    waiting_s: float = 0.0
    kv_usage_s: float = 0.0
    max_waiting: int = 0
    num_computed_tokens: int = 0
    queue_lengths: list[tuple[float, int]] = field(default_factory=list)
    """`(time, number of waiting requests)` at each change."""


def simulate(
    trace: Sequence[TraceRequest],
    policy: SchedulingPolicy,
    budget: StepBudget,
    costs: StepCosts,
    *,
    num_kv_blocks: int,
    block_size: int,
    on_progress: Callable[[int, int], None] | None = None,
) -> SimulationResult:
    """Simulate a trace, sorted by arrival time, until every request is finished or rejected.

    Prefix caching uses the trace's `hash_ids`; it is off if no request has any. `on_progress` is called with the number
    of finished requests and the total number.
    """
    # `_request` gives an empty request one prompt token and one output token, hence the 2.
    max_model_len = max(traced.num_prompt_tokens + traced.num_output_tokens for traced in trace) + 2
    cache = _open_cache(num_kv_blocks, block_size, max_model_len, has_prefixes=any(traced.hash_ids for traced in trace))
    scheduler, waiting, running = Scheduler(cache, policy), WaitingQueue(policy), list[Request]()
    sharing = sharing_policy(policy)
    result = SimulationResult([RequestRecord(traced) for traced in trace])
    records: dict[Request, RequestRecord] = {}
    now, num_arrived, num_done = 0.0, 0, 0
    while num_arrived < len(trace) or waiting or running:
        if not waiting and not running:
            now = max(now, trace[num_arrived].arrival_s)
        while num_arrived < len(trace) and trace[num_arrived].arrival_s <= now:
            request = _request(num_arrived, trace[num_arrived], max_model_len)
            records[request] = result.records[num_arrived]
            if sharing is not None:
                request.virtual_arrival = sharing.virtual_arrival(request, waiting, running)
            waiting.add(request, now)
            num_arrived += 1
        _record_queue_length(result, now, len(waiting))
        decision = scheduler.schedule(now, waiting, running, budget)
        for rejection in decision.rejected:
            scheduler.finish(rejection.request, FinishReason.ABORT, waiting, running)
            del records[rejection.request]
            result.num_rejected += 1
            num_done += 1
        if not decision.scheduled:
            continue  # there were only rejections: schedule again at the same time
        seconds = costs.step_s(decision)
        now += seconds
        _add_step(result, seconds, len(running), len(waiting), cache.usage, decision.num_batched_tokens)
        scheduler.advance(decision)
        publish_prefix(cache, decision)
        for request, reason in _sample(decision, records, now):
            scheduler.finish(request, reason, waiting, running)
            _finish(records.pop(request), request, now)
            num_done += 1
        if on_progress is not None and result.num_steps % _REPORT_EVERY_STEPS == 0:
            on_progress(num_done, len(trace))
    result.makespan_s = now
    return result


def _open_cache(num_kv_blocks: int, block_size: int, max_model_len: int, *, has_prefixes: bool) -> KVCache:
    pool = BlockPool(num_kv_blocks)
    prefix_cache = HashedPrefixCache(pool, block_size) if has_prefixes else None
    spec = KVCacheSpec.uniform(1, 1, 8, "float32", block_size)  # any shape: only the number of blocks matters
    return KVCache(spec, num_kv_blocks, max_model_len, prefix_cache=prefix_cache, pool=pool)


def _sample(
    decision: ScheduleDecision, records: Mapping[Request, RequestRecord], now: float
) -> list[tuple[Request, FinishReason]]:
    """Append a token to each request that samples one, and return those that end with it."""
    finished = []
    for request, _, needs_logits in decision.scheduled:
        if not needs_logits:
            continue
        if not request.output_token_ids:
            records[request].first_token_s = now
        reason = request.append_token(_DUMMY_TOKEN_ID)
        if reason is not None:
            finished.append((request, reason))
    return finished


def _request(index: int, traced: TraceRequest, max_model_len: int) -> Request:
    params = SamplingParams(max_tokens=max(traced.num_output_tokens, 1), ignore_eos=True)
    options = RequestOptions(
        priority=traced.priority or 0,
        deadline_ms=traced.deadline_ms,
        tenant="" if traced.tenant is None else traced.tenant,
    )
    prompt = _token_ids(index, traced)
    return Request(f"{index:08}", prompt, params, traced.arrival_s, max_model_len=max_model_len, options=options)


def _token_ids(index: int, traced: TraceRequest) -> Sequence[int]:
    """Return token ids, equal where the trace's hash ids are; tokens without hash ids are unique to the request."""
    count = max(traced.num_prompt_tokens, 1)
    ids = array("q")
    for hash_id in traced.hash_ids:
        ids.extend(range(hash_id * HASH_BLOCK_TOKENS, (hash_id + 1) * HASH_BLOCK_TOKENS))
    ids.extend([-2 - index] * (count - len(ids)))
    return ids[:count].tolist()


def _record_queue_length(result: SimulationResult, now: float, num_waiting: int) -> None:
    result.max_waiting = max(result.max_waiting, num_waiting)
    if not result.queue_lengths or result.queue_lengths[-1][1] != num_waiting:
        result.queue_lengths.append((now, num_waiting))


def _add_step(
    result: SimulationResult, seconds: float, num_running: int, num_waiting: int, usage: float, num_tokens: int
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
