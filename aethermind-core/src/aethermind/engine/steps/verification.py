"""Rows that check drafts, and what they prove.

A draft with one possible value is accepted in rejection sampling (Leviathan et al.) with the probability p that the
model gives it, and what replaces it is drawn from the others in proportion to p. Drawing a token from p and comparing
does the same in one draw. With a request's own random numbers the draws are those of single steps, which is more than
an equal distribution: a seed gives its tokens with any drafts and none (Daliri, Musco and Suresh, 2025, call that
drafter-invariant).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from aethermind.engine.requests.request import Request
    from aethermind.sampling.controls import TokenControls
    from aethermind.sampling.params import SamplingParams
    from aethermind.sampling.tally import TokenTally

__all__ = ["DraftRow", "SampledRow", "count_accepted", "request_of"]


class DraftRow:
    """A request as it is for the sampler if its first `num_drafts` drafts are right."""

    __slots__ = ("num_drafts", "request")

    def __init__(self, request: Request, num_drafts: int) -> None:
        self.request = request
        self.num_drafts = num_drafts

    @property
    def params(self) -> SamplingParams:
        return self.request.params

    @property
    def seed(self) -> int:
        return self.request.seed

    @property
    def stop_token_ids(self) -> frozenset[int]:
        return self.request.stop_token_ids

    @property
    def controls(self) -> TokenControls | None:
        return self.request.controls

    @property
    def tally(self) -> TokenTally:
        return self.request.tally.fork().follow(self.all_token_ids, self.output_token_ids)

    @property
    def prompt_token_ids(self) -> list[int]:
        return self.request.prompt_token_ids

    @property
    def all_token_ids(self) -> list[int]:
        return self.request.all_token_ids + self.request.draft_token_ids[: self.num_drafts]

    @property
    def output_token_ids(self) -> list[int]:
        return self.request.output_token_ids + self.request.draft_token_ids[: self.num_drafts]


SampledRow: TypeAlias = "Request | DraftRow"
"""Whose parameters and tokens the sampler looks at in a row of logits."""


def request_of(row: SampledRow) -> Request:
    """Whose row it is."""
    return row.request if isinstance(row, DraftRow) else row


def count_accepted(drafts: Sequence[int], sampled: Sequence[int]) -> int:
    """How many leading drafts were sampled; `sampled` has a token for each and one more."""
    return next((i for i, draft in enumerate(drafts) if draft != sampled[i]), len(drafts))
