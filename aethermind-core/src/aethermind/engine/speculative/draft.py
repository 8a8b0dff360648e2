"""Drafting with a smaller model of the same vocabulary, the draft model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aethermind.engine.kv_memory.memory import KVMemory
from aethermind.engine.speculative.model_proposer import DraftRequest, ModelProposer
from aethermind.engine.steps.model_runner import ModelRunner
from aethermind.errors import InvalidArgumentError

if TYPE_CHECKING:
    from aethermind.engine.loading.compiled_model import CompiledModel
    from aethermind.engine.requests.request import Request

__all__ = ["DraftModel"]


class DraftModel(ModelProposer[DraftRequest]):
    """A proposer that samples drafts from the draft model."""

    def __init__(self, compiled: CompiledModel) -> None:
        """Read the draft model's weights. InvalidArgumentError if there is none, or if its tokens differ."""
        draft = compiled.draft
        if draft is None:
            raise InvalidArgumentError(
                "The speculative method draft needs a model that drafts: pass it as draft_model."
            )
        _check_tokens(compiled, draft)
        super().__init__(draft)
        self._runner = ModelRunner(draft, self.cache, KVMemory.of(draft))

    def _sync(self, request: Request) -> DraftRequest:
        draft_request = self._draft_requests.get(request.request_id)
        if draft_request is None:
            draft_request = DraftRequest(request, self._compiled.max_model_len)
            self._draft_requests[request.request_id] = draft_request
            opened = self.cache.open(request.request_id, request.all_token_ids, request.extra_key)
            draft_request.num_computed_tokens = opened.num_cached_tokens
        num_valid = draft_request.sync(request)
        if num_valid < draft_request.num_computed_tokens:
            draft_request.num_computed_tokens = self.cache.truncate_or_reset(request.request_id, num_valid)
        return draft_request


def _check_tokens(compiled: CompiledModel, draft: CompiledModel) -> None:
    """Raise InvalidArgumentError unless both models have the same tokens, because drafts are token ids."""
    if compiled.source.path == draft.source.path:
        return
    target, drafter = compiled.source.tokenizer(), draft.source.tokenizer()
    num_tokens = max(target.vocab_size, drafter.vocab_size)
    differing = next((i for i in range(num_tokens) if target.id_to_token(i) != drafter.id_to_token(i)), None)
    if differing is not None:
        raise InvalidArgumentError(
            f"The draft model {draft.source.path} has other tokens: {differing} is {drafter.id_to_token(differing)!r} "
            f"there and {target.id_to_token(differing)!r} here. Take a smaller model of the same family."
        )
