"""Jump-forward decoding: the tokens that a grammar forces are appended without a step for each.

A step that samples from a mask of one token is redundant, because the token's probability is 1. So all tokens that must
follow a sampled token are appended at once, and the next step computes them together, like a chunk of a prompt
(Zheng et al., SGLang, 2024; Dong et al., XGrammar, 2024). Tokens that an output must begin with are computed with the
prompt. Random numbers belong to positions in the output, so outputs equal those of single steps, token by token.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from aethermind.engine.steps.model_runner import SampledToken

if TYPE_CHECKING:
    from aethermind.engine.requests.request import Request
    from aethermind.sampling.guidance import Guide

__all__ = ["forced_prefix", "forced_tokens"]


def forced_tokens(request: Request) -> Iterator[SampledToken]:
    """Yield the tokens that must follow those that a request has at the first iteration."""
    guide = _guide(request)
    if guide is not None:
        for token_id in guide.forced(request.output_token_ids):
            yield SampledToken(request, token_id)


def forced_prefix(request: Request) -> Iterator[int]:
    """Yield the tokens that the output of a new request must begin with, up to a token that may end it."""
    guide = _guide(request)
    if guide is None or request.params.stop:
        return
    max_tokens = request.max_total_tokens - request.num_prompt_tokens - 1
    for token_id in guide.fork().forced(())[: max(max_tokens, 0)]:  # a fork, because not all forced tokens may be used
        if token_id in request.stop_token_ids:
            return
        yield token_id


def _guide(request: Request) -> Guide | None:
    """Return the guide of a request whose tokens may be forced.

    None if every token needs a logits row, for log probabilities or logits processors, or if other constraints may
    exclude tokens that the grammar forces.
    """
    constraints = request.constraints
    if constraints is None or request.params.logprobs is not None:
        return None
    is_excluded = constraints.processors or constraints.bad_words or constraints.allowed is not None
    return None if is_excluded else constraints.guide
