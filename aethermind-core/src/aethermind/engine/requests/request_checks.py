"""Whether a prompt can be served at all, and here, said in a sentence before it is queued."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from aethermind.errors import ContextLengthError, EngineDeadError, InvalidArgumentError

if TYPE_CHECKING:
    from aethermind.engine.loading.planned_model import PlannedModel
    from aethermind.engine.requests.request_options import RequestOptions
    from aethermind.sampling.params import SamplingParams

__all__ = ["check_process", "check_prompt", "check_text", "check_token_ids"]


def check_process(loaded_by: int) -> None:
    """EngineDeadError in a fork of the process that has the device's threads: it would wait for them for ever."""
    if os.getpid() != loaded_by:
        raise EngineDeadError(
            "The model was loaded before this process was forked, and its threads are not here. Load it in this "
            "process, or start processes by spawn instead of fork."
        )


def check_prompt(
    planned: PlannedModel, token_ids: Sequence[int], params: SamplingParams, options: RequestOptions
) -> None:
    """InvalidArgumentError for ids that the model does not have, ContextLengthError where no answer would fit."""
    if not planned.generates:
        why = ": the checkpoint has no output matrix" if planned.is_headless else ""
        raise InvalidArgumentError(
            f"{planned.architecture} computes vectors of texts and generates nothing{why}. Use LLM.embed, or "
            "/v1/embeddings of a server."
        )
    if not token_ids:
        raise InvalidArgumentError("The prompt is empty; give it at least one token.")
    limit = planned.max_model_len
    if len(token_ids) >= limit:
        raise ContextLengthError(
            f"The prompt has {len(token_ids)} tokens and the context holds {limit}, with at least one for the "
            "answer. Shorten the prompt, or raise max_model_len if the model allows it."
        )
    quota = options.max_context_tokens
    if quota is not None and len(token_ids) >= quota:
        raise ContextLengthError(
            f"The prompt has {len(token_ids)} tokens and the request's quota is {quota}, with at least one for the "
            "answer. Shorten the prompt, or raise max_context_tokens."
        )
    check_token_ids(planned, (*token_ids, *params.stop_token_ids))


def check_text(planned: PlannedModel, token_ids: Sequence[int]) -> None:
    """The same for a text that is to become a vector."""
    if not token_ids:
        raise InvalidArgumentError("The text is empty; give it at least one token.")
    if len(token_ids) > planned.max_model_len:
        raise ContextLengthError(
            f"The text has {len(token_ids)} tokens, and the context holds {planned.max_model_len}. Shorten it."
        )
    check_token_ids(planned, token_ids)


def check_token_ids(planned: PlannedModel, token_ids: Sequence[int]) -> None:
    """InvalidArgumentError for ids outside the model's vocabulary."""
    vocab_size = planned.model.config.vocab_size
    if not token_ids or (min(token_ids) >= 0 and max(token_ids) < vocab_size):
        return
    token_id = next(token_id for token_id in token_ids if not 0 <= token_id < vocab_size)
    raise InvalidArgumentError(
        f"Token id {token_id} is out of range: the vocabulary has {vocab_size} entries, numbered from 0."
    )
