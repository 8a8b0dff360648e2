"""The limits of a step, and the scheduler's decision about it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from aethermind.cache.outcome import ReserveResult
from aethermind.cache.positions import BlockShift
from aethermind.engine.requests.request import Request
from aethermind.errors import InvalidArgumentError
from aethermind.plugins.compatibility import deprecated

if TYPE_CHECKING:
    from aethermind.engine.scheduling.scheduler import WaitingQueue

__all__ = ["RejectedRequest", "ScheduleDecision", "ScheduledRequest", "SchedulingStep", "StepBudget"]


_MIN_SNAPSHOT_TOKENS = 256
"""Length of a prompt from which its end is computed in a further step, so that its recurrent state at the last block
boundary becomes a snapshot (see `SchedulingStep.chunk_of`).
"""


@dataclass(frozen=True, slots=True)
class StepBudget:
    """Limits of one step, which may differ from step to step.

    Raises `InvalidArgumentError` if they do not allow one token for each running request.
    """

    max_num_seqs: int = 64
    """Maximum number of running requests. If more run already, none is admitted and none is preempted for it."""
    max_num_batched_tokens: int = 512
    """Maximum number of tokens computed in a step."""
    max_prefill_chunk: int | None = None
    """Maximum number of tokens of one prompt in a step (chunked prefill); None for no limit besides the step's."""
    max_draft_tokens: int = 0
    """Maximum number of draft tokens that a step verifies, of all requests together."""
    may_preempt: bool = True
    """Whether requests may be preempted; otherwise a request without free blocks skips the step."""

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_prefill_chunk"):
            value = getattr(self, name)
            is_integer = isinstance(value, int) and not isinstance(value, bool)
            if not (is_integer and value >= 1) and not (value is None and name == "max_prefill_chunk"):
                raise InvalidArgumentError(f"{name} is {value!r} but must be an integer of 1 or more.", param=name)
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise InvalidArgumentError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens} but must be at least max_num_seqs "
                f"({self.max_num_seqs}), a token for each running request; raise it or lower max_num_seqs.",
                param="max_num_batched_tokens",
            )

    def changed(
        self,
        largest: StepBudget,
        max_num_seqs: int | None,
        max_num_batched_tokens: int | None,
        max_prefill_chunk: int | None,
    ) -> StepBudget:
        """Return a budget with these limits; None leaves a limit unchanged.

        InvalidArgumentError for limits above those of `largest`, for which memory was allocated.
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
            value, limit = getattr(budget, name), getattr(largest, name)
            if value > limit:
                raise InvalidArgumentError(
                    f"{name} cannot become {value}: this engine was opened for {limit}. Open it with more.",
                    param=name,
                )
        return budget


class ScheduledRequest(NamedTuple):
    """One request's part of a step: its next `num_tokens` tokens, and whether a token is sampled after them.

    If `num_tokens` exceeds the uncomputed tokens of the request, the others are its first draft tokens. A token is then
    sampled after each of these, too.
    """

    request: Request
    num_tokens: int
    needs_logits: bool


class RejectedRequest(NamedTuple):
    """A request for which the cache is too small, even alone or beside protected sessions, and by how much."""

    request: Request
    num_tokens: int
    """Tokens that the cache would have to hold."""
    capacity_tokens: int
    """Tokens that one sequence can have with the whole cache to itself."""
    num_available_blocks: int
    """Blocks available at that time."""
    num_protected_tokens: int = 0
    """Tokens for which protected sessions held the blocks."""

    @property
    def reason(self) -> str:
        """The error message: the reason, and what to do."""
        if self.num_protected_tokens and self.num_tokens <= self.capacity_tokens:
            return (
                f"Request {self.request.request_id} needs {self.num_tokens} tokens of KV cache, and protected sessions "
                f"hold {self.num_protected_tokens} tokens of it. Lift the protection of one (aethermind sessions "
                "protect ID --off), or raise num_kv_blocks."
            )
        return (
            f"Request {self.request.request_id} needs {self.num_tokens} tokens of KV cache, and the whole cache holds "
            f"{self.capacity_tokens}. Raise num_kv_blocks or shorten the prompt."
        )


@dataclass(slots=True)
class ScheduleDecision:
    """What the next step computes. The scheduler writes it; others only read it."""

    scheduled: list[ScheduledRequest] = field(default_factory=list)
    """In this order: decodes of one token, decodes of several tokens, prefill chunks, new requests."""
    preempted: list[Request] = field(default_factory=list)
    """Requests that were moved back to `waiting`; their blocks were released or swapped out."""
    rejected: list[RejectedRequest] = field(default_factory=list)
    """Requests that were removed from both queues; the caller ends them with an error."""
    pending_prompt_logprobs: Request | None = None
    """The next request to admit, if its prompt log probabilities have to be computed first; until then none is
    admitted.
    """
    copies: list[tuple[int, int]] = field(default_factory=list)
    """`(source, destination)` blocks to copy, in order, before the step runs."""
    shifts: list[BlockShift] = field(default_factory=list)
    """Blocks whose keys are to be rotated (K-shift), after the copies and before the step runs."""
    num_batched_tokens: int = 0
    """Tokens of the step."""
    num_decodes: int = 0
    """How many leading entries of `scheduled` are decodes of one token."""
    num_extensions: int = 0
    """How many entries after those are decodes of several tokens: with drafts to verify, or with tokens that a grammar
    forced.
    """

    @property
    def unscored(self) -> Request | None:
        """Deprecated name of `pending_prompt_logprobs`."""
        deprecated("ScheduleDecision.unscored", instead="pending_prompt_logprobs", until="0.3")
        return self.pending_prompt_logprobs

    @property
    def can_defer(self) -> bool:
        """Whether a request may be deferred to the next step: this step has others, and no block copies or shifts."""
        return bool(self.scheduled) and not (self.copies or self.shifts)

    def add_block_ops(self, reserved: ReserveResult) -> None:
        """Add the copies and shifts of blocks that a reservation needs before the step."""
        self.copies.extend(reserved.copies)
        self.shifts.extend(reserved.shifts)

    def remove_block_ops(self, blocks: Collection[int]) -> bool:
        """Remove the copies and shifts of `blocks`; returns whether there were any."""
        num_ops = len(self.copies) + len(self.shifts)
        self.copies[:] = [copy for copy in self.copies if copy[1] not in blocks]
        self.shifts[:] = [shift for shift in self.shifts if shift.block not in blocks]
        return len(self.copies) + len(self.shifts) < num_ops

    def split(self) -> tuple[ScheduleDecision, ScheduleDecision]:
        """Return two decisions, of the decodes and of the prefill chunks, without block copies and shifts."""
        num_decodes = self.num_decodes + self.num_extensions
        decodes, prefills = self.scheduled[:num_decodes], self.scheduled[num_decodes:]
        return (
            ScheduleDecision(
                decodes,
                num_batched_tokens=sum(entry.num_tokens for entry in decodes),
                num_decodes=self.num_decodes,
                num_extensions=self.num_extensions,
            ),
            ScheduleDecision(prefills, num_batched_tokens=sum(entry.num_tokens for entry in prefills)),
        )

    @property
    def phase(self) -> str:
        """`prefill` if no entry is a decode, `decode` if all are, else `mixed`."""
        num_decodes = self.num_decodes + self.num_extensions
        if num_decodes == 0:
            return "prefill"
        return "decode" if num_decodes == len(self.scheduled) else "mixed"


class SchedulingStep(NamedTuple):
    """The step that is being scheduled: its time, queues and limits, and the decision so far."""

    now: float
    waiting: WaitingQueue
    running: list[Request]
    budget: StepBudget
    decision: ScheduleDecision

    def chunk(self, remaining: int) -> int:
        """Return how many of a prompt's `remaining` tokens still fit into the step."""
        num_left = self.budget.max_num_batched_tokens - self.decision.num_batched_tokens
        return min(remaining, num_left, self.budget.max_prefill_chunk or remaining)

    def chunk_of(self, request: Request, num_computed: int, alignment: int) -> int:
        """Return how many tokens of a request after the first `num_computed` the step computes.

        The tokens do not exceed the context. If the chunk reaches a multiple of `alignment` tokens it ends there, so
        that a snapshot of the recurrent state is kept. The last chunk of a short prompt is not cut: computing such a
        prompt again costs no more than another step.
        """
        end = request.fork_at if num_computed < request.fork_at else request.num_tokens
        end = min(end, request.context_end)
        stop = num_computed + self.chunk(end - num_computed)
        aligned = stop // alignment * alignment
        is_cut = aligned > num_computed and (stop < end or aligned >= _MIN_SNAPSHOT_TOKENS)
        return (aligned if is_cut else stop) - num_computed
