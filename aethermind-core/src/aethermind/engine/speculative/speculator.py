"""Speculative decoding around a step: drafts are proposed before it, and verified after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from aethermind.engine.scheduling.scheduler import truncate_computed
from aethermind.engine.speculative.controller import Candidate, SpeculationController
from aethermind.engine.speculative.proposer import ObservesSteps
from aethermind.engine.steps.batch import count_accepted

if TYPE_CHECKING:
    from aethermind.cache.kv_cache import KVCache
    from aethermind.engine.requests.request import Request
    from aethermind.engine.scheduling.decision import ScheduleDecision
    from aethermind.engine.speculative.proposer import Proposer, ProposerFactory
    from aethermind.engine.steps.model_runner import ModelRunner, SampledToken

__all__ = ["Speculator", "can_speculate", "open_speculator"]


def can_speculate(request: Request) -> bool:
    """Whether the logits rows after a request's drafts can be sampled before the drafts are accepted.

    Grammars and logits processors have state that only accepted tokens may advance, so requests with these cannot.
    Structural tags have none before a trigger.
    """
    if request.params.logits_processors:
        return False
    guide = None if request.constraints is None else request.constraints.guide
    return guide is None or not guide.is_active(request.output_token_ids)


class Speculator:
    """Proposes drafts of requests before a step is scheduled, and removes the wrong ones afterwards. Mutable."""

    def __init__(
        self,
        proposer: Proposer,
        controller: SpeculationController,
        cache: KVCache,
        vocab_size: int,
        clock: Callable[[], float],
    ) -> None:
        self.num_draft_tokens = 0
        """Drafts that were verified; `num_accepted_tokens` of them were accepted."""
        self.num_accepted_tokens = 0
        self._proposer = proposer
        self._observer = proposer if isinstance(proposer, ObservesSteps) else None
        self._controller = controller
        self._cache = cache
        self._vocab_size = vocab_size
        self._clock = clock
        self._drafted: list[Request] = []
        self._ids_with_drafts: set[str] = set()
        self._has_first_drafts = False
        self._is_active = False
        self._is_replaying = False
        """Whether the next step is a replay: it computes tokens again, because a recurrent state was restored."""
        self._started_s = self._proposed_s = self._verifying_s = 0.0

    def propose(self, running: Sequence[Request], max_drafts: int, *, is_alone: bool) -> None:
        """Draft at most `max_drafts` tokens for decoding requests. `is_alone` means that no request waits for
        admission.
        """
        self._clear_drafts()  # a failed step did not remove its drafts
        self._is_active = self._controller.begin_step()
        if not self._is_active:
            return
        self._started_s = self._proposed_s = self._clock()
        self._has_first_drafts = False
        decoding = [request for request in running if request.num_uncomputed_tokens == 1]
        candidates = []
        for request in decoding:
            num_useful = request.max_total_tokens - len(request.all_token_ids) - 1
            if num_useful > 0 and can_speculate(request):
                candidates.append((request, Candidate(request.request_id, num_useful)))
        if not candidates:
            return
        is_alone = is_alone and len(decoding) == len(running)
        limits = self._controller.choose(
            [candidate for _, candidate in candidates], len(decoding), max_drafts, may_run_trial=is_alone
        )
        wanted = [(request, limit) for (request, _), limit in zip(candidates, limits, strict=True) if limit]
        if not wanted:
            self._proposed_s = self._clock()
            return
        requests, limits = [request for request, _ in wanted], [limit for _, limit in wanted]
        self._drafted = requests
        for request, limit, drafts in zip(requests, limits, self._proposer.propose(requests, limits), strict=True):
            request.draft_token_ids = self._valid_prefix(drafts[:limit])
            if request.constraints is not None and (guide := request.constraints.guide) is not None:
                num_free = guide.num_free(request.output_token_ids, request.draft_token_ids)
                request.draft_token_ids = request.draft_token_ids[:num_free]
            if drafts and request.request_id not in self._ids_with_drafts:
                self._ids_with_drafts.add(request.request_id)
                self._has_first_drafts = True
        self._proposed_s = self._clock()

    def verify(self, decision: ScheduleDecision, sampled: list[SampledToken]) -> list[SampledToken]:
        """Return the sampled tokens to keep: up to the first wrong draft of each request, and all of other requests.

        Called after the scheduler has recorded the step. Keys and values of wrong drafts are removed from the cache.
        """
        now = self._clock()
        if self._observer is not None:
            self._observer.observe(decision)
        if not self._is_active:
            return sampled
        is_replay, self._is_replaying = self._is_replaying, False
        kept, position = sampled[: decision.num_decodes], decision.num_decodes
        for request, _, needs_logits in decision.scheduled[position : position + decision.num_extensions]:
            num_drafts = request.num_computed_tokens - len(request.all_token_ids)
            tokens = sampled[position : position + num_drafts + 1] if needs_logits else []
            position += len(tokens)
            num_accepted = 0
            if num_drafts > 0:
                num_accepted = count_accepted(
                    request.draft_token_ids[:num_drafts], [token.token_id for token in tokens]
                )
                self._record_acceptance(request, num_drafts, num_accepted)
            kept += tokens[: num_accepted + 1]
        kept += sampled[position:]
        if (
            len(sampled) == decision.num_batched_tokens
        ):  # otherwise some tokens had no logits row: forced or replayed ones
            self._observe_step_time(decision, len(kept), now)
        elif is_replay and decision.phase == "decode" and not decision.preempted:
            self._controller.observe_replay(len(decision.scheduled), now - self._proposed_s)
        self._clear_drafts()
        self._verifying_s = self._clock() - now
        return kept

    def forget(self, request_id: str) -> None:
        """Drop the state of a request that has ended."""
        self._proposer.forget(request_id)
        self._controller.forget(request_id)
        self._ids_with_drafts.discard(request_id)

    def _clear_drafts(self) -> None:
        """Remove the drafts from all requests."""
        for request in self._drafted:
            request.draft_token_ids = []
        self._drafted = []

    def _valid_prefix(self, drafts: list[int]) -> list[int]:
        """Return the drafts before the first id that is outside the model's vocabulary."""
        return drafts[: next((i for i, token in enumerate(drafts) if not 0 <= token < self._vocab_size), None)]

    def _record_acceptance(self, request: Request, num_drafts: int, num_accepted: int) -> None:
        if num_accepted < num_drafts:
            num_tokens = request.num_computed_tokens - (num_drafts - num_accepted)
            truncate_computed(self._cache, request, num_tokens)
            self._is_replaying = self._is_replaying or request.num_computed_tokens < num_tokens
        request.num_draft_tokens += num_drafts
        request.num_accepted_tokens += num_accepted
        self.num_draft_tokens += num_drafts
        self.num_accepted_tokens += num_accepted
        self._controller.observe_acceptance(request.request_id, num_drafts, num_accepted)

    def _observe_step_time(self, decision: ScheduleDecision, num_tokens: int, now: float) -> None:
        """Record the time of a step of decodes that ended at `now`. The time of verification is the last step's."""
        if decision.phase != "decode" or decision.preempted:
            return
        num_sequences = len(decision.scheduled)
        num_drafts = decision.num_batched_tokens - num_sequences
        if num_drafts == 0:
            decision_s = self._proposed_s - self._started_s + self._verifying_s
            self._controller.observe_plain(num_sequences, now - self._proposed_s, decision_s)
        else:
            seconds = now - self._started_s + self._verifying_s
            self._controller.observe_verification(
                num_sequences, num_drafts, num_tokens, seconds, is_first=self._has_first_drafts
            )


def open_speculator(
    runner: ModelRunner, create_proposer: ProposerFactory | None, cache: KVCache, clock: Callable[[], float]
) -> Speculator | None:
    """Create the speculator that the model was compiled with, for an engine with this cache; None if there is none."""
    if create_proposer is None:
        return None
    compiled = runner.compiled
    proposer = create_proposer(compiled)
    if isinstance(proposer, ObservesSteps):
        proposer.connect(runner)
    controller = SpeculationController(compiled.config.num_speculative_tokens, replays=cache.is_recurrent)
    return Speculator(proposer, controller, cache, compiled.model.config.vocab_size, clock)
