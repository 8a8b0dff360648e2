"""The model of a chat: loaded in this process, or that of a server with OpenAI's API."""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from aethermind.cli.openai_client import (
    EventParser,
    check_key,
    choose_model,
    client_options,
    connection_error,
    error_of,
)
from aethermind.cli.progress import PrefillProgress
from aethermind.engine.requests.request import RequestOptions
from aethermind.errors import AetherMindError, ContextLengthError, EngineDeadError, InvalidArgumentError
from aethermind.text.answer_parser import new_parser
from aethermind.text.answer_parts import Reasoning, ToolCall
from aethermind.text.chat_prompt import ConversationTokenCache

if TYPE_CHECKING:
    import httpx

    from aethermind.cli.chat.conversation import Conversation
    from aethermind.engine.requests.output import RequestOutput
    from aethermind.llm import LLM
    from aethermind.text.answer_parts import PartParser

__all__ = ["ChatModel", "ChatReply", "LocalChatModel", "ServerChatModel"]


@dataclass(frozen=True, slots=True)
class ChatReply:
    """A reply so far. `finish_reason` is None until it is complete.

    Counts that a server does not report are 0, but its deltas count as output tokens. `seed` reproduces the reply; None
    for greedy sampling, and if a server chose the seed. `ttft_s` is the time to the first token and `decode_s` the time
    from then on, in seconds.
    """

    text: str
    finish_reason: str | None = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    seed: int | None = None
    ttft_s: float | None = None
    decode_s: float | None = None
    tool_calls: tuple[dict[str, Any], ...] = ()
    """Calls of a complete reply, in the format of the chat completions API."""

    @property
    def decode_tokens_per_s(self) -> float | None:
        """Tokens per second after the first; None for fewer than two tokens."""
        return (self.num_output_tokens - 1) / self.decode_s if self.num_output_tokens > 1 and self.decode_s else None


class ChatModel(Protocol):
    """Generates the replies of a conversation."""

    max_model_len: int | None
    """The maximum length of a conversation in tokens; None if it is unknown, or if the engine shifts the context."""
    interrupts_between_tokens: bool
    """Whether a reply may be interrupted only between two tokens."""
    default_settings: str | None
    """The origin of settings that a conversation does not set, such as `the server's`; None if it sets all of them."""

    def reply(self, conversation: Conversation, attempt: int) -> Generator[ChatReply, None, None]:
        """Yield the reply so far to the last user message, after each token. Closing the generator aborts it."""
        ...


class LocalChatModel:
    """A model that runs in this process."""

    interrupts_between_tokens = True
    default_settings: str | None = None

    def __init__(
        self, llm: LLM, chat_template: str | None = None, adapter: str = "", tools: Sequence[dict[str, Any]] = ()
    ) -> None:
        self.max_model_len: int | None = None if llm.info.has_context_shift else llm.info.max_model_len
        self._llm = llm
        self._memory = ConversationTokenCache(llm.tokenizer)
        self._chat_template = chat_template
        self._adapter = adapter
        self._tools = list(tools)

    def reply(self, conversation: Conversation, attempt: int) -> Generator[ChatReply, None, None]:
        """Yield the reply so far; keys and values of earlier turns come from the prefix cache."""
        params = conversation.params(attempt)
        messages = [_with_parsed_arguments(message) for message in conversation.prompt()]
        options: dict[str, Any] = {"chat_template": self._chat_template}
        calls = None
        if self._tools:
            calls = _CallReader(self._llm, self._tools)
            options |= {"tools": self._tools, "options": RequestOptions(visible_token_ids=calls.visible_token_ids)}
        stream = self._llm.stream_chat(messages, params, memory=self._memory, adapter=self._adapter, **options)
        with PrefillProgress(self._llm) as prefill, closing(stream) as outputs:
            for output in outputs:
                prefill.stop()
                completion, times = output.outputs[0], output.metrics
                text, tool_calls = (completion.text, ()) if calls is None else calls.read(output)
                ttft_s = decode_s = None
                if times.first_token_s is not None:
                    ttft_s = times.first_token_s - times.arrival_s
                    decode_s = None if times.finished_s is None else times.finished_s - times.first_token_s
                yield ChatReply(
                    text,
                    completion.finish_reason,
                    len(output.prompt_token_ids),
                    output.num_cached_tokens,
                    len(completion.token_ids),
                    None if params.is_greedy else params.seed,
                    ttft_s,
                    decode_s,
                    tool_calls,
                )


