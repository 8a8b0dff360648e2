"""The number of draft tokens that a step verifies, chosen for the highest measured throughput.

With an acceptance rate of *a*, *k* drafts yield a + a² + … + aᵏ additional tokens. A step with drafts takes longer, by
the rows that verify them and by the time of drafting. The controller chooses the number of drafts, 0 included, with the
most tokens per second, and takes the most likely drafts of all requests first.

A *plain step* is a step of decodes without drafts. The costs of drafts are unknown until they are measured by *trials*:
steps with drafts that may take longer than they save. A time budget in seconds limits the loss. Every plain step adds a
share of its time (`_TRIAL_SHARE`) to the budget and subtracts the controller's own time; a step with drafts adds the
time it saved, or subtracts the time it lost. There are no trials while the budget is negative. Below a limit there are
no drafts at all: the controller pauses until the budget is positive again, and steps have no overhead meanwhile. A
trial that loses time doubles the number of steps until the next trial; one that saves time, or a request that was never
tried, resets it. So a run is slower than one without drafts by at most that share and two steps, even if estimates are
wrong.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["AcceptanceEstimator", "Candidate", "SpeculationController", "StepTimes"]

_PRIOR_RATE = 0.5
"""Acceptance rate before any observation."""
_PRIOR_DRAFTS = 2.0
"""The number of observed drafts that the prior rate counts as."""
_DECAY_PER_VERIFICATION = 0.9
_DECAY_OVER_REQUESTS = 0.98
_DECAY_PER_STEP = 0.99
"""Decay of a request's counts with each verification, of the counts of all requests with each verification, and of a
request's counts with each step.
"""


class _AcceptanceCounts:
    """Numbers of verified and of accepted drafts, with exponential decay; `step` is that of the last decay."""

    __slots__ = ("num_accepted", "num_verified", "step")

    def __init__(self, step: int) -> None:
        self.num_accepted = 0.0
        self.num_verified = 0.0
        self.step = step

    def decay(self, factor: float) -> None:
        self.num_accepted *= factor
        self.num_verified *= factor

    def add(self, num_accepted: int, num_verified: int) -> None:
        self.num_accepted += num_accepted
        self.num_verified += num_verified

    def rate(self, prior: float) -> float:
        return (self.num_accepted + _PRIOR_DRAFTS * prior) / (self.num_verified + _PRIOR_DRAFTS)


class AcceptanceEstimator:
    """Estimates each request's acceptance rate: the probability that a draft is accepted if those before it are.

    A request's own observations decay with each verification and with each step, towards the rate of all requests, so
    that drafts of a request with a low rate are tried again.
    """

    def __init__(self) -> None:
        self._all_requests = _AcceptanceCounts(0)
        self._requests: dict[str, _AcceptanceCounts] = {}

    def has_observed(self, request_id: str) -> bool:
        """Whether any drafts of a request were verified."""
        return request_id in self._requests

    def rate(self, request_id: str, step: int) -> float:
        """Return the estimate at this step, from 0 to 1."""
        counts = self._requests.get(request_id)
        prior = self._all_requests.rate(_PRIOR_RATE)
        if counts is None:
            return prior
        counts.decay(_DECAY_PER_STEP ** (step - counts.step))
        counts.step = step
        return counts.rate(prior)

    def observe(self, request_id: str, step: int, num_drafts: int, num_accepted: int) -> None:
        """Record one verification. Drafts after the first wrong one do not count: they were not compared."""
        num_verified = min(num_accepted + 1, num_drafts)
        counts = self._requests.setdefault(request_id, _AcceptanceCounts(step))
        for observed, factor in ((counts, _DECAY_PER_VERIFICATION), (self._all_requests, _DECAY_OVER_REQUESTS)):
            observed.decay(factor)
            observed.add(num_accepted, num_verified)

    def forget(self, request_id: str) -> None:
        """Drop the observations of a request that has ended."""
        self._requests.pop(request_id, None)


_EMA_WEIGHT = 0.2
_NUM_FIRST_STEPS = 4
"""Of so many first observations of a size the least counts."""


class StepTimes:
    """Seconds of a step by its size in tokens: a moving average for each observed size, interpolated between sizes.

    Of the first few observations the least counts, because they include one-time costs. Later ones count as no more
    than twice the average, so that an interruption of the process has little effect. Mutable.
    """

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._counts: dict[int, int] = {}
        self._sizes: list[int] = []

    def observe(self, size: int, seconds: float) -> None:
        """Record one step."""
        count = self._counts[size] = self._counts.get(size, 0) + 1
        if count == 1:
            insort(self._sizes, size)
            self._seconds[size] = seconds
        elif count <= _NUM_FIRST_STEPS:
            self._seconds[size] = min(seconds, self._seconds[size])
        else:
            mean = self._seconds[size]
            self._seconds[size] = mean + _EMA_WEIGHT * (min(seconds, 2 * mean) - mean)

    def known(self, size: int) -> float | None:
        """Return the average of exactly this size; None if it was not observed."""
        return self._seconds.get(size)

    def estimate(self, size: int, known: tuple[int, float]) -> float | None:
        """Estimate the seconds of a size above `known`, a pair (size, seconds); None if no larger size was observed.

        The estimate is interpolated linearly, and extrapolated above the largest observed size.
        """
        first = bisect_right(self._sizes, known[0])
        if first == len(self._sizes):
            return None
        index = bisect_left(self._sizes, size, first)
        high = self._point(min(index, len(self._sizes) - 1))
        low = self._point(index - 1) if first < index < len(self._sizes) else known
        slope = (high[1] - low[1]) / (high[0] - low[0])
        return low[1] + max(slope, 0.0) * (size - low[0])

    def _point(self, index: int) -> tuple[int, float]:
        return self._sizes[index], self._seconds[self._sizes[index]]


_TRIAL_SHARE = 0.01
"""Share of the time of plain steps that may be lost on trials."""
_MAX_BALANCE_STEPS = 1.0
"""The largest balance of the budget, in plain steps."""
_MAX_DEBT_STEPS = 0.5
"""The debt (a negative budget), in plain steps, above which no drafts are verified."""
_MAX_DEBT_STEPS_AFTER_PROMPT = 5.0
"""The largest debt after a trial in which the proposer computed a prompt, so that a long prompt does not end trials."""
_MIN_GAIN = 1.03
"""The factor by which drafts must be expected to raise tokens per second."""
_MIN_PROBABILITY = 0.05
"""Drafts that are less likely to be accepted are not considered: they save less than their logits row costs."""
_TRIAL_DRAFTS = 4
"""Maximum number of drafts in a trial."""
_MIN_TRIAL_INTERVAL = 16
_MAX_TRIAL_INTERVAL = 256
"""Least and greatest number of steps from one trial to the next."""
_STEPS_UNTIL_STALE = 128
"""The time of plain steps with a number of sequences is measured again after this many other steps."""


class Candidate(NamedTuple):
    """A request that could have drafts in the next step."""

    request_id: str
    max_drafts: int
    """The largest number of drafts that it can use."""


class SpeculationController:
    """Chooses numbers of drafts and learns from the results. It has no clock: the caller passes seconds. Mutable."""

    def __init__(self, max_drafts: int, *, replays: bool = False) -> None:
        """`max_drafts` is the largest number of drafts of one request in a step.

        `replays`: after a wrong draft the next step computes the tokens before it again, because a recurrent state is
        that of all tokens.
        """
        self._max_drafts = max_drafts
        self._replays = replays
        self._plain_times = StepTimes()
        self._plain_steps: dict[int, int] = {}
        self._verify_times = StepTimes()
        self._acceptance = AcceptanceEstimator()
        self._budget_s = 0.0
        self._decision_s = 0.0
        """Seconds that the decision about the last plain step took."""
        self._step = 0
        self._resumes_at = 0
        self._trial_interval = _MIN_TRIAL_INTERVAL
        self._last_trial = -_MIN_TRIAL_INTERVAL
        self._is_trial = False
        self._num_trials = 0

    def begin_step(self) -> bool:
        """Count a step, and return whether the controller is active; the other methods are called only then."""
        self._step += 1
        return self._step >= self._resumes_at

    def choose(
        self, candidates: Sequence[Candidate], num_sequences: int, max_drafts: int, *, may_run_trial: bool = True
    ) -> list[int]:
        """Return each candidate's number of drafts, at most `max_drafts` in all, in a step of `num_sequences` decodes.

        `may_run_trial` means that the step has decodes only, so that its time can be compared with plain steps.
        """
        self._is_trial, num_drafts = False, [0] * len(candidates)
        plain_s = self._plain_times.known(num_sequences)
        if plain_s is None:
            return num_drafts
        if self._step - self._plain_steps[num_sequences] > _STEPS_UNTIL_STALE and may_run_trial:
            return num_drafts
        is_allowed = self._budget_s >= -_MAX_DEBT_STEPS * plain_s
        chosen = self._best_num_drafts(candidates, num_sequences, max_drafts, plain_s) if is_allowed else num_drafts
        if any(chosen) or not may_run_trial:
            return chosen
        if not all(self._acceptance.has_observed(candidate.request_id) for candidate in candidates):
            self._trial_interval = _MIN_TRIAL_INTERVAL
        num_steps = max(self._steps_until_debt_is_paid(plain_s), self._last_trial + self._trial_interval - self._step)
        if num_steps > 0:
            self._pause(min(num_steps, _MAX_TRIAL_INTERVAL), plain_s)
            return num_drafts
        self._is_trial = True
        self._num_trials += 1
        index = self._num_trials % len(candidates)
        num_drafts[index] = min(candidates[index].max_drafts, self._max_drafts, _TRIAL_DRAFTS, max_drafts)
        return num_drafts

    def observe_plain(self, num_sequences: int, seconds: float, decision_s: float = 0.0) -> None:
        """Record a plain step that took `seconds`; to decide against drafts took `decision_s` in addition."""
        self._plain_times.observe(num_sequences, seconds)
        self._plain_steps[num_sequences] = self._step
        self._decision_s = decision_s
        self._credit(_TRIAL_SHARE * seconds - decision_s, num_sequences)

    def observe_verification(
        self, num_sequences: int, num_drafts: int, num_tokens: int, seconds: float, *, is_first: bool = False
    ) -> None:
        """Record a step of decodes with drafts that yielded `num_tokens` in all.

        `seconds` include the drafting. For the first drafts of a request (`is_first`) a proposer computes its prompt.
        Later drafts take less time, so that time counts only up to a limit.
        """
        self._last_trial = self._step
        plain_s = self._plain_times.known(num_sequences)
        if not is_first:
            self._verify_times.observe(num_sequences + num_drafts, seconds)
        if plain_s is not None:
            gain_s = plain_s * num_tokens / num_sequences - seconds
            self._trial_interval = (
                _MIN_TRIAL_INTERVAL if gain_s > 0 else min(2 * self._trial_interval, _MAX_TRIAL_INTERVAL)
            )
            if is_first:
                max_debt_steps = _MAX_DEBT_STEPS_AFTER_PROMPT if self._is_trial else _MAX_DEBT_STEPS
                gain_s = max(gain_s, -max_debt_steps * plain_s)
            self._credit(gain_s, num_sequences)

    def observe_replay(self, num_sequences: int, seconds: float) -> None:
        """Record a replay: a step that computed tokens after wrong drafts again, and one new token a sequence."""
        plain_s = self._plain_times.known(num_sequences)
        if plain_s is not None:
            self._credit(plain_s - seconds, num_sequences)

    def observe_acceptance(self, request_id: str, num_drafts: int, num_accepted: int) -> None:
        """Record how many of a request's drafts were accepted."""
        self._acceptance.observe(request_id, self._step, num_drafts, num_accepted)

    def forget(self, request_id: str) -> None:
        """Drop the observations of a request that has ended."""
        self._acceptance.forget(request_id)

    def _best_num_drafts(
        self, candidates: Sequence[Candidate], num_sequences: int, max_drafts: int, plain_s: float
    ) -> list[int]:
        """Return the numbers of drafts with the most expected tokens per second; all 0 if a plain step is better."""
        drafts = []  # (probability that it is accepted, index of the candidate)
        for index, candidate in enumerate(candidates):
            rate = probability = self._acceptance.rate(candidate.request_id, self._step)
            for _ in range(min(candidate.max_drafts, self._max_drafts)):
                if probability < _MIN_PROBABILITY:
                    break
                drafts.append((probability, index))
                probability *= rate
        drafts.sort(key=lambda entry: -entry[0])
        num_tokens, num_best, best_rate = float(num_sequences), 0, _MIN_GAIN * num_sequences / plain_s
        all_accepted: dict[int, float] = {}  # by candidate, the probability that all its drafts so far are accepted
        for num_drafts, (probability, index) in enumerate(drafts[:max_drafts], start=1):
            num_tokens += probability
            all_accepted[index] = probability
            seconds = self._verify_times.estimate(num_sequences + num_drafts, (num_sequences, plain_s))
            if seconds is None:
                continue
            # A replay takes no longer than the verification, and yields a token for each sequence.
            num_replays = 1 - math.prod(all_accepted.values()) if self._replays else 0.0
            rate = (num_tokens + num_replays * num_sequences) / (seconds * (1 + num_replays))
            if rate > best_rate:
                num_best, best_rate = num_drafts, rate
        chosen = [0] * len(candidates)
        for _, index in drafts[:num_best]:
            chosen[index] += 1
        return chosen

    def _steps_until_debt_is_paid(self, plain_s: float) -> int:
        """Return the number of plain steps after which the budget is no longer negative."""
        if self._budget_s >= 0 or plain_s <= 0:
            return 0
        return math.ceil((self._decision_s - self._budget_s) / (_TRIAL_SHARE * plain_s))

    def _pause(self, num_steps: int, plain_s: float) -> None:
        """Pause for `num_steps` steps, and add their share to the budget at once."""
        self._resumes_at = self._step + 1 + num_steps
        self._budget_s = min(
            self._budget_s + num_steps * _TRIAL_SHARE * plain_s, self._decision_s + _MAX_BALANCE_STEPS * plain_s
        )

    def _credit(self, seconds: float, num_sequences: int) -> None:
        plain_s = self._plain_times.known(num_sequences) or 0.0
        self._budget_s = min(self._budget_s + seconds, _MAX_BALANCE_STEPS * plain_s)
