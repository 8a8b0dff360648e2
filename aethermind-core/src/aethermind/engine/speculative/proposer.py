"""The interface of a proposer of draft tokens, which packages register with `register_proposers`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from aethermind.engine.loading.compiled_model import CompiledModel
    from aethermind.engine.requests.request import Request
    from aethermind.engine.scheduling.decision import ScheduleDecision
    from aethermind.engine.steps.model_runner import ModelRunner

__all__ = ["ObservesSteps", "Proposer", "ProposerFactory"]


class Proposer(Protocol):
    """Drafts the tokens that may follow those of a request. Wrong drafts cost time, but never change an output.

    It may keep state for each request. All calls come from the thread that steps the engine, between steps.
    """

    def propose(self, requests: Sequence[Request], limits: Sequence[int]) -> list[list[int]]:
        """Return for each request at most its limit (1 or more) of token ids that may follow `all_token_ids`.

        Between calls a request grows by the accepted drafts and one more token.
        """
        ...

    def forget(self, request_id: str) -> None:
        """Drop the state of a request that has ended, if there is any."""
        ...


@runtime_checkable
class ObservesSteps(Protocol):
    """A `Proposer` that reads the hidden states of the model's steps."""

    def connect(self, runner: ModelRunner) -> None:
        """Receive the runner of the model's steps, whose weights are loaded. Called once, before the first step."""
        ...

    def observe(self, decision: ScheduleDecision) -> None:
        """Read `ModelRunner.hidden_states` of a step that was recorded, before its drafts are verified."""
        ...


ProposerFactory = Callable[["CompiledModel"], Proposer]
"""`factory(compiled)` creates the proposer of one engine. `compiled.config` holds the options, `compiled.draft` the
draft model, if one was given. InvalidArgumentError if the proposer cannot work with them.
"""