def _with_parsed_arguments(message: dict[str, Any]) -> dict[str, Any]:
    """The message with the arguments of its calls as objects, as chat templates want them, unless they are no JSON."""
    calls = []
    for call in message.get("tool_calls", ()):
        function = call["function"]
        with suppress(ValueError, RecursionError):
            function = {**function, "arguments": json.loads(function["arguments"])}
        calls.append({**call, "function": function})
    return {**message, "tool_calls": calls} if calls else message


class _CallReader:
    """Reads tool calls from the output of a model in this process. Mutable; one for each reply."""

    def __init__(self, llm: LLM, tools: Sequence[dict[str, Any]]) -> None:
        self._format = llm.engine.parts.answer_format.for_tokens(llm.tokenizer)
        self._functions = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
        ids = (llm.tokenizer.token_to_id(token) for token in self._format.control_tokens)
        self.visible_token_ids = tuple(token_id for token_id in ids if token_id is not None)
        self._parser: PartParser | None = None
        self._num_chars = 0
        self._text = _TextAccumulator()
        self._calls: list[dict[str, Any]] = []

    def read(self, output: RequestOutput) -> tuple[str, tuple[dict[str, Any], ...]]:
        """The text without calls, and once the reply is complete its calls."""
        completion = output.outputs[0]
        if self._parser is None:
            is_thinking = self._format.is_thinking(output.prompt or "")
            self._parser = new_parser(self._format, is_thinking=is_thinking, functions=self._functions)
        parts = [*self._parser.push(completion.text[self._num_chars :])]
        self._num_chars = len(completion.text)
        if completion.finish_reason is not None:
            parts += self._parser.finish()
        for part in parts:
            if isinstance(part, ToolCall):
                function = {"name": part.name, "arguments": part.arguments}
                self._calls.append({"id": f"call{len(self._calls):05}", "type": "function", "function": function})
            else:
                self._text.add({"reasoning_content" if isinstance(part, Reasoning) else "content": part.text})
        return self._text.text, tuple(self._calls) if completion.finish_reason is not None else ()


_REASONING_START, _REASONING_END = "<think>\n", "\n</think>\n\n"
"""What a model writes around its reasoning; servers send reasoning in another field than the content."""


class ServerChatModel:
    """The model of a server with OpenAI's API. Close it at the end. Needs httpx."""

    interrupts_between_tokens = False
    default_settings: str | None = "the server's"

    def __init__(self, url: str, model: str | None, api_key: str | None, tools: Sequence[dict[str, Any]] = ()) -> None:
        """Connect and choose the model, the first one if `model` is None. Raises InvalidArgumentError."""
        import httpx

        self._tools = list(tools)
        self._client = httpx.Client(**client_options(url, api_key))
        try:
            response = self._client.get("/v1/models")
        except httpx.HTTPError as error:
            raise connection_error(self._client, error) from None
        check_key(self._client, response)
        entry = choose_model(self._client, response, model)
        self.model = str(entry["id"])
        length = entry.get("max_model_len")
        self.max_model_len = length if isinstance(length, int) else None

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def reply(self, conversation: Conversation, attempt: int) -> Generator[ChatReply, None, None]:
        """Yield the reply so far. Closing the generator closes the connection; the server then aborts the request."""
        import httpx

        body = self._body(conversation, attempt)
        sent_s = time.perf_counter()
        try:
            with self._client.stream("POST", "/v1/chat/completions", json=body) as response:
                if response.status_code != 200:
                    response.read()
                    check_key(self._client, response)
                    raise _as_error(response.status_code, error_of(response))
                yield from _replies(response, sent_s, body.get("seed"))
        except httpx.ConnectError as error:
            raise connection_error(self._client, error) from None
        except httpx.HTTPError as error:
            raise EngineDeadError(
                f"The server hung up in the middle of the answer ({error or type(error).__name__}); /regen asks again."
            ) from None

    def _body(self, conversation: Conversation, attempt: int) -> dict[str, Any]:
        """Return the request's JSON, with only the settings that the conversation changed; others are the server's."""
        changed = {
            name: value for name, value in conversation.sampling.items() if value is not None and value is not False
        }
        if "seed" in changed:
            changed["seed"] = conversation.params(attempt).seed
        streaming = {"stream": True, "stream_options": {"include_usage": True}}
        body = {"model": self.model, "messages": conversation.prompt(), **changed, **streaming}
        return {**body, "tools": self._tools} if self._tools else body


