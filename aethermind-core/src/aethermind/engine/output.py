"""What a request gave back so far, in the names that scripts for vLLM know."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aethermind.engine.model_runner import TokenLogprobs
from aethermind.engine.request import FinishReason, Request

if TYPE_CHECKING:
    from aethermind.text.stop import StopChecker
    from aethermind.text.tokenizer import Tokenizer

__all__ = ["CompletionOutput", "Logprob", "OutputBuilder", "RequestMetrics", "RequestOutput"]


@dataclass(frozen=True, slots=True)
class Logprob:
    """The log probability of one token, its rank (1 is the most likely) and its text."""

    logprob: float
    rank: int
    decoded_token: str


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """Times in seconds of `time.perf_counter`."""

    arrival_s: float
    first_token_s: float | None
    finished_s: float | None


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One answer. `finish_reason` is None while it grows, then stop, length or abort; `stop_reason` is the stop
    string or token.
    """

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[dict[int, Logprob]] | None
    finish_reason: str | None
    stop_reason: str | int | None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A request with its answers so far; the last one has `finished` set. `error` says in words why it was aborted
    by the engine.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics
    error: str | None = None


@dataclass(slots=True)
class OutputBuilder:
    """Collects one request's tokens as text: detokenised, cut at stop strings. Mutable by nature."""

    request: Request
    prompt: str | None
    tokenizer: Tokenizer
    text: str = ""
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    stop_reason: str | int | None = None
    first_token_s: float | None = None
    error: str | None = None
    _stop: StopChecker | None = None
    _detokenizer: object = None

    def __post_init__(self) -> None:
        from aethermind.text.detokenizer import Detokenizer
        from aethermind.text.stop import StopChecker

        self._detokenizer = Detokenizer(self.tokenizer)
        if self.request.params.stop:
            self._stop = StopChecker(self.request.params.stop)

    def add(
        self, token_id: int, logprobs: TokenLogprobs | None, reason: FinishReason | None, now: float
    ) -> FinishReason | None:
        """Take the token just appended to the request; returns why the request ends, which a stop string may decide
        here.
        """
        if self.first_token_s is None:
            self.first_token_s = now
        if logprobs is not None:
            self.logprobs.append(self._named(token_id, logprobs))
        if reason is FinishReason.STOP:
            self.stop_reason = None if token_id in self.request.eos_token_ids else token_id
            return self._end(reason)
        if self._emit(self._detokenizer.push(token_id)):  # type: ignore[attr-defined]
            return FinishReason.STOP
        return self._end(reason) if reason else None

    def snapshot(self, now: float) -> RequestOutput:
        """The answer as it is."""
        request = self.request
        reason = request.finish_reason
        completion = CompletionOutput(
            0,
            self.text,
            list(request.output_token_ids),
            list(self.logprobs) if request.params.logprobs is not None else None,
            reason.value if reason else None,
            self.stop_reason,
        )
        metrics = RequestMetrics(request.arrival, self.first_token_s, now if reason else None)
        return RequestOutput(
            request.request_id,
            self.prompt,
            request.prompt_token_ids,
            [completion],
            reason is not None,
            metrics,
            self.error,
        )

    def _emit(self, delta: str) -> bool:
        """Add text; True when a stop string ended it. Stop strings count only from `min_tokens` on."""
        params = self.request.params
        if self._stop is None or self.request.num_output_tokens < params.min_tokens:
            self.text += delta
            return False
        result = self._stop.push(delta)
        self.text += result.text
        if result.is_stopped:
            self.stop_reason = result.matched
        return result.is_stopped

    def _end(self, reason: FinishReason) -> FinishReason:
        """Let out what was held back; that text may still hold a stop string."""
        if self._emit(self._detokenizer.flush()):  # type: ignore[attr-defined]
            return FinishReason.STOP
        if self._stop is not None:
            self.text += self._stop.flush()
        return reason

    def _named(self, token_id: int, logprobs: TokenLogprobs) -> dict[int, Logprob]:
        text = self.tokenizer.token_text
        named = {token: Logprob(value, rank, text(token)) for rank, (token, value) in enumerate(logprobs.top, start=1)}
        named.setdefault(token_id, Logprob(logprobs.logprob, logprobs.rank, text(token_id)))
        return named
