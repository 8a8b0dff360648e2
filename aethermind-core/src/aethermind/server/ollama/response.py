"""Responses of Ollama's `/api/chat` and `/api/generate`: one object, or a stream of them that the last one sums up."""

from __future__ import annotations

import json
import math
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from aethermind.server.generation import PromptState, ResponseBuilder
from aethermind.server.openai.chat_response import ChatOutputParser, token_logprobs
from aethermind.server.openai.tools import call_id
from aethermind.server.sse import NDJSON, TextEvents
from aethermind.text.answer_format import AnswerFormat
from aethermind.text.answer_parts import Content, Reasoning, ToolCall
from aethermind.text.chat_prompt import RenderedChat

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aethermind.engine.requests.output import Logprob, RequestOutput
    from aethermind.engine.requests.output_delta import CompletionDelta
    from aethermind.server.observation.observer import HttpRecord
    from aethermind.server.ollama.requests import OllamaParams
    from aethermind.server.served_model import ServedModel
    from aethermind.server.sse import Event
    from aethermind.text.answer_parts import AnswerPart

__all__ = ["OllamaResponseBuilder", "nanoseconds", "timestamp"]


def timestamp(seconds: float | None = None) -> str:
    """A time since the epoch, or now, in RFC 3339."""
    now = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    return now.isoformat().replace("+00:00", "Z")


def nanoseconds(seconds: float | None) -> int:
    """A duration in nanoseconds, at least 1: clients divide by it."""
    return max(int((seconds or 0.0) * 1e9), 1)


class OllamaResponseBuilder(ResponseBuilder):
    """The response to one request.

    `record` has the times of its generation, and `load_s` is the time in seconds that the request took to get its
    model. The prompt of a chat is a `RenderedChat`; the answer to another is its text as it is.
    """

    framing = NDJSON

    def __init__(
        self, params: OllamaParams, model: ServedModel, record: HttpRecord, prompt: str = "", load_s: float = 0.0
    ) -> None:
        self._is_chat = params.body.is_chat
        self._record = record
        self._load_s = load_s
        self._tokenizer = model.tokenizer
        self._num_top = params.chat.top_logprobs or 0
        self._common_fields: dict[str, Any] = {"model": params.body.model, "created_at": timestamp()}
        format = model.answer_format if isinstance(prompt, RenderedChat) else AnswerFormat()
        self._parser = ChatOutputParser(params.chat, format, prompt)
        self._finish_reason: str | None = None
        self._texts = TextEvents(self.framing, lambda _, text: self._object([Content(text)]))

    def full_response(self, outputs: Sequence[RequestOutput]) -> dict[str, Any]:
        (completion,) = outputs[0].outputs
        self._finish_reason = completion.finish_reason
        parts = self._parser.read(completion.text, is_last=True)
        answer = self._object(parts, self._logprobs(completion.token_ids, completion.logprobs))
        return {**answer, **self._final_fields(PromptState.final(outputs[0]))}

    def delta_events(self, index: int, delta: CompletionDelta, prompt: PromptState) -> Iterable[Event]:
        parts = self._parser.read(delta.text, is_last=delta.finish_reason is not None)
        self._finish_reason = delta.finish_reason
        logprobs = self._logprobs(delta.token_ids, delta.logprobs)
        if logprobs:
            yield self._object(parts, logprobs)
            return
        for part in parts:
            yield self._texts.encode(index, part.text) if isinstance(part, Content) else self._object([part])

    def final_events(self, prompts: Sequence[PromptState]) -> Iterable[Event]:
        yield {**self._object([]), **self._final_fields(prompts[0])}

    def _object(self, parts: Sequence[AnswerPart], logprobs: list[dict[str, Any]] | None = None) -> dict[str, Any]:
        """The object that appends `parts` to the answer."""
        texts: dict[str, Any] = {"content": "".join(part.text for part in parts if isinstance(part, Content))}
        if thinking := "".join(part.text for part in parts if isinstance(part, Reasoning)):
            texts["thinking"] = thinking
        if calls := [_tool_call(part) for part in parts if isinstance(part, ToolCall)]:
            texts["tool_calls"] = calls
        if self._is_chat:
            content: dict[str, Any] = {"message": {"role": "assistant", **texts}}
        else:
            content = {"response": texts.pop("content"), **texts}
        answer = {**self._common_fields, **content, "done": False}
        return answer if logprobs is None else {**answer, "logprobs": logprobs}

    def _final_fields(self, prompt: PromptState) -> dict[str, Any]:
        generation = self._record.generations[0] if self._record.generations else None
        return {
            "done": True,
            "done_reason": self._finish_reason,
            "total_duration": nanoseconds(time.perf_counter() - self._record.arrived_s),
            "load_duration": nanoseconds(self._load_s),
            "prompt_eval_count": len(prompt.token_ids),
            "prompt_eval_duration": nanoseconds(None if generation is None else generation.prefill_s),
            "eval_count": prompt.num_output_tokens,
            "eval_duration": nanoseconds(None if generation is None else generation.decode_s),
        }

    def _logprobs(
        self, token_ids: Sequence[int], logprobs: Sequence[dict[int, Logprob]] | None
    ) -> list[dict[str, Any]] | None:
        return token_logprobs(self._tokenizer, token_ids, logprobs, self._num_top)


def _tool_call(call: ToolCall) -> dict[str, Any]:
    """A call with its arguments as an object."""
    function = {"index": call.call_index, "name": call.name, "arguments": _arguments(call.arguments)}
    return {"id": call_id(), "function": function}


def _arguments(text: str) -> dict[str, Any]:
    """The arguments of a call. Numbers that readers of JSON cannot hold are their texts, half characters are `?`."""
    arguments: dict[str, Any] = json.loads(text, parse_float=_finite, parse_int=_bounded, parse_constant=str)
    if "\\u" in text:
        arguments = json.loads(json.dumps(arguments, ensure_ascii=False).encode(errors="replace"))
    return arguments


def _finite(text: str) -> float | str:
    value = float(text)
    return value if math.isfinite(value) else text


def _bounded(text: str) -> int | str:
    """An integer of up to 300 digits, which every reader of JSON takes for a number."""
    return int(text) if len(text) <= 300 else text
