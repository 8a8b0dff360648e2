"""How likely the next draft of a request is right."""

from __future__ import annotations

__all__ = ["Acceptance"]

_PRIOR = 0.5
_PRIOR_TRIALS = 2.0
_MEMORY = 0.9
_MEMORY_OF_ALL = 0.98
_MEMORY_OF_A_STEP = 0.99


class _Counts:
    """Trials and successes, the past of which fades."""

    __slots__ = ("num_right", "num_trials", "step")

    def __init__(self, step: int) -> None:
        self.num_right = 0.0
        self.num_trials = 0.0
        self.step = step

    def fade(self, factor: float) -> None:
        self.num_right *= factor
        self.num_trials *= factor

    def add(self, num_right: int, num_trials: int) -> None:
        self.num_right += num_right
        self.num_trials += num_trials

    def rate(self, prior: float) -> float:
        return (self.num_right + _PRIOR_TRIALS * prior) / (self.num_trials + _PRIOR_TRIALS)


class Acceptance:
    """The probability that a draft is right if those before it are, for each request.

    What a request showed fades with its drafts and with time, towards what all of them show: it gets another chance.
    """

    def __init__(self) -> None:
        self._all = _Counts(0)
        self._requests: dict[str, _Counts] = {}

    def knows(self, request_id: str) -> bool:
        """Whether any of a request's drafts were checked."""
        return request_id in self._requests

    def rate(self, request_id: str, step: int) -> float:
        """The estimate at this step, from 0 to 1."""
        counts = self._requests.get(request_id)
        prior = self._all.rate(_PRIOR)
        if counts is None:
            return prior
        counts.fade(_MEMORY_OF_A_STEP ** (step - counts.step))
        counts.step = step
        return counts.rate(prior)

    def observe(self, request_id: str, step: int, num_drafts: int, num_accepted: int) -> None:
        """Learn from one check. Behind the first wrong draft nothing is known, so it is the last trial."""
        num_trials = min(num_accepted + 1, num_drafts)
        counts = self._requests.setdefault(request_id, _Counts(step))
        for one, memory in ((counts, _MEMORY), (self._all, _MEMORY_OF_ALL)):
            one.fade(memory)
            one.add(num_accepted, num_trials)

    def forget(self, request_id: str) -> None:
        """Drop what is known of a request that has ended."""
        self._requests.pop(request_id, None)
