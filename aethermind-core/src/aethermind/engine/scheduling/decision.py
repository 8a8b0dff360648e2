"""What a step may do, and what the scheduler decided that it does."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from aethermind.cache.outcome import ReserveResult
from aethermind.cache.shift import BlockShift
from aethermind.engine.requests.request import Request
from aethermind.errors import InvalidArgumentError

__all__ = ["RejectedRequest", "ScheduleDecision", "ScheduledRequest", "StepBudget"]


@dataclass(frozen=True, slots=True)
class StepBudget:
    """Limits of one step; every step may be given others.

    Raises `InvalidArgumentError` where they leave a running request without a token.
    """

    max_num_seqs: int = 64
    """The most requests running at once. Where more run already, nobody is let in and nobody is sent away."""
    max_num_batched_tokens: int = 512
    """The most tokens computed in a step."""
    max_prefill_chunk: int | None = None
    """The most tokens of one prompt in a step; None lets one prompt have the step."""
    max_draft_tokens: int = 0
    """The most drafts that a step checks, of all requests together."""
    may_preempt: bool = True
    """Whether a request may give way; else who finds no room sits the step out."""

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_prefill_chunk"):
            value = getattr(self, name)
            is_integer = isinstance(value, int) and not isinstance(value, bool)
            if not (is_integer and value >= 1) and not (value is None and name == "max_prefill_chunk"):
                raise InvalidArgumentError(f"{name} is {value!r} but must be an integer of 1 or more.")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise InvalidArgumentError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens} but must be at least max_num_seqs "
                f"({self.max_num_seqs}), a token for each running request; raise it or lower max_num_seqs."
            )

    def changed(
        self,
        most: StepBudget,
        max_num_seqs: int | None,
        max_num_batched_tokens: int | None,
        max_prefill_chunk: int | None,
    ) -> StepBudget:
        """A budget with these limits, None for one that stays; InvalidArgumentError beyond `most`, for which memory was
        planned.
        """
        budget = replace(
            self,
            max_num_seqs=self.max_num_seqs if max_num_seqs is None else max_num_seqs,
            max_num_batched_tokens=(
                self.max_num_batched_tokens if max_num_batched_tokens is None else max_num_batched_tokens
            ),
            max_prefill_chunk=self.max_prefill_chunk if max_prefill_chunk is None else max_prefill_chunk,
        )
        for name in ("max_num_seqs", "max_num_batched_tokens"):
            value, greatest = getattr(budget, name), getattr(most, name)
            if value > greatest:
                raise InvalidArgumentError(
                    f"{name} cannot become {value}: this engine was opened for {greatest}. Open it with more."
                )
        return budget


class ScheduledRequest(NamedTuple):
    """One request's share of a step: its next `num_tokens` tokens, and whether one is sampled from them.

    Those beyond what the request has are the first of its drafts; then one is sampled behind each of them, too.
    """

    request: Request
    num_tokens: int
    needs_logits: bool


class RejectedRequest(NamedTuple):
    """A request that cannot be served even alone, with the numbers that say so."""

    request: Request
    num_tokens: int
    """Tokens whose KV would have to be in the cache."""
    capacity_tokens: int
    """Tokens that fit when a sequence has the whole cache."""
    num_available_blocks: int
    """Blocks there were when it was refused."""

    @property
    def reason(self) -> str:
        """Why, and what to do."""
        return (
            f"Request {self.request.request_id} needs {self.num_tokens} tokens of KV cache, and the whole cache holds "
            f"{self.capacity_tokens}. Raise num_kv_blocks or shorten the prompt."
        )


@dataclass(slots=True)
class ScheduleDecision:
    """What the next step computes. The scheduler fills it in; everybody else reads."""

    scheduled: list[ScheduledRequest] = field(default_factory=list)
    """Decodes first, then decodes of several tokens, then prefill chunks, newcomers last."""
    preempted: list[Request] = field(default_factory=list)
    """Moved back to `waiting`, their blocks released or swapped out."""
    rejected: list[RejectedRequest] = field(default_factory=list)
    """Taken from both queues, their blocks released; the caller finishes them with an error."""
    unscored: Request | None = None
    """Whose turn to be let in has come, and whose prompt is to be scored before; nobody is let in past it."""
    copies: list[tuple[int, int]] = field(default_factory=list)
    """`(source, destination)` blocks to copy, in order, before the step runs."""
    shifts: list[BlockShift] = field(default_factory=list)
    """Blocks whose keys are to be turned after that, before the step runs."""
    num_batched_tokens: int = 0
    """Tokens of the step."""
    num_decodes: int = 0
    """How many leading entries of `scheduled` are decodes of one token."""
    num_extensions: int = 0
    """How many entries behind those go on by several tokens: drafts to be checked, or tokens that a grammar forced."""

    @property
    def can_leave_out(self) -> bool:
        """Whether one that was to take part may come a step later: others do, nothing is prepared for it."""
        return bool(self.scheduled) and not (self.copies or self.shifts)

    def prepare(self, reserved: ReserveResult) -> None:
        """Have done before the step what a reservation asks for."""
        self.copies.extend(reserved.copies)
        self.shifts.extend(reserved.shifts)

    def unprepare(self, blocks: Collection[int]) -> bool:
        """Drop what would be done to `blocks`; returns whether anything would have been."""
        num_tasks = len(self.copies) + len(self.shifts)
        self.copies[:] = [copy for copy in self.copies if copy[1] not in blocks]
        self.shifts[:] = [shift for shift in self.shifts if shift.block not in blocks]
        return len(self.copies) + len(self.shifts) < num_tasks

    @property
    def phase(self) -> str:
        """`prefill` where no entry is a decode, `decode` where all are, else `mixed`."""
        num_decodes = self.num_decodes + self.num_extensions
        if num_decodes == 0:
            return "prefill"
        return "decode" if num_decodes == len(self.scheduled) else "mixed"
