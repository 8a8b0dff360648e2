"""How an answer is told, whatever the endpoint: what is new of it since the last part, and what it took."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aethermind.server.framing import UNNAMED, Event, Framing

if TYPE_CHECKING:
    from aethermind.engine.requests.output import CompletionOutput, Logprob, RequestOutput

__all__ = ["Answer", "PartCutter", "TextPart", "own_id", "usage_of"]


@dataclass(slots=True)
class TextPart:
    """What an answer gained. `offset` counts the characters before it; `finish_reason` is set in the last part.

    There is one for every token, so it is not frozen (see `engine.requests.output`).
    """

    text: str
    token_ids: list[int]
    logprobs: list[dict[int, Logprob]] | None
    offset: int
    is_first: bool
    finish_reason: str | None
    stop_reason: str | int | None

    @property
    def is_only_text(self) -> bool:
        """Whether there is nothing to tell but its text."""
        return self.logprobs is None and self.finish_reason is None


class PartCutter:
    """Cuts one growing answer into parts. Mutable."""

    def __init__(self) -> None:
        self._num_chars = 0
        self._num_tokens = 0
        self._is_first = True
        self._is_over = False

    def cut(self, output: CompletionOutput) -> TextPart | None:
        """What is new since the last part, or None where nothing can be seen of it yet.

        An answer ends once, however often it comes again with others to the same prompt.
        """
        if self._is_over:
            return None
        token_ids, logprobs = output.since(self._num_tokens)
        if len(output.text) == self._num_chars and output.finish_reason is None and not logprobs:
            return None
        part = TextPart(
            output.text[self._num_chars :],
            token_ids,
            logprobs,
            self._num_chars,
            self._is_first,
            output.finish_reason,
            output.stop_reason,
        )
        self._num_chars = len(output.text)
        self._num_tokens = output.num_tokens
        self._is_first = False
        self._is_over = output.finish_reason is not None
        return part


class Answer(ABC):
    """An endpoint's objects for the answer to one request."""

    framing: Framing = UNNAMED
    """How events are written."""

    @abstractmethod
    def whole(self, outputs: Sequence[RequestOutput]) -> dict[str, Any]:
        """All of it at once."""

    @abstractmethod
    def part(self, index: int, output: RequestOutput, part: TextPart) -> Iterable[Event]:
        """The events that tell a part of the choice `index`."""

    def begin(self) -> Iterable[Event]:
        """The events before the first part."""
        return ()

    @abstractmethod
    def end(self, outputs: Sequence[RequestOutput]) -> Iterable[Event]:
        """The events after the last part."""


def own_id(request_id: str, prefix: str) -> str:
    """The id of an answer, by which its request can be cancelled too."""
    return prefix + request_id.removeprefix("req_")


def usage_of(outputs: Sequence[RequestOutput]) -> dict[str, Any]:
    """Tokens read and written, in OpenAI's names."""
    num_prompt = sum(len(output.prompt_token_ids) for output in outputs)
    num_written = sum(one.num_tokens for output in outputs for one in output.outputs)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_written,
        "total_tokens": num_prompt + num_written,
        "prompt_tokens_details": {"cached_tokens": sum(output.num_cached_tokens for output in outputs)},
    }
