"""Output deltas: what a request has produced since its reader last asked, from the engine to the client.

Engine → `OutputDelta` → client: an `OutputSource` writes a delta for each of its readers, relative to the reader's
`OutputCursor`. Deltas may be merged on the way (`OutputDelta.merge`), and cross to another process as they are. Servers
stream them. `OutputAccumulator` turns them into the cumulative `RequestOutput` of the Python API.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from aethermind.engine.requests.output import CompletionOutput, Logprob, RequestMetrics, RequestOutput, raise_error

__all__ = ["CompletionDelta", "OutputAccumulator", "OutputCursor", "OutputDelta", "OutputReader", "OutputSource"]


@dataclass(slots=True)
class CompletionDelta:
    """New output of one of a request's answers. `finish_reason` is set in the answer's last delta only.

    `logprobs` has an entry for each new token; it is None if no log probabilities were requested. `num_tokens` counts
    all tokens of the answer so far.
    """

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[dict[int, Logprob]] | None
    num_tokens: int
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    def merge(self, newer: CompletionDelta) -> None:
        """Append the delta that follows."""
        self.text += newer.text
        self.token_ids += newer.token_ids
        if newer.logprobs is not None:
            self.logprobs = [] if self.logprobs is None else self.logprobs
            self.logprobs += newer.logprobs
        self.num_tokens = newer.num_tokens
        self.finish_reason, self.stop_reason = newer.finish_reason, newer.stop_reason


@dataclass(slots=True)
class OutputDelta:
    """New output of a request: the answers that have grown or ended, and the latest facts about the request.

    `finished` is set in the last delta. `prompt_logprobs` come once. `error` and `error_type` are those of
    `RequestOutput`. Its owner may change it; a delta for every token is too frequent for frozen dataclasses, which take
    several times as long to create.
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
        """Append the delta that follows."""
        own = {one.index: one for one in self.completions}
        for one in newer.completions:
            if (before := own.get(one.index)) is None:
                self.completions.append(one)
            else:
                before.merge(one)
        self.finished, self.metrics, self.num_cached_tokens = newer.finished, newer.metrics, newer.num_cached_tokens
        self.error, self.error_type = newer.error, newer.error_type
        if newer.prompt_logprobs is not None:
            self.prompt_logprobs = newer.prompt_logprobs

    def raise_error(self) -> None:
        """Raise `error` as an exception of class `error_type`; without effect if there is none."""
        raise_error(self.error, self.error_type)


class OutputCursor:
    """How much of a request's output one reader has received. Mutable."""

    __slots__ = ("has_prompt_logprobs", "positions")

    def __init__(self) -> None:
        self.positions: dict[int, tuple[int, int, bool]] = {}
        """By the index of an answer: characters and tokens received, and whether its end was."""
        self.has_prompt_logprobs = False


class OutputSource(Protocol):
    """A request, or a group of requests to one prompt, as the readers of its output see it."""

    @property
    def request_id(self) -> str:
        """The id of the request or of the group."""

    @property
    def has_ended(self) -> bool:
        """Whether there is no more output to come. Read for each request in each step, so it is a plain attribute."""

    @property
    def prompt(self) -> str | None:
        """The prompt, if it was given as text."""

    @property
    def prompt_token_ids(self) -> list[int]:
        """The tokens of the prompt."""

    def delta(self, cursor: OutputCursor) -> OutputDelta:
        """The output since `cursor`, which is moved to the end."""


class OutputAccumulator:
    """Builds the cumulative outputs of a request from its deltas. Mutable.

    The outputs share the lists that grow (see `CompletionOutput`), so that each costs no more than its delta.
    """

    __slots__ = ("_answers", "_prompt", "_prompt_logprobs", "_prompt_token_ids")

    def __init__(self, prompt: str | None, prompt_token_ids: list[int]) -> None:
        self._prompt = prompt
        self._prompt_token_ids = prompt_token_ids
        self._prompt_logprobs: list[dict[int, Logprob] | None] | None = None
        self._answers: dict[int, _Answer] = {}

    def add(self, delta: OutputDelta) -> RequestOutput:
        """The output of the request up to and including `delta`."""
        for one in delta.completions:
            answer = self._answers.get(one.index)
            if answer is None:
                answer = self._answers[one.index] = _Answer()
            answer.add(one)
        if delta.prompt_logprobs is not None:
            self._prompt_logprobs = delta.prompt_logprobs
        return RequestOutput(
            delta.request_id,
            self._prompt,
            self._prompt_token_ids,
            [self._answers[index].output(index) for index in sorted(self._answers)],
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
        """The output of the request up to now."""
        if self._accumulator is None:
            self._accumulator = OutputAccumulator(source.prompt, source.prompt_token_ids)
        return self._accumulator.add(source.delta(self._cursor))


@dataclass(slots=True)
class _Answer:
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
