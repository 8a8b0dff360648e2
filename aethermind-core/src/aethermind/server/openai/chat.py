"""`/v1/chat/completions`: conversations answered."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any, Literal

from aethermind.server.openai.answers import Answer, TextPart, usage_of
from aethermind.server.openai.errors import ApiError
from aethermind.server.openai.json_body import StrictModel
from aethermind.server.openai.sampling import SamplingFields, sampling_params
from aethermind.text.chat_prompt import chat_prompt

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aethermind.engine.output import CompletionOutput, Logprob, RequestOutput
    from aethermind.engine.prompt_reader import Prompt
    from aethermind.sampling.params import SamplingParams
    from aethermind.server.served_model import ServedModel

__all__ = ["ChatAnswer", "ChatMessage", "ChatRequest", "written"]


class ContentPart(StrictModel):
    """A piece of a message. Text is the only kind so far."""

    type: Literal["text"]
    text: str


class ChatMessage(StrictModel):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    name: str | None = None

    def plain(self) -> dict[str, Any]:
        """The message as chat templates take it; a developer is what used to be the system."""
        content = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content or ())
        message = {"role": "system" if self.role == "developer" else self.role, "content": content}
        return message if self.name is None else {**message, "name": self.name}


class ChatRequest(SamplingFields):
    """The body of a request."""

    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def prompt(self, model: ServedModel) -> Prompt:
        """The conversation as the model's template writes it."""
        return written(self.messages, model, self.chat_template_kwargs)

    @property
    def asked_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def sampling(self, model: ServedModel) -> SamplingParams:
        """What to ask of sampling. Without a limit an answer may fill the context."""
        if self.top_logprobs is not None and not self.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs to be true.", param="top_logprobs")
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise ApiError(400, "Give max_tokens or max_completion_tokens, not both.", param="max_tokens")
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        return sampling_params(self, model.sampling_defaults, max_tokens=self.asked_tokens, logprobs=logprobs)


def written(messages: Sequence[ChatMessage], model: ServedModel, names: dict[str, Any] | None = None) -> str:
    """A conversation as the model's template writes it; `names` are further ones for the template."""
    if not messages:
        raise ApiError(400, "messages is empty; a conversation has at least one message.", param="messages")
    return chat_prompt(model.tokenizer, [message.plain() for message in messages], chat_template_kwargs=names)


class ChatAnswer(Answer):
    """Objects for the answer to one request, whole or in parts."""

    def __init__(self, request: ChatRequest, model: ServedModel) -> None:
        self._num_top = request.top_logprobs or 0
        self._head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": model.name}

    def whole(self, outputs: Sequence[RequestOutput]) -> dict[str, Any]:
        choices = [self._choice(one) for output in outputs for one in output.outputs]
        return {**self._head, "object": "chat.completion", "choices": choices, "usage": usage_of(outputs)}

    def part(self, index: int, output: RequestOutput, part: TextPart) -> Iterable[dict[str, Any]]:
        if part.is_first:
            yield self._chunk(index, {"role": "assistant", "content": ""})
        if part.text or part.logprobs:
            yield self._chunk(index, {"content": part.text}, self._logprobs(part.token_ids, part.logprobs))
        if part.finish_reason is not None:
            yield self._chunk(index, {}, finish_reason=part.finish_reason, stop_reason=part.stop_reason)

    def usage(self, outputs: Sequence[RequestOutput]) -> dict[str, Any]:
        return {**self._head, "object": "chat.completion.chunk", "choices": [], "usage": usage_of(outputs)}

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        logprobs: Any = None,
        finish_reason: str | None = None,
        stop_reason: str | int | None = None,
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        if stop_reason is not None:
            choice["stop_reason"] = stop_reason
        return {**self._head, "object": "chat.completion.chunk", "choices": [choice]}

    def _choice(self, one: CompletionOutput) -> dict[str, Any]:
        return {
            "index": one.index,
            "message": {"role": "assistant", "content": one.text, "refusal": None},
            "logprobs": self._logprobs(one.token_ids, one.logprobs),
            "finish_reason": one.finish_reason,
            "stop_reason": one.stop_reason,
        }

    def _logprobs(
        self, token_ids: Sequence[int], logprobs: Sequence[dict[int, Logprob]] | None
    ) -> dict[str, Any] | None:
        if logprobs is None:
            return None
        content = []
        for token_id, alternatives in zip(token_ids, logprobs, strict=True):
            top = [_token(other) for other in alternatives.values() if other.rank <= self._num_top]
            content.append({**_token(alternatives[token_id]), "top_logprobs": top})
        return {"content": content, "refusal": None}


def _token(one: Logprob) -> dict[str, Any]:
    return {"token": one.decoded_token, "logprob": one.logprob, "bytes": list(one.decoded_token.encode())}
