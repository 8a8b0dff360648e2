"""A run in figures: how long answers took, how many came, and how many of them in time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from aethermind.cli.bench.serve.outcome import Outcome
from aethermind.engine.simulation.metrics import Latency

__all__ = ["Figures", "Goals"]


@dataclass(frozen=True, slots=True)
class Goals:
    """What an answer has to keep to count as good, in milliseconds; None does not matter."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None

    def __bool__(self) -> bool:
        return self.ttft_ms is not None or self.tpot_ms is not None

    def are_met(self, outcome: Outcome) -> bool:
        """Whether an answer came in time. One token has no time per output token, and so keeps any."""
        has_begun = self.ttft_ms is None or outcome.ttft_s * 1e3 <= self.ttft_ms
        return has_begun and (self.tpot_ms is None or (outcome.tpot_s or 0.0) * 1e3 <= self.tpot_ms)


@dataclass(frozen=True, slots=True)
class Figures:
    """A run as a whole. Times are in seconds and of answers only; nan where there is none."""

    num_requests: int
    num_completed: int
    num_failed: int
    num_unfinished: int
    """Requests that were not sent or not answered when the run was interrupted."""
    failures: dict[str, int]
    """How often each kind, the most frequent first."""
    duration_s: float
    prompt_tokens: int
    output_tokens: int
    requests_per_s: float
    prompt_tokens_per_s: float
    output_tokens_per_s: float
    mean_open: float
    """Answers open at a time, on average."""
    num_good: int | None
    goodput_per_s: float | None
    """Answers a second that met the goals (DistServe, Zhong et al. 2024); None without goals."""
    ttft: Latency
    tpot: Latency
    """Time per output token, averaged over an answer."""
    itl: Latency
    """Inter-token latency: between two pieces of text of an answer, whatever the answer."""
    e2e: Latency

    @classmethod
    def of(cls, outcomes: Sequence[Outcome], *, num_requests: int, duration_s: float, goals: Goals) -> Figures:
        """Sum up the outcomes of what was `num_requests` requests, in `duration_s` seconds."""
        done = [one for one in outcomes if one.failure is None]
        failures = Counter(one.failure for one in outcomes if one.failure is not None)
        num_good = sum(map(goals.are_met, done)) if goals else None
        prompt_tokens = sum(one.num_prompt_tokens for one in done)
        output_tokens = sum(one.num_output_tokens for one in done)
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
            mean_open=sum(one.e2e_s for one in done) / seconds,
            num_good=num_good,
            goodput_per_s=None if num_good is None else num_good / seconds,
            ttft=Latency.of([one.ttft_s for one in done]),
            tpot=Latency.of([tpot for one in done if (tpot := one.tpot_s) is not None]),
            itl=Latency.of([later - earlier for one in done for earlier, later in pairwise(one.texts_s)]),
            e2e=Latency.of([one.e2e_s for one in done]),
        )
