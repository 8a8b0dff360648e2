"""Output deltas: the output that a request has produced since its reader's last read.

`OutputBuilder` turns the tokens of a request into text. As an `OutputSource` it writes a delta for each of its readers,
relative to the reader's `OutputCursor`. Deltas may be merged (`OutputDelta.merge`), are sent to other processes
unchanged, and are streamed by servers. `OutputAccumulator` builds the cumulative `RequestOutput` of the Python API from
them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

from aethermind.engine.requests.output import CompletionOutput, Logprob, RequestMetrics, RequestOutput, raise_error
from aethermind.engine.requests.request import FinishReason
from aethermind.errors import AetherMindError
from aethermind.text.detokenizer import Detokenizer, last_text_token
from aethermind.text.stop_strings import StopChecker

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from aethermind.engine.requests.output import TokenLogprobs
    from aethermind.engine.requests.request import Request
    from aethermind.text.tokenizer import Tokenizer

__all__ = [
    "CompletionDelta",
    "OutputAccumulator",
    "OutputBuilder",
    "OutputCursor",
    "OutputDelta",
    "OutputReader",
    "OutputSource",
    "error_type_of",
]

_START = (-1, 0, False)
"""The position before the first delta of a completion. That delta is never omitted, even if it is empty."""


@dataclass(slots=True)
class CompletionDelta:
    """New output of one of a request's completions. `finish_reason` is set in the completion's last delta only.

    `logprobs` has an entry for each new token; it is None if no log probabilities were requested. `num_tokens` counts
    all tokens of the completion so far.
    """

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[dict[int, Logprob]] | None
    num_tokens: int
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    @classmethod
    def of_whole(cls, index: int, completion: CompletionOutput) -> CompletionDelta:
        """The only delta of a completion that has ended."""
        return cls(
            index,
            completion.text,
            completion.token_ids,
            completion.logprobs,
            completion.num_tokens,
            completion.finish_reason,
            completion.stop_reason,
        )

    def merge(self, newer: CompletionDelta) -> None:
        """Append the next delta."""
        self.text += newer.text
        self.token_ids += newer.token_ids
        if newer.logprobs is not None:
            self.logprobs = [] if self.logprobs is None else self.logprobs
            self.logprobs += newer.logprobs
        self.num_tokens = newer.num_tokens
        self.finish_reason, self.stop_reason = newer.finish_reason, newer.stop_reason


@dataclass(slots=True)
class OutputDelta:
    """New output of a request: the completions that have grown or ended, and the current state of the request.

    `finished` is set in the last delta. `prompt_logprobs` are in one delta only. `error` and `error_type` are those of
    `RequestOutput`. Its owner may change it. It is not frozen, because frozen dataclasses take several times as long to
    create, and every token creates a delta.
    """

    request_id: str
    completions: list[CompletionDelta]
    finished: bool
    metrics: RequestMetrics
    num_prompt_tokens: int
    num_cached_tokens: int = 0
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    error: str | None = None
    error_type: str | None = None

    def merge(self, newer: OutputDelta) -> None:
        """Append the next delta."""
        by_index = {completion.index: completion for completion in self.completions}
        for completion in newer.completions:
            if (older := by_index.get(completion.index)) is None:
                self.completions.append(completion)
            else:
                older.merge(completion)
        self.finished, self.metrics, self.num_cached_tokens = newer.finished, newer.metrics, newer.num_cached_tokens
        self.error, self.error_type = newer.error, newer.error_type
        if newer.prompt_logprobs is not None:
            self.prompt_logprobs = newer.prompt_logprobs

    def raise_error(self) -> None:
        """Raise `error` as an exception of class `error_type`; without effect if there is none."""
        if self.error is not None:
            raise_error(self.error, self.error_type)


class OutputCursor:
    """How much of a request's output one reader has received. Mutable."""

    __slots__ = ("has_prompt_logprobs", "positions")

    def __init__(self) -> None:
        self.positions: dict[int, tuple[int, int, bool]] = {}
        """By the index of a completion: the characters and tokens received, and whether its end was received."""
        self.has_prompt_logprobs = False


class OutputSource(Protocol):
    """A request, or a group of requests with the same prompt, as seen by the readers of its output."""

    @property
    def request_id(self) -> str:
        """The id of the request or of the group."""

    @property
    def has_ended(self) -> bool:
        """Whether there is no more output to come.

        Implementations make it a plain attribute, because it is read for each request in each step.
        """

    @property
    def prompt(self) -> str | None:
        """The prompt, if it was given as text."""

    @property
    def prompt_token_ids(self) -> list[int]:
        """The tokens of the prompt."""

    def delta(self, cursor: OutputCursor) -> OutputDelta:
        """Return the output after `cursor` and move the cursor to the end."""

    def output(self) -> RequestOutput:
        """Return the cumulative output. It costs as much as the output since the last call; not thread-safe."""


