"""A model behind a URL: any server that speaks OpenAI's API answers a chat. Needs httpx."""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import httpx

from aethermind.cli.chat.answerers import Reply
from aethermind.cli.remote import EventCutter, check_key, choose_model, client_options, connection_error, error_of
from aethermind.errors import AetherMindError, ContextLengthError, EngineDeadError, InvalidArgumentError

if TYPE_CHECKING:
    from aethermind.cli.chat.conversation import Conversation

__all__ = ["ServerAnswerer"]

_THOUGHT_BEGINS, _THOUGHT_ENDS = "<think>\n", "\n</think>\n\n"
"""How models write down what a server tells as reasoning."""


class ServerAnswerer:
    """A model of a server. Close it at the end."""

    has_steps = False
    unsaid: str | None = "the server's"

    def __init__(self, url: str, model: str | None, api_key: str | None) -> None:
        """Find a model, or the first there is; InvalidArgumentError says what keeps it from being asked."""
        self._client = httpx.Client(**client_options(url, api_key))
        try:
            response = self._client.get("/v1/models")
        except httpx.HTTPError as error:
            raise connection_error(self._client, error) from None
        check_key(self._client, response)
        described = choose_model(self._client, response, model)
        self.model = str(described["id"])
        length = described.get("max_model_len")
        self.max_model_len = length if isinstance(length, int) else None

    def close(self) -> None:
        """Hang up."""
        self._client.close()

    def answer(self, conversation: Conversation, attempt: int) -> Generator[Reply, None, None]:
        """Answer. Closing the generator hangs up, by which a server knows that nobody waits any more."""
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
        """The request: of the settings only those that were made, so that everything else is as the server likes it."""
        made = {
            name: value for name, value in conversation.sampling.items() if value is not None and value is not False
        }
        if "seed" in made:
            made["seed"] = conversation.params(attempt).seed
        asked = {"stream": True, "stream_options": {"include_usage": True}}
        return {"model": self.model, "messages": conversation.prompt(), **made, **asked}


class _GrowingText:
    """An answer as a model would have written it: reasoning, which servers tell apart, between its marks. Mutable."""

    def __init__(self) -> None:
        self.text = ""
        self._is_thinking = False

    def add(self, delta: dict[str, Any]) -> bool:
        """Take what a choice brings; whether that was any text."""
        thought = delta.get("reasoning_content") or delta.get("reasoning") or ""
        said = delta.get("content") or ""
        if thought:
            self.text += thought if self._is_thinking else _THOUGHT_BEGINS + thought
            self._is_thinking = True
        if said:
            self.text += _THOUGHT_ENDS + said if self._is_thinking else said
            self._is_thinking = False
        return bool(thought or said)


def _replies(response: httpx.Response, sent_s: float, seed: int | None) -> Iterator[Reply]:
    first_s: float | None = None
    last_s = 0.0
    growing, num_pieces = _GrowingText(), 0
    reason: str | None = None
    usage: dict[str, Any] = {}
    for event in _events(response):
        if "error" in event:
            error = event["error"] if isinstance(event["error"], dict) else {"message": str(event["error"])}
            raise _as_error(500, {"message": "no reason given", **error})
        usage = event.get("usage") or usage
        for choice in event.get("choices") or ():
            reason = choice.get("finish_reason") or reason
            if growing.add(choice.get("delta") or {}):
                last_s = time.perf_counter()
                first_s = last_s if first_s is None else first_s
                num_pieces += 1
                yield Reply(growing.text)
    if reason is None:
        raise EngineDeadError("The server ended the answer in the middle; /regen asks again.")
    yield Reply(
        growing.text,
        reason,
        usage.get("prompt_tokens") or 0,
        (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
        usage.get("completion_tokens") or num_pieces,
        seed,
        None if first_s is None else first_s - sent_s,
        None if first_s is None else last_s - first_s,
    )


def _events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    cutter = EventCutter()
    for chunk in response.iter_bytes():
        for data in cutter.push(chunk):
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
