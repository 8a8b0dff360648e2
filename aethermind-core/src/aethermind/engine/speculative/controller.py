"""How many drafts a step should check: as many as pay by what was measured.

A draft that is right with probability a (if those before it are) makes *k* drafts yield a + a² + … + aᵏ tokens more.
A step with drafts takes longer, by the rows that check them and by the time in which they are made. The controller
takes the number of drafts for which tokens per second are highest, 0 among them, the likeliest drafts of all requests
first.

What it does not know it tries, out of an account of time: every plain step pays a share of its time in and takes out
what the speculator itself took, a step with drafts pays in what it won against plain ones and takes out what it lost.
Nothing is tried while the account is overdrawn, and nothing is checked at all beyond a limit: the controller sleeps
until the debt is paid, and a step in its sleep costs nothing. A trial that loses doubles the wait for the next, until
one wins or a request comes that was never tried. So a run is slower than one without drafts by that share and two
steps at most, whatever drafts are worth and whatever the estimates say.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from aethermind.engine.speculative.acceptance import Acceptance
from aethermind.engine.speculative.step_times import StepTimes

__all__ = ["Candidate", "SpeculationController"]

_INCOME = 0.01
"""Share of the time of plain steps that may be lost on trials."""
_MOST_SAVED_STEPS = 1.0
"""The most that the account holds, in plain steps."""
_MOST_OWED_STEPS = 0.5
"""What the account may owe before nothing is checked."""
_MOST_OWED_FOR_A_PROMPT = 5.0
"""What it owes at most after a trial that had a proposer read a prompt: a long one must not end all trials."""
_LEAST_GAIN = 1.03
"""By which factor drafts have to promise more tokens per second."""
_LEAST_CHANCE = 0.05
"""Less likely drafts are not considered: no row costs so little."""
_TRIAL_DRAFTS = 4
_LEAST_WAIT = 16
_LONGEST_WAIT = 256
"""Steps from one trial to the next."""
_STEPS_UNTIL_STALE = 128
"""Plain steps with a number of sequences are measured anew after so many others."""


class Candidate(NamedTuple):
    """A request that could check drafts in the next step."""

    request_id: str
    most: int
    """The most drafts it has use for."""


class SpeculationController:
    """Chooses numbers of drafts, and learns from what came of them. Knows no clock: seconds are given. Mutable."""

    def __init__(self, most: int) -> None:
        """`most` drafts of a request at a time."""
        self._most = most
        self._plain = StepTimes()
        self._plain_seen: dict[int, int] = {}
        self._checking = StepTimes()
        self._acceptance = Acceptance()
        self._account_s = 0.0
        self._own_s = 0.0
        """What it took to decide on the last plain step."""
        self._step = 0
        self._wakes_at = 0
        self._wait = _LEAST_WAIT
        self._last_trial = -_LEAST_WAIT
        self._is_trying = False
        self._turn = 0

    def begin_step(self) -> bool:
        """Count a step; whether it is awake, so that the other methods are to be called for this step."""
        self._step += 1
        return self._step >= self._wakes_at

    def choose(
        self, candidates: Sequence[Candidate], num_sequences: int, most: int, *, may_try: bool = True
    ) -> list[int]:
        """How many drafts each candidate should have in a step that decodes `num_sequences`, at most `most` in all.

        `may_try` says that the step's time will tell something.
        """
        self._is_trying, none = False, [0] * len(candidates)
        plain_s = self._plain.known(num_sequences)
        if plain_s is None:
            return none
        if self._step - self._plain_seen[num_sequences] > _STEPS_UNTIL_STALE and may_try:
            return none
        is_allowed = self._account_s >= -_MOST_OWED_STEPS * plain_s
        chosen = self._best(candidates, num_sequences, most, plain_s) if is_allowed else none
        if any(chosen) or not may_try:
            return chosen
        if not all(self._acceptance.knows(candidate.request_id) for candidate in candidates):
            self._wait = _LEAST_WAIT
        num_steps = max(self._until_paid(plain_s), self._last_trial + self._wait - self._step)
        if num_steps > 0:
            self._sleep(min(num_steps, _LONGEST_WAIT), plain_s)
            return none
        self._is_trying = True
        self._turn += 1
        index = self._turn % len(candidates)
        none[index] = min(candidates[index].most, self._most, _TRIAL_DRAFTS, most)
        return none

    def observe_plain(self, num_sequences: int, seconds: float, own_s: float = 0.0) -> None:
        """Learn from a step of decodes without drafts; deciding on it took `own_s` more."""
        self._plain.observe(num_sequences, seconds)
        self._plain_seen[num_sequences] = self._step
        self._own_s = own_s
        self._pay(_INCOME * seconds - own_s, num_sequences)

    def observe_checks(
        self, num_sequences: int, num_drafts: int, num_tokens: int, seconds: float, *, is_first: bool = False
    ) -> None:
        """Learn from a step of decodes of which some checked drafts, and which yielded `num_tokens` in all.

        `seconds` are those from before the drafts were made. The first drafts of a request take a proposer as long as
        its prompt, which says nothing of those that follow: where drafts pay, it is next to no reason against them.
        """
        self._last_trial = self._step
        plain_s = self._plain.known(num_sequences)
        if not is_first:
            self._checking.observe(num_sequences + num_drafts, seconds)
        if plain_s is not None:
            gain_s = plain_s * num_tokens / num_sequences - seconds
            self._wait = _LEAST_WAIT if gain_s > 0 else min(2 * self._wait, _LONGEST_WAIT)
            if is_first:
                most_owed = _MOST_OWED_FOR_A_PROMPT if self._is_trying else _MOST_OWED_STEPS
                gain_s = max(gain_s, -most_owed * plain_s)
            self._pay(gain_s, num_sequences)

    def observe_acceptance(self, request_id: str, num_drafts: int, num_accepted: int) -> None:
        """Learn how many of a request's drafts were right."""
        self._acceptance.observe(request_id, self._step, num_drafts, num_accepted)

    def forget(self, request_id: str) -> None:
        """Drop what is known of a request that has ended."""
        self._acceptance.forget(request_id)

    def _best(self, candidates: Sequence[Candidate], num_sequences: int, most: int, plain_s: float) -> list[int]:
        """The numbers of drafts that promise the most tokens per second; all 0 where plain steps do."""
        chances = []
        for index, candidate in enumerate(candidates):
            rate = chance = self._acceptance.rate(candidate.request_id, self._step)
            for _ in range(min(candidate.most, self._most)):
                if chance < _LEAST_CHANCE:
                    break
                chances.append((chance, index))
                chance *= rate
        chances.sort(key=lambda entry: -entry[0])
        num_tokens, num_best, best_rate = float(num_sequences), 0, _LEAST_GAIN * num_sequences / plain_s
        for num_drafts, (chance, _) in enumerate(chances[:most], start=1):
            num_tokens += chance
            seconds = self._checking.estimate(num_sequences + num_drafts, (num_sequences, plain_s))
            if seconds is not None and num_tokens / seconds > best_rate:
                num_best, best_rate = num_drafts, num_tokens / seconds
        chosen = [0] * len(candidates)
        for _, index in chances[:num_best]:
            chosen[index] += 1
        return chosen

    def _until_paid(self, plain_s: float) -> int:
        """Steps whose income makes up for what is owed, if this one is spent on deciding that nothing is tried."""
        if self._account_s >= 0 or plain_s <= 0:
            return 0
        return math.ceil((self._own_s - self._account_s) / (_INCOME * plain_s))

    def _sleep(self, num_steps: int, plain_s: float) -> None:
        """Have the next steps pass without a word, for their income."""
        self._wakes_at = self._step + 1 + num_steps
        self._account_s = min(
            self._account_s + num_steps * _INCOME * plain_s, self._own_s + _MOST_SAVED_STEPS * plain_s
        )

    def _pay(self, seconds: float, num_sequences: int) -> None:
        plain_s = self._plain.known(num_sequences) or 0.0
        self._account_s = min(self._account_s + seconds, _MOST_SAVED_STEPS * plain_s)
