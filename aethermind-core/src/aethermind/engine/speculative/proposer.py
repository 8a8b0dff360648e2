"""What guesses tokens: the contract of `register_proposers`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from aethermind.engine.loading.planned_model import PlannedModel
    from aethermind.engine.requests.request import Request

__all__ = ["Proposer", "ProposerFactory"]


class Proposer(Protocol):
    """Guesses the tokens that follow. It may keep a state for each request; nothing that it says can change an answer.

    All calls come from the thread that steps the engine, between steps.
    """

    def propose(self, requests: Sequence[Request], limits: Sequence[int]) -> list[list[int]]:
        """For each request up to so many token ids (1 or more) that may follow `all_token_ids`; none is an answer too.

        Requests grow between calls by the tokens that were accepted and one more.
        """
        ...

    def forget(self, request_id: str) -> None:
        """Drop what is kept for a request that has ended, if anything is."""
        ...


ProposerFactory = Callable[["PlannedModel"], Proposer]
"""`factory(planned)` makes the proposer of one engine; `planned.config` holds the options, `planned.draft` the draft
model where one was named. InvalidArgumentError where it cannot work with them.
"""
