"""Metrics of a load test: what the client measured of each request, and their summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from aethermind.engine.simulation.metrics import Latency

__all__ = ["BenchmarkMetrics", "LatencyObjectives", "LoadTest", "RequestOutcome"]


@dataclass(slots=True)
class RequestOutcome:
    """The measured times of one request, in seconds of one clock. Mutable while it is recorded.

    `due_s` is when it should have been sent: a late client counts as waiting time, which avoids coordinated omission.
    `chunk_times_s` has the arrival time of each streamed chunk of text. `num_output_tokens` is the server's count, else
    the number of chunks. `failure` is the kind of failure, such as "HTTP 429"; None for an answer.
    """

    due_s: float
    num_prompt_tokens: int
    num_output_tokens: int = 0
    chunk_times_s: list[float] = field(default_factory=list)
    finished_s: float = 0.0
    failure: str | None = None

    @property
    def ttft_s(self) -> float:
        """Time to first token (TTFT)."""
        return self.chunk_times_s[0] - self.due_s

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first (TPOT); None for a single token."""
        steps = self.num_output_tokens - 1
        return (self.chunk_times_s[-1] - self.chunk_times_s[0]) / steps if steps > 0 else None

    @property
    def e2e_s(self) -> float:
        """End-to-end latency, from `due_s` to the end of the answer."""
        return self.finished_s - self.due_s


@dataclass(slots=True)
class LoadTest:
    """A load test and its outcomes so far. Mutable: an interrupted test keeps the outcomes that it has."""

    url: str
    model: str | None
    """None is the first that the server lists, until it is known."""
    endpoint: str
    api_key: str | None
    outcomes: list[RequestOutcome] = field(default_factory=list)
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LatencyObjectives:
    """Service level objectives of an answer, in milliseconds; None is no objective."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None

    def __bool__(self) -> bool:
        return self.ttft_ms is not None or self.tpot_ms is not None

    def are_met(self, outcome: RequestOutcome) -> bool:
        """Whether an answer meets them. A single token has no TPOT and meets any."""
        meets_ttft = self.ttft_ms is None or outcome.ttft_s * 1e3 <= self.ttft_ms
        return meets_ttft and (self.tpot_ms is None or (outcome.tpot_s or 0.0) * 1e3 <= self.tpot_ms)


@dataclass(frozen=True, slots=True)
class BenchmarkMetrics:
    """Metrics of a load test. Times are in seconds and of answers only; NaN where there is no answer."""

    num_requests: int
    num_completed: int
    num_failed: int
    num_unfinished: int
    """Requests not sent or not answered when the test was interrupted."""
    failures: dict[str, int]
    """Count of each kind of failure, the most frequent first."""
    duration_s: float
    prompt_tokens: int
    output_tokens: int
    requests_per_s: float
    prompt_tokens_per_s: float
    output_tokens_per_s: float
    mean_open: float
    """Mean number of open requests."""
    num_good: int | None
    goodput_per_s: float | None
    """Answers per second that met the objectives (DistServe, Zhong et al. 2024); None without objectives."""
    ttft: Latency
    tpot: Latency
    """Time per output token, the mean of each answer."""
    itl: Latency
    """Inter-token latency: between consecutive streamed chunks, over all answers."""
    e2e: Latency

    @classmethod
    def of(
        cls, outcomes: Sequence[RequestOutcome], *, num_requests: int, duration_s: float, objectives: LatencyObjectives
    ) -> BenchmarkMetrics:
        """Summarise the outcomes of a test of `num_requests` requests that took `duration_s` seconds."""
        done = [outcome for outcome in outcomes if outcome.failure is None]
        failures = Counter(outcome.failure for outcome in outcomes if outcome.failure is not None)
        num_good = sum(map(objectives.are_met, done)) if objectives else None
        prompt_tokens = sum(outcome.num_prompt_tokens for outcome in done)
        output_tokens = sum(outcome.num_output_tokens for outcome in done)
        seconds = max(duration_s, 1e-9)
        return cls(
            num_requests=num_requests,
            num_completed=len(done),
            num_failed=len(outcomes) - len(done),
            num_unfinished=num_requests - len(outcomes),
            failures=dict(failures.most_common()),
            duration_s=duration_s,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            requests_per_s=len(done) / seconds,
            prompt_tokens_per_s=prompt_tokens / seconds,
            output_tokens_per_s=output_tokens / seconds,
            mean_open=sum(outcome.e2e_s for outcome in done) / seconds,
            num_good=num_good,
            goodput_per_s=None if num_good is None else num_good / seconds,
            ttft=Latency.of([outcome.ttft_s for outcome in done]),
            tpot=Latency.of([tpot for outcome in done if (tpot := outcome.tpot_s) is not None]),
            itl=Latency.of([later - earlier for outcome in done for earlier, later in pairwise(outcome.chunk_times_s)]),
            e2e=Latency.of([outcome.e2e_s for outcome in done]),
        )
