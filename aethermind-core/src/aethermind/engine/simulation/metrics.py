"""Metrics of a simulated run: latencies of requests, utilisation of the engine, fairness."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from statistics import mean

from aethermind.engine.simulation.cost_model import StepCosts
from aethermind.engine.simulation.simulator import RequestRecord, SimulationResult

__all__ = ["Latency", "SimulationReport", "jain_index", "percentile"]

_NUM_CLASSES = 4


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the percentile of values, interpolated between neighbours; nan if there are none."""
    if not values:
        return nan
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def jain_index(values: Sequence[float]) -> float:
    """Jain's fairness index (Jain, Chiu, Hawe 1984): 1 if all get the same, 1/n if one gets everything."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else nan


@dataclass(frozen=True, slots=True)
class Latency:
    """Percentiles of a time, in seconds."""

    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Latency:
        return cls(*(percentile(values, percent) for percent in (50, 90, 99)))


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """The metrics of one policy on one trace."""

    num_requests: int
    num_rejected: int
    ttft: Latency
    """Time to first token, from arrival."""
    urgent_ttft: Latency
    """Time to first token of requests with a priority below 0."""
    tpot: Latency
    """Time per output token: the mean of a request, without its first token."""
    e2e: Latency
    """From arrival to the last token."""
    in_time: float
    """Share of the requests that were complete by their deadline; nan if none has one."""
    utilisation: float
    """Share of the time in which a step ran."""
    mean_running: float
    mean_waiting: float
    max_waiting: int
    mean_kv_usage: float
    num_preemptions: int
    cached_share: float
    """Share of the prompt tokens that were reused from the prefix cache."""
    output_tokens_per_s: float
    fairness: float
    """Jain's index over tenants, or over four classes of requests by size. The compared value is the mean
    normalised speed: the time of a request alone, divided by its time in the run.
    """
    num_steps: int
    makespan_s: float

    @classmethod
    def of(cls, run: SimulationResult, costs: StepCosts, chunk: int) -> SimulationReport:
        """Summarise a run; `chunk` is the most prompt tokens of a step."""
        done = [record for record in run.records if record.finished_s is not None]
        ttft = [_since(record, record.first_token_s) for record in done]
        tpots = [
            (_since(record, record.finished_s) - first) / (record.trace.num_output_tokens - 1)
            for record, first in zip(done, ttft, strict=True)
            if record.trace.num_output_tokens > 1
        ]
        urgent = [first for record, first in zip(done, ttft, strict=True) if (record.trace.priority or 0) < 0]
        with_deadline = [record for record in run.records if record.trace.deadline_ms is not None]
        prompt_tokens = sum(record.trace.num_prompt_tokens for record in done)
        output_tokens = sum(record.trace.num_output_tokens for record in done)
        busy, total = max(run.busy_s, 1e-12), max(run.makespan_s, 1e-12)
        return cls(
            num_requests=len(run.records),
            num_rejected=run.num_rejected,
            ttft=Latency.of(ttft),
            urgent_ttft=Latency.of(urgent),
            tpot=Latency.of(tpots),
            e2e=Latency.of([_since(record, record.finished_s) for record in done]),
            in_time=sum(map(_is_in_time, with_deadline)) / len(with_deadline) if with_deadline else nan,
            utilisation=run.busy_s / total,
            mean_running=run.running_s / busy,
            mean_waiting=run.waiting_s / total,
            max_waiting=run.max_waiting,
            mean_kv_usage=run.kv_usage_s / busy,
            num_preemptions=sum(record.num_preemptions for record in done),
            cached_share=sum(record.num_cached_tokens for record in done) / max(prompt_tokens, 1),
            output_tokens_per_s=output_tokens / total,
            fairness=jain_index([mean(speeds) for speeds in _normalized_speeds(done, costs, chunk)]),
            num_steps=run.num_steps,
            makespan_s=run.makespan_s,
        )


def _since(record: RequestRecord, time_s: float | None) -> float:
    """Return the seconds from the arrival of a finished request to a time of it."""
    assert time_s is not None, "a finished request has its times"
    return time_s - record.trace.arrival_s


def _is_in_time(record: RequestRecord) -> bool:
    deadline_ms = record.trace.deadline_ms
    return record.finished_s is not None and _since(record, record.finished_s) * 1e3 <= (deadline_ms or 0.0)


def _normalized_speeds(records: Sequence[RequestRecord], costs: StepCosts, chunk: int) -> list[list[float]]:
    """Return, by tenant or by class of size, each request's time alone divided by its time in the run."""
    sizes = sorted(record.trace.num_prompt_tokens + record.trace.num_output_tokens for record in records)
    bounds = [sizes[len(sizes) * index // _NUM_CLASSES] for index in range(1, _NUM_CLASSES)] if sizes else []
    has_tenants = any(record.trace.tenant is not None for record in records)
    groups: dict[object, list[float]] = defaultdict(list)
    for record in records:
        traced = record.trace
        size = traced.num_prompt_tokens + traced.num_output_tokens
        group: object = traced.tenant if has_tenants else sum(size >= bound for bound in bounds)
        alone_s = costs.alone_s(max(traced.num_prompt_tokens, 1), max(traced.num_output_tokens, 1), chunk)
        groups[group].append(alone_s / max(_since(record, record.finished_s), 1e-12))
    return list(groups.values())
