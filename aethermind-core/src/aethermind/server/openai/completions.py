"""`/v1/completions`: texts continued."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from aethermind.engine.requests.output import CompletionOutput
from aethermind.server.framing import TextEvents
from aethermind.server.openai.answers import Answer, TextPart, own_id, usage_of
from aethermind.server.openai.foreign_fields import OF_PROMPTS, ForeignField
from aethermind.server.openai.inputs import TextsOrTokens, prompts_of
from aethermind.server.openai.sampling import SamplingFields, sampling_params
from aethermind.text.token_offsets import TokenOffsets, prompt_offsets

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aethermind.engine.requests.output import Logprob, RequestOutput
    from aethermind.engine.requests.prompt_reader import Prompt
    from aethermind.sampling.params import SamplingParams
    from aethermind.server.framing import Event
    from aethermind.server.served_model import ServedModel
    from aethermind.text.tokenizer import Tokenizer

    _Told = tuple[int, dict[int, Logprob] | None, int]
    """A token, what was likely in its place, and where it begins in the text."""

__all__ = ["CompletionAnswer", "CompletionRequest"]

MAX_PROMPTS = 64
DEFAULT_MAX_TOKENS = 16
"""OpenAI's."""


class CompletionRequest(SamplingFields):
    """The body of a request. `prompt` is a text, some texts, the token ids of one, or those of some."""

    foreign: ClassVar[Mapping[str, ForeignField]] = OF_PROMPTS

    prompt: TextsOrTokens
    echo: bool | None = None
    logprobs: int | None = None

    @property
    def is_only_echo(self) -> bool:
        """Whether the prompt is wanted without an answer, as who scores texts asks."""
        return bool(self.echo) and self.max_tokens == 0

    def prompts(self) -> list[Prompt]:
        """The prompts, each as the engine takes them."""
        return prompts_of(self.prompt, "prompt", MAX_PROMPTS)

    def sampling(self, model: ServedModel) -> SamplingParams:
        """What to ask of sampling. Engines write one token at least, which is not told where none is wanted."""
        return sampling_params(
            self,
            model,
            max_tokens=1 if self.is_only_echo else self.max_tokens,
            default_max_tokens=DEFAULT_MAX_TOKENS,
            logprobs=self.logprobs,
            prompt_logprobs=self.logprobs if self.echo else None,
        )


class CompletionAnswer(Answer):
    """Objects for the answer to one request, whole or in parts."""

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
        if self._has_usage:  # every chunk has the field then, and the last one its value
            self._head["usage"] = None
        self._tokenizer = model.tokenizer
        self._offsets: dict[int, TokenOffsets] = {}
        self._texts = TextEvents(self.framing, lambda index, text: self._chunk(_choice(index, text)))

    def whole(self, outputs: Sequence[RequestOutput]) -> dict[str, Any]:
        choices: list[dict[str, Any]] = []
        outputs = self._told(outputs)
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
        told = self._logprobs(index, part.token_ids, part.logprobs, output if part.is_first else None)
        return (self._chunk(_choice(index, text, part.finish_reason, part.stop_reason, told)),)

    def end(self, outputs: Sequence[RequestOutput]) -> Iterable[Event]:
        if not self._has_usage:
            return ()
        return ({**self._head, "choices": [], "usage": usage_of(self._told(outputs))},)

    def _told(self, outputs: Sequence[RequestOutput]) -> Sequence[RequestOutput]:
        """Outputs as far as they are told."""
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
        begun: RequestOutput | None,
    ) -> dict[str, Any] | None:
        """Those of tokens that an answer gained, after those of the echoed prompt where it has just `begun`."""
        if logprobs is None:
            return None
        told: list[_Told] = []
        if begun is not None:
            prefix, prompt_ids = self._echoed(begun), begun.prompt_token_ids
            if begun.prompt_logprobs is not None and self._is_echoing:
                places = prompt_offsets(self._tokenizer, prefix, prompt_ids)
                told += zip(prompt_ids, begun.prompt_logprobs, places, strict=True)
            self._offsets[index] = TokenOffsets(self._tokenizer, len(prefix), before=prompt_ids)
        places = [self._offsets[index].push(token_id) for token_id in token_ids]
        told += zip(token_ids, logprobs, places, strict=True)
        return _described(told, self._tokenizer)

    def _echoed(self, output: RequestOutput) -> str:
        if not self._is_echoing:
            return ""
        return output.prompt if output.prompt is not None else self._tokenizer.decode(output.prompt_token_ids)


def _emptied(answer: CompletionOutput) -> CompletionOutput:
    """An answer of which nothing is told but its end."""
    logprobs: list[dict[int, Logprob]] | None = None if answer.logprobs is None else []
    return CompletionOutput(answer.index, "", [], logprobs, "length", None)


def _choice(
    index: int, text: str, finish: str | None = None, stop: str | int | None = None, logprobs: Any = None
) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish, "stop_reason": stop}


def _described(told: Sequence[_Told], tokenizer: Tokenizer) -> dict[str, Any]:
    """Tokens with their log probabilities, in lists; nothing comes before a prompt's first token, which has none."""
    tokens, chosen, top = [], [], []
    for token_id, alternatives, _ in told:
        tokens.append(tokenizer.decode([token_id]) if alternatives is None else alternatives[token_id].decoded_token)
        chosen.append(None if alternatives is None else alternatives[token_id].logprob)
        top.append(None if alternatives is None else {one.decoded_token: one.logprob for one in alternatives.values()})
    offsets = [offset for _, _, offset in told]
    return {"tokens": tokens, "token_logprobs": chosen, "top_logprobs": top, "text_offset": offsets}
