"""What penalties are made of: which tokens a request holds, and how often its answer holds each.

A request only grows, so each of its tokens is counted once, when it has come, and a step costs as much late in an
answer as it does at its beginning. The arrays are what the sampler takes; whoever reads them leaves them as they are.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Self

from aethermind.sampling.params import SamplingParams

__all__ = ["TokenTally"]


class TokenTally:
    """Of one request, by its parameters. Mutable."""

    __slots__ = ("_counts", "_known", "_num_counted", "_num_seen", "_params", "_places", "biased", "biases", "seen")

    def __init__(self, params: SamplingParams) -> None:
        self._params = params
        self.seen = array("i")
        """The distinct tokens of prompt and answer, for a repetition penalty."""
        self._known: set[int] = set()
        self._num_seen = 0
        self.biased = array("i", [token_id for token_id, _ in params.logit_bias])
        """The tokens with a logit bias, and those of the answer, for a presence or frequency penalty."""
        self.biases = array("d", [bias for _, bias in params.logit_bias])
        """What is added to the logits of each of these."""
        self._places = {token_id: place for place, token_id in enumerate(self.biased)}
        self._counts = [0] * len(self.biased)
        self._num_counted = 0

    def follow(self, all_token_ids: Sequence[int], output_token_ids: Sequence[int]) -> Self:
        """Count what has come since the last time."""
        params = self._params
        if params.repetition_penalty != 1.0 and len(all_token_ids) > self._num_seen:
            self._see(all_token_ids[self._num_seen :])
        if (params.presence_penalty or params.frequency_penalty) and len(output_token_ids) > self._num_counted:
            self._count(output_token_ids[self._num_counted :])
        return self

    def fork(self) -> TokenTally:
        """One that goes on by itself: that of the request as it would be with other tokens to come."""
        copy = TokenTally(self._params)
        copy.seen, copy.biased, copy.biases = self.seen[:], self.biased[:], self.biases[:]
        copy._known, copy._places, copy._counts = set(self._known), dict(self._places), list(self._counts)
        copy._num_seen, copy._num_counted = self._num_seen, self._num_counted
        return copy

    def _see(self, token_ids: Sequence[int]) -> None:
        self._num_seen += len(token_ids)
        new = [token_id for token_id in dict.fromkeys(token_ids) if token_id not in self._known]
        self._known.update(new)
        self.seen.extend(new)

    def _count(self, token_ids: Sequence[int]) -> None:
        self._num_counted += len(token_ids)
        params = self._params
        for token_id in token_ids:
            place = self._places.get(token_id)
            if place is None:
                place = self._places[token_id] = len(self.biased)
                self.biased.append(token_id)
                self.biases.append(0.0)
                self._counts.append(0)
            self._counts[place] += 1
            bias = params.logit_bias[place][1] if place < len(params.logit_bias) else 0.0
            self.biases[place] = bias - (params.presence_penalty + params.frequency_penalty * self._counts[place])
