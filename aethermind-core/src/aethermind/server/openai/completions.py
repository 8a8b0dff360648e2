"""`/v1/completions`: texts continued."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from aethermind.server.framing import TextEvents
from aethermind.server.openai.answers import Answer, TextPart, own_id, usage_of
from aethermind.server.openai.inputs import TextsOrTokens, prompts_of
from aethermind.server.openai.sampling import SamplingFields, sampling_params

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aethermind.engine.requests.output import Logprob, RequestOutput
    from aethermind.engine.requests.prompt_reader import Prompt
    from aethermind.sampling.params import SamplingParams
    from aethermind.server.framing import Event
    from aethermind.server.served_model import ServedModel
    from aethermind.text.tokenizer import Tokenizer

__all__ = ["CompletionAnswer", "CompletionRequest"]

MAX_PROMPTS = 64
DEFAULT_MAX_TOKENS = 16
"""OpenAI's."""


class CompletionRequest(SamplingFields):
    """The body of a request. `prompt` is a text, some texts, the token ids of one, or those of some."""

    prompt: TextsOrTokens
    echo: bool | None = None
    logprobs: int | None = None

    def prompts(self) -> list[Prompt]:
        """The prompts, each as the engine takes them."""
        return prompts_of(self.prompt, "prompt", MAX_PROMPTS)

    def sampling(self, model: ServedModel) -> SamplingParams:
        """What to ask of sampling."""
        max_tokens = self.max_tokens if self.max_tokens is not None else DEFAULT_MAX_TOKENS
        return sampling_params(
            self,
            model.sampling_defaults,
            max_tokens=max_tokens,
            logprobs=self.logprobs,
            prompt_logprobs=self.logprobs if self.echo else None,
        )


class CompletionAnswer(Answer):
    """Objects for the answer to one request, whole or in parts."""

    def __init__(self, request: CompletionRequest, model: ServedModel, request_id: str) -> None:
        self._is_echoing = bool(request.echo)
        self._has_usage = request.has_stream_usage
        self._head = {
            "id": own_id(request_id, "cmpl-"),
            "object": "text_completion",
            "created": int(time.time()),
            "model": model.name,
        }
        self._tokenizer = model.tokenizer
        self._texts = TextEvents(self.framing, lambda index, text: self._chunk(_choice(index, text)))

    def whole(self, outputs: Sequence[RequestOutput]) -> dict[str, Any]:
        choices: list[dict[str, Any]] = []
        for output in outputs:
            prefix = self._echoed(output)
            for one in output.outputs:
                logprobs = self._logprobs(output, one.token_ids, one.logprobs, 0)
                choices.append(_choice(len(choices), prefix + one.text, one.finish_reason, one.stop_reason, logprobs))
        return {**self._head, "choices": choices, "usage": usage_of(outputs)}

    def part(self, index: int, output: RequestOutput, part: TextPart) -> Iterable[Event]:
        prefix = self._echoed(output)
        text = prefix + part.text if part.is_first else part.text
        if part.is_only_text:
            return (self._texts.written(index, text),)
        offset = part.offset if part.is_first else len(prefix) + part.offset
        logprobs = self._logprobs(output if part.is_first else None, part.token_ids, part.logprobs, offset)
        return (self._chunk(_choice(index, text, part.finish_reason, part.stop_reason, logprobs)),)

    def end(self, outputs: Sequence[RequestOutput]) -> Iterable[Event]:
        return ({**self._head, "choices": [], "usage": usage_of(outputs)},) if self._has_usage else ()

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        return {**self._head, "choices": [choice]}

    def _logprobs(
        self,
        output: RequestOutput | None,
        token_ids: Sequence[int],
        logprobs: Sequence[dict[int, Logprob]] | None,
        offset: int,
    ) -> dict[str, Any] | None:
        """Those of an answer's tokens, after those of the prompt where that is echoed from `output`."""
        if logprobs is None:
            return None
        told: list[tuple[int, dict[int, Logprob] | None]] = []
        if output is not None and output.prompt_logprobs is not None and self._is_echoing:
            told += zip(output.prompt_token_ids, output.prompt_logprobs, strict=True)
        return _described([*told, *zip(token_ids, logprobs, strict=True)], offset, self._tokenizer)

    def _echoed(self, output: RequestOutput) -> str:
        if not self._is_echoing:
            return ""
        return output.prompt if output.prompt is not None else self._tokenizer.decode(output.prompt_token_ids)


def _choice(
    index: int, text: str, finish: str | None = None, stop: str | int | None = None, logprobs: Any = None
) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish, "stop_reason": stop}


def _described(
    told: Sequence[tuple[int, dict[int, Logprob] | None]], offset: int, tokenizer: Tokenizer
) -> dict[str, Any]:
    """Tokens with their log probabilities, in lists; nothing comes before a prompt's first token, which has none."""
    tokens, chosen, top, offsets = [], [], [], []
    for token_id, alternatives in told:
        token = tokenizer.decode([token_id]) if alternatives is None else alternatives[token_id].decoded_token
        tokens.append(token)
        chosen.append(None if alternatives is None else alternatives[token_id].logprob)
        top.append(None if alternatives is None else {one.decoded_token: one.logprob for one in alternatives.values()})
        offsets.append(offset)
        offset += len(token)
    return {"tokens": tokens, "token_logprobs": chosen, "top_logprobs": top, "text_offset": offsets}
