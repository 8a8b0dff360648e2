"""Drafting with the model's own module for multi-token prediction (MTP; DeepSeek-V3, 2024, arXiv:2412.19437).

The module (see `model.mtp`) computes an entry for each token but the first: from the token's embedding and the hidden
state of the token before it. Rows of hidden states are copied after each step of the model; the module reads them when
it drafts, or when as many are pending as a step has tokens. Its first draft is sampled from the entry of the request's
last token, each further one from an entry of a draft and of the module's own hidden state. Entries of drafts are
computed again once the model has computed those tokens. (vLLM: `method: mtp`; SGLang: `NEXTN`.)

The module has a KV cache and a prefix cache of its own. A request whose prefix only the model has cached starts in the
module behind that prefix, because the hidden states of its tokens were not kept; its drafts see the later tokens only.
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

Row = Any
"""A hidden state, F[hidden_size]."""


class _MTPRequest(DraftRequest):
    """A request in the module, from its second token on, or from a later one.

    Its first `num_read` entries are of hidden states of the model, and `read_row` is that of the last of them. `rows`
    are the hidden states of the entries behind these, and `drafted_row` is the module's own of the last entry that was
    sampled from.
    """

    __slots__ = ("drafted_row", "num_read", "read_row", "request", "rows")

    def __init__(self, request: Request, max_model_len: int, first_token: int, num_read: int) -> None:
        super().__init__(request, max_model_len, first_token)
        self.request = request
        self.num_computed_tokens = self.num_read = num_read
        self.rows: list[Row] = []
        self.read_row: Row = None
        self.drafted_row: Row = None

    def add(self, index: int, rows: Sequence[Row]) -> bool:
        """Add the hidden states of the model's tokens from `index` on, in place of those that are pending for them.

        False if those of earlier tokens are missing.
        """
        entry = index + 1 - self.first_token
        if entry > self.num_read + len(self.rows):
            return False
        rows = rows[max(0, self.num_read - entry) :]
        if rows:
            del self.rows[max(entry - self.num_read, 0) :]
            self.rows += rows
        return True

    def read(self, num_rows: int) -> None:
        """Record that entries of so many `rows` were computed; none if the entry was that of a draft."""
        if self.rows:
            self.read_row = self.rows[num_rows - 1]
            self.num_read += num_rows
            del self.rows[:num_rows]

    def unread(self) -> None:
        """Forget the last entry, to compute it again."""
        self.num_read -= 1
        self.rows.insert(0, self.read_row)


class MTPProposer(ModelProposer[_MTPRequest]):
    """A proposer that samples drafts from the model's MTP module; implements `ObservesSteps`."""

    def __init__(self, compiled: CompiledModel) -> None:
        """`compiled` is the model, `compiled.draft` its module."""
        assert compiled.draft is not None, "a model is compiled with its MTP module for this method"
        super().__init__(compiled.draft)
        self._max_pending = self._compiled.config.max_num_batched_tokens
        self._num_pending = 0

    def connect(self, runner: ModelRunner) -> None:
        """Read the module's weights; the shared ones are the constants of the model's `runner`."""
        self._model = runner
        names = self._compiled.shared_parameters
        constants = runner.compiled.step.plan.constants
        shared = {
            key: runner.constants.tensor(key) for key, constant in constants.items() if constant.parameter in names
        }
        memory = KVMemory.of(self._compiled)
        self._runner = ModelRunner(
            self._compiled, self.cache, memory, constants=open_constants(self._compiled, shared=shared)
        )

    def observe(self, decision: ScheduleDecision) -> None:
        """Copy the hidden states of a step of the model that was recorded, and whose drafts are not verified yet."""
        if self._num_pending > self._max_pending:
            self._read_pending()
        if not decision.scheduled:
            return
        rows = list(np.array(self._model.hidden_states(decision.num_batched_tokens)))
        self._num_pending += len(rows)
        position = 0
        for request, count, _ in decision.scheduled:
            if not (request.embeddings or request.num_dropped_tokens):
                self._add(request, request.num_computed_tokens - count, rows[position : position + count])
            position += count

    def _add(self, request: Request, index: int, rows: list[Row]) -> None:
        draft_request = self._draft_requests.get(request.request_id)
        if draft_request is not None and draft_request.add(index, rows):
            return
        self.forget(request.request_id)
        draft_request = self._open(request, index)
        if draft_request is not None:
            self._draft_requests[request.request_id] = draft_request
            draft_request.add(index, rows)

    def _open(self, request: Request, index: int) -> _MTPRequest | None:
        """Open a request whose hidden states are known from the token at `index` on; None if it is too long."""
        name, token_ids = request.request_id, request.all_token_ids
        first_token, max_model_len = 1, self._compiled.max_model_len
        key = request.extra_key + token_ids[0].to_bytes(4, "little")  # entries depend on the first token, too
        opened = self.cache.open(name, token_ids[1:], key)
        if opened.outcome is CacheOutcome.OK and opened.num_cached_tokens < index:
            self.cache.release(name)
            first_token, opened = index + 1, self.cache.open(name)
        if opened.outcome is not CacheOutcome.OK:
            return None
        return _MTPRequest(request, max_model_len, first_token, opened.num_cached_tokens)

    def _sync(self, request: Request) -> _MTPRequest | None:
        draft_request = self._draft_requests.get(request.request_id)
        if draft_request is None:
            return None
        draft_request.sync(request)
        if draft_request.num_read == draft_request.num_synced:
            draft_request.unread()
        if draft_request.num_computed_tokens > draft_request.num_read:
            num_read = self.cache.truncate_or_reset(request.request_id, draft_request.num_read)
            assert num_read == draft_request.num_read, "the module's layer keeps all entries"
            draft_request.num_computed_tokens = num_read
        num_missing = draft_request.num_synced - draft_request.num_read
        del draft_request.rows[num_missing:]
        return draft_request if num_missing == len(draft_request.rows) else None

    def _published_tokens(self, draft_request: _MTPRequest) -> Sequence[int]:
        is_whole = draft_request.first_token == 1
        return draft_request.all_token_ids[: draft_request.num_read] if is_whole else ()

    def _num_computable(self, draft_request: _MTPRequest) -> int:
        return len(draft_request.rows) or int(draft_request.num_computed_tokens >= draft_request.num_synced)

    def _run(self, decision: ScheduleDecision) -> list[SampledToken]:
        entries = [(self._draft_requests[request.request_id], count) for request, count, _ in decision.scheduled]
        rows = [row for one, count in entries for row in one.rows[:count] or [one.drafted_row]]
        hidden_states = self._runner.executor.host_inputs["hidden_states"].reshape(-1, len(rows[0]))
        hidden_states[: len(rows)] = rows
        sampled = super()._run(decision)
        for token, row in zip(sampled, np.array(self._runner.hidden_states(len(sampled))), strict=True):
            self._draft_requests[token.request.request_id].drafted_row = row
        for one, count in entries:
            one.read(count)
        return sampled

    def _read_pending(self) -> None:
        """Compute the entries of all pending hidden states. The next `_sync` drops what is sampled meanwhile."""
        for one in list(self._draft_requests.values()):
            self._sync(one.request)
        max_num_seqs = self._compiled.step.plan.symbols["S"]  # preempted requests are pending, too
        while pending := [one for one in self._draft_requests.values() if one.rows][:max_num_seqs]:
            num_read = sum(one.num_read for one in pending)
            self._step(pending, self._draft_requests.keys())
            if sum(one.num_read for one in pending) == num_read:  # blocks are short
                for one in pending:
                    self.forget(one.request_id)
        self._num_pending = 0