class OutputBuilder:
    """The output of one request; an `OutputSource`. Mutable.

    `end` sets `has_ended`, and `error` if the engine aborted the request.
    """

    __slots__ = (
        "_detokenizer",
        "_finished_s",
        "_first_token_s",
        "_has_text",
        "_logprobs",
        "_prompt_logprobs",
        "_reader",
        "_stop",
        "_stop_reason",
        "_text",
        "_tokenizer",
        "error",
        "has_ended",
        "index",
        "prompt",
        "prompt_token_ids",
        "request",
        "request_id",
    )

    def __init__(
        self,
        request: Request,
        prompt: str | None,
        tokenizer: Tokenizer,
        index: int = 0,
        *,
        is_chat: bool = False,
        visible_token_ids: Collection[int] = (),
    ) -> None:
        """`prompt` is the text of the prompt, `index` the index of the completion among those of its prompt.

        With `is_chat` the completion is a message of its own; otherwise it continues the text of the prompt. Its text
        has the special tokens `visible_token_ids` and no others.
        """
        self.request = request
        self.request_id = request.request_id
        self.index = index
        self.prompt = prompt
        self.prompt_token_ids = request.prompt_token_ids
        self.has_ended = False
        self.error: AetherMindError | None = None
        self._prompt_logprobs: list[dict[int, Logprob] | None] | None = None
        self._tokenizer = tokenizer
        before = _preceding_token_ids(request, tokenizer, is_chat=is_chat)
        self._has_text = last_text_token(tokenizer, before) is not None
        self._detokenizer = Detokenizer(tokenizer, visible_token_ids=visible_token_ids, before=before)
        self._stop = StopChecker(request.params.stop) if request.params.stop else None
        self._text = ""
        self._logprobs: list[dict[int, Logprob]] = []
        self._stop_reason: str | int | None = None
        self._first_token_s: float | None = None
        self._finished_s: float | None = None
        self._reader: OutputReader | None = None

    def set_prompt_logprobs(self, logprobs: Sequence[TokenLogprobs | None]) -> None:
        """Set the log probabilities of the tokens of the prompt; None where a token has none."""
        self._prompt_logprobs, is_first = [], True
        for token_id, entry in zip(self.request.prompt_token_ids, logprobs, strict=True):
            by_token_id = (
                None if entry is None else _logprobs_by_token_id(self._tokenizer, token_id, entry, is_first=is_first)
            )
            self._prompt_logprobs.append(by_token_id)
            is_first = is_first and token_id in self._tokenizer.special_token_ids

    def add_forced_token(self, token_id: int) -> None:
        """Append a forced token before the request runs. It does not count as the first token for TTFT."""
        self.request.append_token(token_id)
        self._emit(self._push(token_id))

    def add(
        self, token_id: int, logprobs: TokenLogprobs | None, reason: FinishReason | None, now: float
    ) -> FinishReason | None:
        """Add the token just appended to the request; returns why the request ends, which a stop string may decide."""
        if self._first_token_s is None:
            self._first_token_s = now
        if logprobs is not None:
            is_first = not self._has_text
            self._logprobs.append(_logprobs_by_token_id(self._tokenizer, token_id, logprobs, is_first=is_first))
        if reason is FinishReason.STOP:
            self._stop_reason = None if token_id in self.request.eos_token_ids else token_id
            return self._flush(reason)
        if self._emit(self._push(token_id)):
            return FinishReason.STOP
        return self._flush(reason) if reason else None

    def end(self, now: float, error: AetherMindError | None = None) -> None:
        """Mark the output as complete; the request's finish reason must be set before."""
        self.has_ended = True
        self.error = error
        self._finished_s = now

    def delta(self, cursor: OutputCursor) -> OutputDelta:
        """Return the output after `cursor` and move the cursor to the end."""
        completion = self.completion_delta(cursor)
        return OutputDelta(
            self.request_id,
            [] if completion is None else [completion],
            self.has_ended,
            self.metrics,
            self.request.num_prompt_tokens,
            self.request.num_cached_tokens,
            self.new_prompt_logprobs(cursor),
            None if self.error is None else str(self.error),
            None if self.error is None else error_type_of(self.error),
        )

    def output(self) -> RequestOutput:
        """Return the cumulative output (see `OutputSource`)."""
        self._reader = self._reader or OutputReader()
        return self._reader.read(self)

    def completion_delta(self, cursor: OutputCursor) -> CompletionDelta | None:
        """Return the completion after `cursor` and move the cursor to its end; None if it has not changed."""
        request, text, token_ids = self.request, self._text, self.request.output_token_ids
        num_chars, num_tokens, is_finished = cursor.positions.get(self.index, _START)
        reason = request.finish_reason if self.has_ended else None
        if is_finished or (reason is None and len(token_ids) == num_tokens and len(text) == num_chars):
            return None
        cursor.positions[self.index] = (len(text), len(token_ids), reason is not None)
        return CompletionDelta(
            self.index,
            text[max(num_chars, 0) :],
            token_ids[num_tokens:],
            None if request.params.logprobs is None else self._logprobs[num_tokens:],
            len(token_ids),
            None if reason is None else reason.value,
            self._stop_reason,
        )

    def new_prompt_logprobs(self, cursor: OutputCursor) -> list[dict[int, Logprob] | None] | None:
        """Return the log probabilities of the prompt unless the reader of `cursor` has received them."""
        if cursor.has_prompt_logprobs or self._prompt_logprobs is None:
            return None
        cursor.has_prompt_logprobs = True
        return self._prompt_logprobs

    @property
    def metrics(self) -> RequestMetrics:
        """Times and counts of the request so far."""
        request = self.request
        return RequestMetrics(
            request.arrival,
            self._first_token_s,
            self._finished_s,
            request.admitted,
            request.num_preemptions,
            request.num_draft_tokens,
            request.num_accepted_tokens,
        )

    def _push(self, token_id: int) -> str:
        self._has_text = self._has_text or token_id not in self._tokenizer.special_token_ids
        return self._detokenizer.push(token_id)

    def _emit(self, delta: str) -> bool:
        """Append text; returns whether a stop string matched. Stop strings are matched from `min_tokens` on."""
        if self._stop is None:
            self._text += delta
            return False
        result = self._stop.push(delta, may_stop=self.request.num_output_tokens >= self.request.params.min_tokens)
        self._text += result.text
        if result.is_stopped:
            self._stop_reason = result.matched
        return result.is_stopped

    def _flush(self, reason: FinishReason) -> FinishReason:
        """Append the text that was withheld; a stop string may match in it."""
        if self._emit(self._detokenizer.finish()):
            return FinishReason.STOP
        if self._stop is not None:
            self._text += self._stop.flush()
        return reason