class _TextAccumulator:
    """The text of a streamed reply, with reasoning between `<think>` and `</think>`. Mutable."""

    def __init__(self) -> None:
        self.text = ""
        self._is_reasoning = False

    def add(self, delta: dict[str, Any]) -> bool:
        """Append the text of a delta; returns whether it had any."""
        reasoning = delta.get("reasoning_content") or delta.get("reasoning") or ""
        content = delta.get("content") or ""
        if reasoning:
            self.text += reasoning if self._is_reasoning else _REASONING_START + reasoning
            self._is_reasoning = True
        if content:
            self.text += _REASONING_END + content if self._is_reasoning else content
            self._is_reasoning = False
        return bool(reasoning or content)


def _replies(response: httpx.Response, sent_s: float, seed: int | None) -> Iterator[ChatReply]:
    first_s: float | None = None
    last_s = 0.0
    accumulator, num_deltas = _TextAccumulator(), 0
    reason: str | None = None
    usage: dict[str, Any] = {}
    calls: dict[int, dict[str, Any]] = {}
    for event in _events(response):
        if "error" in event:
            error = event["error"] if isinstance(event["error"], dict) else {"message": str(event["error"])}
            raise _as_error(500, {"message": "no reason given", **error})
        usage = event.get("usage") or usage
        for choice in event.get("choices") or ():
            reason = choice.get("finish_reason") or reason
            for part in (choice.get("delta") or {}).get("tool_calls") or ():
                _add_call(calls, part)
            if accumulator.add(choice.get("delta") or {}):
                last_s = time.perf_counter()
                first_s = last_s if first_s is None else first_s
                num_deltas += 1
                yield ChatReply(accumulator.text)
    if reason is None:
        raise EngineDeadError("The server ended the answer in the middle; /regen asks again.")
    yield ChatReply(
        accumulator.text,
        reason,
        usage.get("prompt_tokens") or 0,
        (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
        usage.get("completion_tokens") or num_deltas,
        seed,
        None if first_s is None else first_s - sent_s,
        None if first_s is None else last_s - first_s,
        tuple(calls.values()),
    )


def _add_call(calls: dict[int, dict[str, Any]], part: dict[str, Any]) -> None:
    """Add a part of a streamed call; the parts of one call have the same index."""
    function = {"name": "", "arguments": ""}
    call = calls.setdefault(part.get("index") or 0, {"id": "", "type": "function", "function": function})
    call["id"] = part.get("id") or call["id"]
    for name, value in (part.get("function") or {}).items():
        if name in function:
            call["function"][name] += value or ""


def _events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    parser = EventParser()
    for chunk in response.iter_bytes():
        for data in parser.push(chunk):
            if data == b"[DONE]":
                return
            try:
                event = json.loads(data)
            except ValueError:
                event = None
            if not isinstance(event, dict):
                raise InvalidArgumentError("The server does not stream answers as OpenAI's API does. Correct --url.")
            yield event


def _as_error(status: int, error: dict[str, Any]) -> AetherMindError:
    message = error["message"].rstrip(".")
    if error.get("code") == "context_length_exceeded":
        return ContextLengthError(f"{message}.")
    return InvalidArgumentError(f"The server answers with an error ({error.get('code') or status}): {message}.")
