"""Responses of `/v1/responses`: output items, in one object or as the stream of events that builds them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from aethermind.engine.requests.output_delta import CompletionDelta
from aethermind.server.generation import PromptState, ResponseBuilder, response_id, token_usage
from aethermind.server.openai.chat_response import ChatOutputParser, token_logprobs
from aethermind.server.openai.responses import CustomTool
from aethermind.server.openai.tools import call_id
from aethermind.server.sse import NAMED
from aethermind.text.answer_parts import Content, Reasoning, ToolCall

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from aethermind.engine.requests.output import RequestOutput
    from aethermind.sampling.params import SamplingParams
    from aethermind.server.openai.errors import ApiError
    from aethermind.server.openai.responses import ResponseGenerationParams, ResponseRequest
    from aethermind.server.served_model import ServedModel
    from aethermind.text.answer_parts import AnswerPart

__all__ = ["ResponseObjectBuilder"]

Event = dict[str, Any]


class ResponseObjectBuilder(ResponseBuilder):
    """Builds the response object of one request, and its events. Mutable; used once."""

    def __init__(
        self,
        request: ResponseRequest,
        params: ResponseGenerationParams,
        sampling: SamplingParams,
        model: ServedModel,
        request_id: str,
        prompt: str,
        on_final: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        """`on_final` is called with the final response, if there is one."""
        self._on_final = on_final
        self.framing = replace(NAMED, failure=self._failure)
        self._parser = ChatOutputParser(params.chat, model.answer_format, prompt)
        self._num_top_logprobs = request.top_logprobs or 0
        self._tokenizer = model.tokenizer
        self._id_suffix = response_id(request_id, "")
        self._response = {
            "id": response_id(request_id, "resp_"),
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "model": model.name,
            "output": [],
            "usage": None,
            **_request_fields(request, sampling),
            "store": on_final is not None or bool(request.background),
        }
        self._targets = {target.function_name: target for target in request.call_targets()}
        self._num_events = 0
        self._items: list[dict[str, Any]] = []
        self._open_item: dict[str, Any] | None = None
        self._finish_reason: str | None = None

    @property
    def initial_response(self) -> dict[str, Any]:
        """The response before its first output."""
        return self._response

    def full_response(self, outputs: Sequence[RequestOutput]) -> dict[str, Any]:
        completion = outputs[0].outputs[0]
        delta = CompletionDelta.of_whole(0, completion)
        prompts = [PromptState.final(output) for output in outputs]
        for _ in self.delta_events(0, delta, prompts[0]):
            pass  # creating the events builds the items
        return self._final_response(prompts)

    def initial_events(self) -> Iterable[Event]:
        yield self._event("response.created", response=self._response)
        yield self._event("response.in_progress", response=self._response)

    def delta_events(self, index: int, delta: CompletionDelta, prompt: PromptState) -> Iterable[Event]:
        logprobs = token_logprobs(self._tokenizer, delta.token_ids, delta.logprobs, self._num_top_logprobs) or []
        is_last = delta.finish_reason is not None
        for output_part in self._parser.read(delta.text, is_last=is_last) or ([Content("")] if logprobs else []):
            yield from self._add(output_part, logprobs)
            if isinstance(output_part, Content):
                logprobs = []  # sent once, with the first part that is text
        if is_last:
            self._finish_reason = delta.finish_reason
            if not self._items:  # every completion has at least an empty message
                yield from self._begin_item({"type": "message", "role": "assistant", "content": []}, "msg")
            yield from self._close()

    def final_events(self, prompts: Sequence[PromptState]) -> Iterable[Event]:
        response = self._final_response(prompts)
        kind = "completed" if response["status"] == "completed" else "incomplete"
        yield self._event(f"response.{kind}", response=response)

    # -- items -----------------------------------------------------------------------------------------------

    def _add(self, output_part: AnswerPart, logprobs: list[dict[str, Any]]) -> Iterator[Event]:
        if isinstance(output_part, ToolCall):
            yield from self._close()
            yield from self._add_call(output_part)
        elif isinstance(output_part, Reasoning):
            if self._open_type != "reasoning":
                yield from self._close()
                yield from self._begin_item({"type": "reasoning", "summary": [], "content": []}, "rs")
            self._append(output_part.text)
            yield self._event(
                "response.reasoning_text.delta", **self._open_position, content_index=0, delta=output_part.text
            )
        else:
            if self._open_type != "message":
                yield from self._close()
                yield from self._begin_item({"type": "message", "role": "assistant", "content": []}, "msg")
            self._append(output_part.text, logprobs)
            position = {**self._open_position, "content_index": 0}
            yield self._event("response.output_text.delta", **position, delta=output_part.text, logprobs=logprobs)

    @property
    def _open_type(self) -> str | None:
        """The type of the open item; None if no item is open."""
        return None if self._open_item is None else self._open_item["type"]

    @property
    def _open_position(self) -> dict[str, Any]:
        """The fields by which events refer to the open item."""
        assert self._open_item is not None, "there is an open item"
        return {"item_id": self._open_item["id"], "output_index": len(self._items) - 1}

    def _begin_item(self, item: dict[str, Any], prefix: str) -> Iterator[Event]:
        """Open a message or reasoning item, each of which has one content part."""
        item |= {"id": f"{prefix}_{self._id_suffix}_{len(self._items)}", "status": "in_progress"}
        self._items.append(item)
        self._open_item = item
        yield self._event("response.output_item.added", output_index=len(self._items) - 1, item=_copy(item))
        part: dict[str, Any] = {"type": "reasoning_text", "text": ""}
        if item["type"] == "message":
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        item["content"].append(part)
        yield self._event("response.content_part.added", **self._open_position, content_index=0, part=dict(part))

    def _append(self, text: str, logprobs: list[dict[str, Any]] | None = None) -> None:
        assert self._open_item is not None, "there is an open item"
        part = self._open_item["content"][0]
        part["text"] += text
        if logprobs:
            part["logprobs"] = [*part["logprobs"], *logprobs]

    def _close(self) -> Iterator[Event]:
        """Close the open message or reasoning item, if there is one."""
        item = self._open_item
        if item is None:
            return
        part, position = item["content"][0], {**self._open_position, "content_index": 0}
        if item["type"] == "message":
            yield self._event("response.output_text.done", **position, text=part["text"], logprobs=part["logprobs"])
        else:
            yield self._event("response.reasoning_text.done", **position, text=part["text"])
        yield self._event("response.content_part.done", **position, part=dict(part))
        yield self._item_done(item)
        self._open_item = None

    def _add_call(self, call: ToolCall) -> Iterator[Event]:
        target = self._targets.get(call.name)
        is_custom = target is not None and isinstance(target.tool, CustomTool)
        kind, field, value = ("function_call", "arguments", call.arguments)
        if is_custom:
            kind, field, value = "custom_tool_call", "input", _custom_input(call.arguments)
        name = call.name if target is None else target.tool.name
        number = len(self._items)
        item = {
            "type": kind,
            "id": f"{'ctc' if is_custom else 'fc'}_{self._id_suffix}_{number}",
            "call_id": call_id(),
            "name": name,
            field: "",
            "status": "in_progress",
        }
        if target is not None and target.namespace is not None:
            item["namespace"] = target.namespace
        self._items.append(item)
        yield self._event("response.output_item.added", output_index=number, item=_copy(item))
        item[field] = value
        position = {"item_id": item["id"], "output_index": number}
        event = "response.custom_tool_call_input" if is_custom else "response.function_call_arguments"
        yield self._event(f"{event}.delta", **position, delta=value)
        yield self._event(f"{event}.done", **position, **({} if is_custom else {"name": name}), **{field: value})
        yield self._item_done(item)

    def _item_done(self, item: dict[str, Any]) -> Event:
        item["status"] = "incomplete" if self._finish_reason in ("length", "abort") else "completed"
        return self._event("response.output_item.done", output_index=len(self._items) - 1, item=_copy(item))

    # -- the response ----------------------------------------------------------------------------------------

    def _final_response(self, prompts: Sequence[PromptState]) -> dict[str, Any]:
        tokens = token_usage(prompts)
        reasoning = "".join(item["content"][0]["text"] for item in self._items if item["type"] == "reasoning")
        usage = {
            "input_tokens": tokens["prompt_tokens"],
            "input_tokens_details": tokens["prompt_tokens_details"],
            "output_tokens": tokens["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": len(self._tokenizer.encode(reasoning)) if reasoning else 0},
            "total_tokens": tokens["total_tokens"],
        }
        status: dict[str, Any] = {"status": "completed"}
        if self._finish_reason == "length":
            status = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
        elif self._finish_reason == "abort":
            status = {"status": "cancelled"}
        response = {**self._response, **status, "output": self._items, "usage": usage}
        if self._on_final is not None:
            self._on_final(response)
        return response

    def _failure(self, error: ApiError) -> Event:
        return self._event("error", code=error.code, message=error.message, param=error.param)

    def _event(self, kind: str, **content: Any) -> Event:
        self._num_events += 1
        return {"type": kind, "sequence_number": self._num_events - 1, **content}


def _request_fields(request: ResponseRequest, sampling: SamplingParams) -> dict[str, Any]:
    """The fields of the request that a response repeats."""
    given = request.model_dump(by_alias=True, exclude_none=True)
    return {
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "metadata": request.metadata or {},
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "previous_response_id": request.previous_response_id,
        "background": bool(request.background),
        "temperature": sampling.temperature,
        "text": given.get("text") or {"format": {"type": "text"}},
        "tool_choice": given.get("tool_choice", "auto"),
        "tools": given.get("tools", []),
        "top_logprobs": request.top_logprobs or 0,
        "top_p": sampling.top_p,
        "truncation": "disabled",
        "user": request.user,
    }


def _custom_input(arguments: str) -> str:
    """The text for a custom tool: the argument `input`, or all of arguments that have none."""
    try:
        value = json.loads(arguments)["input"]
    except (ValueError, LookupError, TypeError):
        return arguments
    return value if isinstance(value, str) else arguments


def _copy(item: dict[str, Any]) -> dict[str, Any]:
    """A copy of an item: events are encoded later, when the item may have changed."""
    return {name: [dict(part) for part in value] if name == "content" else value for name, value in item.items()}
