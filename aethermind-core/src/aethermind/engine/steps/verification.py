"""Verification of drafts: the logits rows behind them, and how many are accepted.

Rejection sampling (Leviathan et al.) accepts a deterministic draft with the probability p that the model gives it, and
otherwise draws another token in proportion to p. Drawing a token from p and comparing it with the draft does the same
in one draw. With a request's own random numbers the draws are those of single steps. That is more than an equal
distribution: a seed gives the same tokens with any drafts or none (drafter-invariant: Daliri, Musco and Suresh, 2025).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from aethermind.engine.requests.request import Request
    from aethermind.sampling.logits_constraints import LogitsConstraints
    from aethermind.sampling.params import SamplingParams
    from aethermind.sampling.rows import PenaltyState

__all__ = ["DraftRow", "SampledRow", "count_accepted", "request_of"]


class DraftRow:
    """A request as the sampler sees it if its first `num_drafts` drafts are accepted."""

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
    def constraints(self) -> LogitsConstraints | None:
        return self.request.constraints

    @property
    def penalties(self) -> PenaltyState:
        return self.request.penalties.fork().update(self.all_token_ids, self.output_token_ids)

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
"""The request, or the request with drafts, whose parameters and tokens apply to a row of logits."""


def request_of(row: SampledRow) -> Request:
    """Return the request of a row."""
    return row.request if isinstance(row, DraftRow) else row


def count_accepted(drafts: Sequence[int], sampled: Sequence[int]) -> int:
    """Return how many leading drafts were sampled; `sampled` has a token for each draft and one more."""
    return next((i for i, draft in enumerate(drafts) if draft != sampled[i]), len(drafts))
