"""What the endpoints have in common: an answer written whole or as events, and its token usage."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aethermind.server.sse import UNNAMED, Event, Framing

if TYPE_CHECKING:
    from aethermind.engine.requests.output import Logprob, RequestOutput
    from aethermind.engine.requests.output_delta import CompletionDelta, OutputDelta
    from aethermind.engine.requests.prompt_reader import EnginePrompt

__all__ = ["Answer", "PromptState", "own_id", "usage_of"]


@dataclass(slots=True)
class PromptState:
    """One prompt of a request, and what its events and its usage need besides each delta. Mutable."""

    text: str | None
    token_ids: Sequence[int]
    logprobs: list[dict[int, Logprob] | None] | None = None
    num_output_tokens: int = 0
    """Of all answers to the prompt."""
    num_cached_tokens: int = 0

    @classmethod
    def before(cls, prompt: EnginePrompt) -> PromptState:
        """The state of a prompt before its first delta."""
        return cls(prompt.text, prompt.token_ids)

    @classmethod
    def after(cls, output: RequestOutput) -> PromptState:
        """The state of a prompt after all deltas of this output."""
        num_output_tokens = sum(one.num_tokens for one in output.outputs)
        return cls(
            output.prompt, output.prompt_token_ids, output.prompt_logprobs, num_output_tokens, output.num_cached_tokens
        )

    def add(self, delta: OutputDelta) -> None:
        """Update the state by the next delta."""
        self.num_output_tokens += sum(len(one.token_ids) for one in delta.completions)
        self.num_cached_tokens = delta.num_cached_tokens
        if delta.prompt_logprobs is not None:
            self.logprobs = delta.prompt_logprobs


class Answer(ABC):
    """The objects of an endpoint for the answer to one request."""

    framing: Framing = UNNAMED
    """How events are written."""

    @abstractmethod
    def whole(self, outputs: Sequence[RequestOutput]) -> dict[str, Any]:
        """The body of a response that is not streamed. `outputs` are in the order of the prompts."""

    @abstractmethod
    def part(self, index: int, delta: CompletionDelta, prompt: PromptState) -> Iterable[Event]:
        """The events for a delta of the choice `index`, an answer to `prompt`."""

    def begin(self) -> Iterable[Event]:
        """The events before the first delta."""
        return ()

    @abstractmethod
    def end(self, prompts: Sequence[PromptState]) -> Iterable[Event]:
        """The events after the last delta."""


def own_id(request_id: str, prefix: str) -> str:
    """The id of an answer, by which its request can be cancelled, too."""
    return prefix + request_id.removeprefix("req_")


def usage_of(prompts: Sequence[PromptState]) -> dict[str, Any]:
    """Token counts, in OpenAI's names."""
    num_prompt = sum(len(prompt.token_ids) for prompt in prompts)
    num_output = sum(prompt.num_output_tokens for prompt in prompts)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_output,
        "total_tokens": num_prompt + num_output,
        "prompt_tokens_details": {"cached_tokens": sum(prompt.num_cached_tokens for prompt in prompts)},
    }
