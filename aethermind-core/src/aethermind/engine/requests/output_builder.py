"""One request's tokens becoming its answer: detokenised, cut at stop strings, with the log probabilities asked for."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from aethermind.engine.requests.output import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from aethermind.engine.requests.request import FinishReason, Request
from aethermind.errors import AetherMindError
from aethermind.text.detokenizer import Detokenizer, last_text_token
from aethermind.text.stop import StopChecker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aethermind.engine.requests.output import TokenLogprobs
    from aethermind.text.tokenizer import Tokenizer

__all__ = ["OutputBuilder", "OutputUpdate", "has_ended", "state_of"]


class OutputBuilder:
    """Collects the answer of one request; `snapshot` shows it as it is. `error` says why the engine gave the request
    up.
    """

    __slots__ = (
        "_detokenizer",
        "_first_token_s",
        "_index",
        "_is_begun",
        "_logprobs",
        "_prompt",
        "_prompt_logprobs",
        "_stop",
        "_stop_reason",
        "_text",
        "_tokenizer",
        "error",
        "request",
        "request_id",
    )

    def __init__(
        self, request: Request, prompt: str | None, tokenizer: Tokenizer, index: int = 0, *, is_chat: bool = False
    ) -> None:
        """`index` is the answer's among those to its prompt."""
        self.request = request
        self._index = index
        self.request_id = request.request_id
        self.error: AetherMindError | None = None
        self._prompt = prompt
        self._prompt_logprobs: list[dict[int, Logprob] | None] | None = None
        self._tokenizer = tokenizer
        before = _context(request, tokenizer, is_chat=is_chat)
        self._is_begun = last_text_token(tokenizer, before) is not None
        self._detokenizer = Detokenizer(tokenizer, before=before)
        self._stop = StopChecker(request.params.stop) if request.params.stop else None
        self._text = ""
        self._logprobs: list[dict[int, Logprob]] = []
        self._stop_reason: str | int | None = None
        self._first_token_s: float | None = None

    def add_prompt(self, scores: Sequence[TokenLogprobs | None]) -> None:
        """Take what the model thought of each token of the prompt; None where it thought nothing."""
        self._prompt_logprobs, is_first = [], True
        for token_id, score in zip(self.request.prompt_token_ids, scores, strict=True):
            named = None if score is None else _named_logprobs(self._tokenizer, token_id, score, is_first=is_first)
            self._prompt_logprobs.append(named)
            is_first = is_first and token_id in self._tokenizer.special_token_ids

    def begin(self, token_id: int) -> None:
        """Give the request a token before it runs, which ends nothing. The first token's time is that of the next."""
        self.request.append_token(token_id)
        self._emit(self._push(token_id))

    def add(
        self, token_id: int, logprobs: TokenLogprobs | None, reason: FinishReason | None, now: float
    ) -> FinishReason | None:
        """Take the token just appended to the request; returns why the request ends: a stop string may decide."""
        if self._first_token_s is None:
            self._first_token_s = now
        if logprobs is not None:
            is_first = not self._is_begun
            self._logprobs.append(_named_logprobs(self._tokenizer, token_id, logprobs, is_first=is_first))
        if reason is FinishReason.STOP:
            self._stop_reason = None if token_id in self.request.eos_token_ids else token_id
            return self._end(reason)
        if self._emit(self._push(token_id)):
            return FinishReason.STOP
        return self._end(reason) if reason else None

    def snapshot(self, ended_s: float | None = None) -> RequestOutput:
        """The answer as it is; `ended_s` is when it ended, if it has."""
        request = self.request
        reason = request.finish_reason
        completion = CompletionOutput(
            self._index,
            self._text,
            request.output_token_ids,
            self._logprobs if request.params.logprobs is not None else None,
            reason.value if reason else None,
            self._stop_reason,
        )
        metrics = RequestMetrics(
            request.arrival,
            self._first_token_s,
            ended_s if reason else None,
            request.admitted,
            request.num_preemptions,
            request.num_draft_tokens,
            request.num_accepted_tokens,
        )
        return RequestOutput(
            request.request_id,
            self._prompt,
            request.prompt_token_ids,
            [completion],
            reason is not None,
            metrics,
            None if self.error is None else str(self.error),
            request.num_cached_tokens,
            self._prompt_logprobs,
            None if self.error is None else _kind(self.error),
        )

    def _push(self, token_id: int) -> str:
        self._is_begun = self._is_begun or token_id not in self._tokenizer.special_token_ids
        return self._detokenizer.push(token_id)

    def _emit(self, delta: str) -> bool:
        """Add text; True when a stop string ended it. Those count that are complete from `min_tokens` on."""
        if self._stop is None:
            self._text += delta
            return False
        result = self._stop.push(delta, may_stop=self.request.num_output_tokens >= self.request.params.min_tokens)
        self._text += result.text
        if result.is_stopped:
            self._stop_reason = result.matched
        return result.is_stopped

    def _end(self, reason: FinishReason) -> FinishReason:
        """Let out what was held back; that text may still hold a stop string."""
        if self._emit(self._detokenizer.finish()):
            return FinishReason.STOP
        if self._stop is not None:
            self._text += self._stop.flush()
        return reason


OutputUpdate = RequestOutput | OutputBuilder
"""What came of a request in a step: its last state, or the answer that goes on, whose state costs more than a token to
write down.
"""


def state_of(growth: OutputUpdate) -> RequestOutput:
    """The state of a request between two steps."""
    return growth if isinstance(growth, RequestOutput) else growth.snapshot()


def has_ended(growth: OutputUpdate | None) -> bool:
    """Whether a state is the last; None is not."""
    return type(growth) is RequestOutput and growth.finished  # several times quicker than to ask for any of the kind


def _context(request: Request, tokenizer: Tokenizer, *, is_chat: bool) -> Sequence[int]:
    """The tokens behind which an answer is decoded: its prompt's, because it goes on with that text. The answer to a
    chat is a text of its own. What structured outputs demand counts to the character, so no space is taken off.
    """
    if request.params.structured_outputs is not None:
        return tokenizer.anchor
    return () if is_chat else request.prompt_token_ids


def _named_logprobs(
    tokenizer: Tokenizer, token_id: int, logprobs: TokenLogprobs, *, is_first: bool
) -> dict[int, Logprob]:
    """By token id, with the texts of tokens: the most likely ones in order, and the token itself."""
    text = partial(tokenizer.token_text, is_first=is_first)
    named = {token: Logprob(value, rank, text(token)) for rank, (token, value) in enumerate(logprobs.top, start=1)}
    named.setdefault(token_id, Logprob(logprobs.logprob, logprobs.rank, text(token_id)))
    return named


def _kind(error: AetherMindError) -> str:
    """The class of `aethermind.errors` that it is, or that its class in a package is derived from."""
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == AetherMindError.__module__)
