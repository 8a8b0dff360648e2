"""`/v1/completions`: texts continued."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from aethermind.server.openai.answers import Answer, TextPart, own_id, usage_of
from aethermind.server.openai.inputs import TextsOrTokens, prompts_of
from aethermind.server.openai.sampling import SamplingFields, sampling_params

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aethermind.engine.output import Logprob, RequestOutput
    from aethermind.engine.prompt_reader import Prompt
    from aethermind.sampling.params import SamplingParams
    from aethermind.server.served_model import ServedModel

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
        return sampling_params(self, model.sampling_defaults, max_tokens=max_tokens, logprobs=self.logprobs)


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

    def whole(self, outputs: Sequence[RequestOutput]) -> dict[str, Any]:
        choices: list[dict[str, Any]] = []
        for output in outputs:
            prefix = self._echoed(output)
            for one in output.outputs:
                logprobs = None if one.logprobs is None else _logprobs(one.token_ids, one.logprobs, len(prefix))
                choices.append(_choice(len(choices), prefix + one.text, one.finish_reason, one.stop_reason, logprobs))
        return {**self._head, "choices": choices, "usage": usage_of(outputs)}

    def part(self, index: int, output: RequestOutput, part: TextPart) -> Iterable[dict[str, Any]]:
        text = self._echoed(output) + part.text if part.is_first else part.text
        logprobs = None if part.logprobs is None else _logprobs(part.token_ids, part.logprobs, part.offset)
        yield {**self._head, "choices": [_choice(index, text, part.finish_reason, part.stop_reason, logprobs)]}

    def end(self, outputs: Sequence[RequestOutput]) -> Iterable[dict[str, Any]]:
        if self._has_usage:
            yield {**self._head, "choices": [], "usage": usage_of(outputs)}

    def _echoed(self, output: RequestOutput) -> str:
        if not self._is_echoing:
            return ""
        return output.prompt if output.prompt is not None else self._tokenizer.decode(output.prompt_token_ids)


def _choice(index: int, text: str, finish: str | None, stop: str | int | None, logprobs: Any) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish, "stop_reason": stop}


def _logprobs(token_ids: Sequence[int], logprobs: Sequence[dict[int, Logprob]], offset: int) -> dict[str, Any]:
    tokens, chosen, top, offsets = [], [], [], []
    for token_id, alternatives in zip(token_ids, logprobs, strict=True):
        one = alternatives[token_id]
        tokens.append(one.decoded_token)
        chosen.append(one.logprob)
        top.append({other.decoded_token: other.logprob for other in alternatives.values()})
        offsets.append(offset)
        offset += len(one.decoded_token)
    return {"tokens": tokens, "token_logprobs": chosen, "top_logprobs": top, "text_offset": offsets}
