"""`/v1/completions`: the request's schema, and the whole or streamed continuation of one or several prompts."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from aethermind.engine.requests.output import CompletionOutput
from aethermind.server.framing import TextEvents
from aethermind.server.openai.answers import Answer, TextPart, own_id, usage_of
from aethermind.server.openai.sampling import SamplingFields, sampling_params
from aethermind.server.openai.serving import TextsOrTokens, prompts_of
from aethermind.server.openai.unknown_fields import OF_PROMPTS, ForeignField
from aethermind.text.detokenizer import TokenOffsets, prompt_offsets

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aethermind.engine.requests.output import Logprob, RequestOutput
    from aethermind.engine.requests.prompt_reader import Prompt
    from aethermind.sampling.params import SamplingParams
    from aethermind.server.framing import Event
    from aethermind.server.served_model import ServedModel
    from aethermind.text.tokenizer import Tokenizer

    _ScoredToken = tuple[int, dict[int, Logprob] | None, int]
    """A token id, the log probabilities at its position, and its offset in the text."""

__all__ = ["CompletionAnswer", "CompletionRequest"]

MAX_PROMPTS = 64
DEFAULT_MAX_TOKENS = 16
"""The default of OpenAI's API."""


class CompletionRequest(SamplingFields):
    """The body of a request."""

    foreign: ClassVar[Mapping[str, ForeignField]] = OF_PROMPTS

    prompt: TextsOrTokens
    echo: bool | None = None
    logprobs: int | None = None

    @property
    def is_only_echo(self) -> bool:
        """Whether the request only scores the prompt (`echo` with `max_tokens` 0)."""
        return bool(self.echo) and self.max_tokens == 0

    def prompts(self) -> list[Prompt]:
        """The prompts in the engine's format."""
        return prompts_of(self.prompt, "prompt", MAX_PROMPTS)

    def sampling(self, model: ServedModel) -> SamplingParams:
        """The sampling parameters. Engines generate at least one token, which a response omits if it only echoes."""
        return sampling_params(
            self,
            model,
            max_tokens=1 if self.is_only_echo else self.max_tokens,
            default_max_tokens=DEFAULT_MAX_TOKENS,
            logprobs=self.logprobs,
            prompt_logprobs=self.logprobs if self.echo else None,
        )


class CompletionAnswer(Answer):
    """The completion object of one request, whole or as chunks."""

    def __init__(self, request: CompletionRequest, model: ServedModel, request_id: str) -> None:
        self._is_echoing = bool(request.echo)
        self._is_only_echo = request.is_only_echo
        self._has_usage = request.has_stream_usage
        self._head: dict[str, Any] = {
            "id": own_id(request_id, "cmpl-"),
            "object": "text_completion",
            "created": int(time.time()),
            "model": model.name,
        }
        if self._has_usage:  # all chunks have the field, which is null in all but the last
            self._head["usage"] = None
        self._tokenizer = model.tokenizer
        self._offsets: dict[int, TokenOffsets] = {}
        self._texts = TextEvents(self.framing, lambda index, text: self._chunk(_choice(index, text)))

    def whole(self, outputs: Sequence[RequestOutput]) -> dict[str, Any]:
        choices: list[dict[str, Any]] = []
        outputs = self._shown(outputs)
        for output in outputs:
            prefix = self._echoed(output)
            for one in output.outputs:
                index = len(choices)
                logprobs = self._logprobs(index, one.token_ids, one.logprobs, output)
                choices.append(_choice(index, prefix + one.text, one.finish_reason, one.stop_reason, logprobs))
        return {**self._head, "choices": choices, "usage": usage_of(outputs)}

    def part(self, index: int, output: RequestOutput, part: TextPart) -> Iterable[Event]:
        if self._is_only_echo:
            part = replace(part, text="", token_ids=[], finish_reason="length", stop_reason=None)
            part.logprobs = None if part.logprobs is None else []
        text = self._echoed(output) + part.text if part.is_first else part.text
        if part.is_only_text:
            return (self._texts.written(index, text),)
        logprobs = self._logprobs(index, part.token_ids, part.logprobs, output if part.is_first else None)
        return (self._chunk(_choice(index, text, part.finish_reason, part.stop_reason, logprobs)),)

    def end(self, outputs: Sequence[RequestOutput]) -> Iterable[Event]:
        if not self._has_usage:
            return ()
        return ({**self._head, "choices": [], "usage": usage_of(self._shown(outputs))},)

    def _shown(self, outputs: Sequence[RequestOutput]) -> Sequence[RequestOutput]:
        """The outputs that the response shows: without text if it only echoes."""
        if not self._is_only_echo:
            return outputs
        return [replace(output, outputs=[_emptied(one) for one in output.outputs]) for output in outputs]

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        return {**self._head, "choices": [choice]}

    def _logprobs(
        self,
        index: int,
        token_ids: Sequence[int],
        logprobs: Sequence[dict[int, Logprob]] | None,
        first: RequestOutput | None,
    ) -> dict[str, Any] | None:
        """The log probabilities of new tokens, behind those of the echoed prompt in the `first` output of an answer."""
        if logprobs is None:
            return None
        tokens: list[_ScoredToken] = []
        if first is not None:
            prefix, prompt_ids = self._echoed(first), first.prompt_token_ids
            if first.prompt_logprobs is not None and self._is_echoing:
                offsets = prompt_offsets(self._tokenizer, prefix, prompt_ids)
                tokens += zip(prompt_ids, first.prompt_logprobs, offsets, strict=True)
            self._offsets[index] = TokenOffsets(self._tokenizer, len(prefix), before=prompt_ids)
        offsets = [self._offsets[index].push(token_id) for token_id in token_ids]
        tokens += zip(token_ids, logprobs, offsets, strict=True)
        return _logprobs_object(tokens, self._tokenizer)

    def _echoed(self, output: RequestOutput) -> str:
        if not self._is_echoing:
            return ""
        return output.prompt if output.prompt is not None else self._tokenizer.decode(output.prompt_token_ids)


def _emptied(answer: CompletionOutput) -> CompletionOutput:
    """An answer without its text and tokens."""
    logprobs: list[dict[int, Logprob]] | None = None if answer.logprobs is None else []
    return CompletionOutput(answer.index, "", [], logprobs, "length", None)


def _choice(
    index: int, text: str, finish: str | None = None, stop: str | int | None = None, logprobs: Any = None
) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish, "stop_reason": stop}


def _logprobs_object(scored: Sequence[_ScoredToken], tokenizer: Tokenizer) -> dict[str, Any]:
    """The `logprobs` object of OpenAI's API. The first token of a prompt has no log probability."""
    tokens, chosen, top = [], [], []
    for token_id, alternatives, _ in scored:
        tokens.append(tokenizer.decode([token_id]) if alternatives is None else alternatives[token_id].decoded_token)
        chosen.append(None if alternatives is None else alternatives[token_id].logprob)
        top.append(None if alternatives is None else {one.decoded_token: one.logprob for one in alternatives.values()})
    offsets = [offset for _, _, offset in scored]
    return {"tokens": tokens, "token_logprobs": chosen, "top_logprobs": top, "text_offset": offsets}
