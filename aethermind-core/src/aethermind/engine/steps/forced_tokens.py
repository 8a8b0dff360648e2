"""Tokens that a grammar leaves no choice about, appended without a step of their own.

A step that samples behind a mask of one token finds nothing out: the token's probability is 1. So behind every sampled
token an answer goes on by those that must follow it, and the next step computes them together, like the last chunk of a
prompt ("jump-forward decoding": Zheng et al., SGLang, 2024; Dong et al., XGrammar, 2024). Those that an answer must
begin with are computed with the prompt itself. Random numbers belong to places in the answer, so answers are those of
single steps, token by token.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from aethermind.engine.steps.model_runner import SampledToken

if TYPE_CHECKING:
    from aethermind.engine.requests.request import Request
    from aethermind.sampling.guidance import TokenGuide

__all__ = ["forced_beginning", "forced_tokens"]


def forced_tokens(request: Request) -> Iterator[SampledToken]:
    """What must follow a request's tokens, as they are when the first is asked for."""
    guide = _guide(request)
    if guide is not None:
        for token_id in guide.forced(request.output_token_ids):
            yield SampledToken(request, token_id)


def forced_beginning(request: Request) -> Iterator[int]:
    """What the answer of a request that has not run must begin with, as far as nothing of it can be its end."""
    guide = _guide(request)
    if guide is None or request.params.stop:
        return
    most = request.max_total_tokens - request.num_prompt_tokens - 1
    for token_id in guide.fork().forced(())[: max(most, 0)]:  # in a fork, as it may be forced to more than is taken
        if token_id in request.stop_token_ids:
            return
        yield token_id


def _guide(request: Request) -> TokenGuide | None:
    """Whose demands are all that decides on a request's tokens: none where it looks at every token by itself, for its
    log probability, in a logits processor, or because other controls may hold back what the grammar demands.
    """
    controls = request.controls
    if controls is None or request.params.logprobs is not None:
        return None
    is_bound = controls.processors or controls.bad_words or controls.allowed is not None
    return None if is_bound else controls.guide
