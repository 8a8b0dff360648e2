"""Drafting with the model's own module for multi-token prediction (MTP; DeepSeek-V3, 2024, arXiv:2412.19437).

The module (see `model.mtp`) computes a position for each token but the first. The inputs of a position are the
embedding of its token, and the hidden state of the token before it. Hidden states are copied after each step of the
target model. The module computes them when it drafts, or when as many are pending as a step has tokens. The first draft
is sampled at the position of the request's last token. Each further draft is sampled at the position of the draft
before it, from the module's own hidden state; such positions are computed again once the target model has computed
those tokens. (vLLM: `method: mtp`; SGLang: `NEXTN`.)

The module has a KV cache and a prefix cache of its own. If only the target model has the prefix of a request cached,
the module starts after that prefix, because the hidden states of its tokens were not kept. Its drafts then attend to
the later tokens only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from aethermind.cache.outcome import CacheOutcome
from aethermind.engine.kv_memory.memory import KVMemory
from aethermind.engine.loading.model_weights import open_constants
from aethermind.engine.speculative.model_proposer import DraftRequest, ModelProposer
from aethermind.engine.steps.model_runner import ModelRunner

if TYPE_CHECKING:
    from aethermind.engine.loading.compiled_model import CompiledModel
    from aethermind.engine.requests.request import Request
    from aethermind.engine.scheduling.decision import ScheduleDecision
    from aethermind.engine.steps.model_runner import SampledToken

__all__ = ["MTPProposer"]

HiddenState = Any
"""The hidden state of a token, F[hidden_size]."""


class _MTPRequest(DraftRequest):
    """A request in the module, from its second token on, or from a later one.

    Attributes:
        num_read: the number of leading positions that were computed from hidden states of the target model.
        last_state: the hidden state of the last of them.
        pending_states: the hidden states of the target model for the positions after them.
        draft_state: the module's own hidden state at the last position at which it sampled a draft.
    """

    __slots__ = ("draft_state", "last_state", "num_read", "pending_states", "request")

    def __init__(self, request: Request, max_model_len: int, first_token: int, num_read: int) -> None:
        super().__init__(request, max_model_len, first_token)
        self.request = request
        self.num_computed_tokens = self.num_read = num_read
        self.pending_states: list[HiddenState] = []
        self.last_state: HiddenState = None
        self.draft_state: HiddenState = None

    def add(self, index: int, states: Sequence[HiddenState]) -> bool:
        """Add the hidden states of the target model's tokens from `index` on, in place of pending ones of these tokens.

        Returns False if those of earlier tokens are missing.
        """
        position = index + 1 - self.first_token
        if position > self.num_read + len(self.pending_states):
            return False
        states = states[max(0, self.num_read - position) :]
        if states:
            del self.pending_states[max(position - self.num_read, 0) :]
            self.pending_states += states
        return True

    def read(self, num_states: int) -> None:
        """Record that the positions of the first `num_states` pending states were computed.

        Without effect if no state is pending, because the position was that of a draft.
        """
        if self.pending_states:
            self.last_state = self.pending_states[num_states - 1]
            self.num_read += num_states
            del self.pending_states[:num_states]

    def unread_last(self) -> None:
        """Make the hidden state of the last position pending again, to compute that position again."""
        self.num_read -= 1
        self.pending_states.insert(0, self.last_state)


class MTPProposer(ModelProposer[_MTPRequest]):
    """A proposer that samples drafts from the model's MTP module; implements `ObservesSteps`."""

    def __init__(self, compiled: CompiledModel) -> None:
        """`compiled` is the target model, `compiled.draft` its module."""
        assert compiled.draft is not None, "a model is compiled with its MTP module for this method"
        super().__init__(compiled.draft)
        self._max_pending = self._compiled.config.max_num_batched_tokens
        self._num_pending = 0

    def connect(self, runner: ModelRunner) -> None:
        """Read the module's weights, except those that it shares with the target model, which `runner` has loaded."""
        self._target = runner
        shared_names = self._compiled.shared_parameters
        constants = runner.compiled.step.plan.constants
        shared = {
            key: runner.constants.tensor(key)
            for key, constant in constants.items()
            if constant.parameter in shared_names
        }
        memory = KVMemory.of(self._compiled)
        self._runner = ModelRunner(
            self._compiled, self.cache, memory, constants=open_constants(self._compiled, shared=shared)
        )

    def observe(self, decision: ScheduleDecision) -> None:
        """Copy the hidden states of a step of the target model. Called before the drafts of the step are verified."""
        if self._num_pending > self._max_pending:
            self._read_pending()
        if not decision.scheduled:
            return
        states = list(np.array(self._target.hidden_states(decision.num_batched_tokens)))
        self._num_pending += len(states)
        position = 0
        for request, count, _ in decision.scheduled:
            if not (request.embeddings or request.num_dropped_tokens):
                self._add(request, request.num_computed_tokens - count, states[position : position + count])
            position += count

    def _add(self, request: Request, index: int, states: list[HiddenState]) -> None:
        draft_request = self._draft_requests.get(request.request_id)
        if draft_request is not None and draft_request.add(index, states):
            return
        self.forget(request.request_id)
        draft_request = self._open(request, index)
        if draft_request is not None:
            self._draft_requests[request.request_id] = draft_request
            draft_request.add(index, states)

    def _open(self, request: Request, index: int) -> _MTPRequest | None:
        """Open a request whose hidden states are known from the token at `index` on; None if it is too long."""
        request_id, token_ids = request.request_id, request.all_token_ids
        first_token, max_model_len = 1, self._compiled.max_model_len
        key = request.extra_key + token_ids[0].to_bytes(4, "little")  # positions depend on the first token, too
        opened = self.cache.open(request_id, token_ids[1:], key)
        if opened.outcome is CacheOutcome.OK and opened.num_cached_tokens < index:
            self.cache.release(request_id)
            first_token, opened = index + 1, self.cache.open(request_id)
        if opened.outcome is not CacheOutcome.OK:
            return None
        return _MTPRequest(request, max_model_len, first_token, opened.num_cached_tokens)

    def _sync(self, request: Request) -> _MTPRequest | None:
        draft_request = self._draft_requests.get(request.request_id)
        if draft_request is None:
            return None
        draft_request.sync(request)
        if draft_request.num_read == draft_request.num_synced:
            draft_request.unread_last()
        if draft_request.num_computed_tokens > draft_request.num_read:
            num_read = self.cache.truncate_or_reset(request.request_id, draft_request.num_read)
            assert num_read == draft_request.num_read, "the layer of the module keeps all positions"
            draft_request.num_computed_tokens = num_read
        num_missing = draft_request.num_synced - draft_request.num_read
        del draft_request.pending_states[num_missing:]
        return draft_request if num_missing == len(draft_request.pending_states) else None

    def _published_tokens(self, draft_request: _MTPRequest) -> Sequence[int]:
        has_all_tokens = draft_request.first_token == 1
        return draft_request.all_token_ids[: draft_request.num_read] if has_all_tokens else ()

    def _num_computable(self, draft_request: _MTPRequest) -> int:
        return len(draft_request.pending_states) or int(draft_request.num_computed_tokens >= draft_request.num_synced)

    def _run(self, decision: ScheduleDecision) -> list[SampledToken]:
        scheduled = [(self._draft_requests[request.request_id], count) for request, count, _ in decision.scheduled]
        states = [
            state
            for draft_request, count in scheduled
            for state in draft_request.pending_states[:count] or [draft_request.draft_state]
        ]
        hidden_states = self._runner.executor.host_inputs["hidden_states"].reshape(-1, len(states[0]))
        hidden_states[: len(states)] = states
        sampled = super()._run(decision)
        for token, state in zip(sampled, np.array(self._runner.hidden_states(len(sampled))), strict=True):
            self._draft_requests[token.request.request_id].draft_state = state
        for draft_request, count in scheduled:
            draft_request.read(count)
        return sampled

    def _read_pending(self) -> None:
        """Compute the positions of all pending hidden states. The next `_sync` drops the drafts that this samples."""
        for draft_request in list(self._draft_requests.values()):
            self._sync(draft_request.request)
        max_num_seqs = self._compiled.step.plan.symbols["S"]  # preempted requests have pending states, too
        while pending := [each for each in self._draft_requests.values() if each.pending_states][:max_num_seqs]:
            num_read = sum(draft_request.num_read for draft_request in pending)
            self._step(pending, self._draft_requests.keys())
            if (
                sum(draft_request.num_read for draft_request in pending) == num_read
            ):  # nothing was computed, because blocks are short
                for draft_request in pending:
                    self.forget(draft_request.request_id)
        self._num_pending = 0