class OutputAccumulator:
    """Builds the cumulative outputs of a request from its deltas. Mutable.

    The outputs share the lists that grow (see `CompletionOutput`), so that creating one costs only as much as its
    delta.
    """

    __slots__ = ("_completions", "_prompt", "_prompt_logprobs", "_prompt_token_ids")

    def __init__(self, prompt: str | None, prompt_token_ids: list[int]) -> None:
        self._prompt = prompt
        self._prompt_token_ids = prompt_token_ids
        self._prompt_logprobs: list[dict[int, Logprob] | None] | None = None
        self._completions: dict[int, _CumulativeCompletion] = {}

    def add(self, delta: OutputDelta) -> RequestOutput:
        """Add a delta and return the output up to its end."""
        for completion in delta.completions:
            cumulative = self._completions.get(completion.index)
            if cumulative is None:
                cumulative = self._completions[completion.index] = _CumulativeCompletion()
            cumulative.add(completion)
        if delta.prompt_logprobs is not None:
            self._prompt_logprobs = delta.prompt_logprobs
        return RequestOutput(
            delta.request_id,
            self._prompt,
            self._prompt_token_ids,
            [self._completions[index].output(index) for index in sorted(self._completions)],
            delta.finished,
            delta.metrics,
            delta.error,
            delta.num_cached_tokens,
            self._prompt_logprobs,
            delta.error_type,
        )


class OutputReader:
    """Reads the cumulative output of one request from its source. Mutable."""

    __slots__ = ("_accumulator", "_cursor")

    def __init__(self) -> None:
        self._cursor = OutputCursor()
        self._accumulator: OutputAccumulator | None = None

    def read(self, source: OutputSource) -> RequestOutput:
        """Return the output of the request up to now."""
        if self._accumulator is None:
            self._accumulator = OutputAccumulator(source.prompt, source.prompt_token_ids)
        return self._accumulator.add(source.delta(self._cursor))


@dataclass(slots=True)
class _CumulativeCompletion:
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    def add(self, delta: CompletionDelta) -> None:
        self.text += delta.text
        self.token_ids += delta.token_ids
        if delta.logprobs is not None:
            self.logprobs = [] if self.logprobs is None else self.logprobs
            self.logprobs += delta.logprobs
        self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason

    def output(self, index: int) -> CompletionOutput:
        return CompletionOutput(index, self.text, self.token_ids, self.logprobs, self.finish_reason, self.stop_reason)


def _preceding_token_ids(request: Request, tokenizer: Tokenizer, *, is_chat: bool) -> Sequence[int]:
    """Return the tokens after which a completion is detokenised: those of the prompt, whose text it continues.

    The completion of a chat is a text of its own. Structured outputs are exact to the character, so no leading space is
    removed from them.
    """
    structured_outputs = request.params.structured_outputs
    if structured_outputs is not None and not structured_outputs.is_triggered:
        return tokenizer.anchor
    return () if is_chat else request.prompt_token_ids


def _logprobs_by_token_id(
    tokenizer: Tokenizer, token_id: int, logprobs: TokenLogprobs, *, is_first: bool
) -> dict[int, Logprob]:
    """Return log probabilities by token id: of the most likely tokens in order, and of the token itself."""
    text = partial(tokenizer.token_text, is_first=is_first)
    by_token_id = {
        token: Logprob(value, rank, text(token)) for rank, (token, value) in enumerate(logprobs.top, start=1)
    }
    by_token_id.setdefault(token_id, Logprob(logprobs.logprob, logprobs.rank, text(token_id)))
    return by_token_id


def error_type_of(error: AetherMindError) -> str:
    """Return the name of the error's class, or of its nearest base class that `aethermind.errors` defines."""
    return next(base.__name__ for base in type(error).__mro__ if base.__module__ == AetherMindError.__module__)
