"""Tokens that a grammar leaves no choice about, appended without a step of their own.

A step that samples behind a mask of one token finds nothing out: the token's probability is 1. So behind every sampled
token an answer goes on by those that must follow it, and the next step computes them together, like the last chunk of a
prompt ("jump-forward decoding": Zheng et al., SGLang, 2024; Dong et al., XGrammar, 2024). Random numbers belong to
places in the answer, so answers are those of single steps, token by token.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from aethermind.engine.model_runner import SampledToken

if TYPE_CHECKING:
    from aethermind.engine.request import Request

__all__ = ["forced_tokens"]


def forced_tokens(request: Request) -> Iterator[SampledToken]:
    """What must follow a request's tokens, as they are when the first is asked for.

    Nothing for requests that look at every token by itself: for its log probability, in a logits processor, or because
    other controls may hold back what the grammar demands.
    """
    controls = request.controls
    if controls is None or controls.guide is None or request.params.logprobs is not None:
        return
    if controls.processors or controls.bad_words or controls.allowed is not None:
        return
    for token_id in controls.guide.forced(request.output_token_ids):
        yield SampledToken(request, token_id)
