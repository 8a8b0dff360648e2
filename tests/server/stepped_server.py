"""A server whose engine computes a step only when a test says so, so that random tests repeat exactly."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Self

import httpx
from tests.server.conftest import serving

from aethermind import LLM

__all__ = ["ADMIN_KEY", "CHAT", "Reply", "SteppedServer", "Turn", "ask"]

ADMIN_KEY = "master"
CHAT = "/v1/chat/completions"


@dataclass
class Reply:
    """What a client got: the status and the error's code, or the texts and reasons to end of all choices.

    `num_tokens` are those of the prompt and of all choices.
    """

    status: int
    code: str | None = None
    num_tokens: tuple[int, int] = (0, 0)
    texts: dict[int, str] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, status: int, answer: dict[str, Any]) -> Self:
        """What a whole answer, or an error, says."""
        choices = answer.get("choices", ())
        return cls(
            status,
            answer.get("error", {}).get("code"),
            _num_tokens(answer.get("usage")),
            {choice["index"]: choice["message"]["content"] for choice in choices},
            {choice["index"]: choice["finish_reason"] for choice in choices},
        )


def _num_tokens(usage: dict[str, Any] | None) -> tuple[int, int]:
    return (0, 0) if usage is None else (usage["prompt_tokens"], usage["completion_tokens"])


async def ask(client: httpx.AsyncClient, body: dict[str, Any]) -> Reply:
    """Send a chat request and read its answer, which is a stream if the body says so."""
    async with client.stream("POST", CHAT, json=body) as response:
        if response.status_code != 200 or not body.get("stream"):
            return Reply.of(response.status_code, json.loads(await response.aread()))
        reply = Reply(200)
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            assert "error" not in event, event
            if event.get("usage") is not None:
                reply.num_tokens = _num_tokens(event["usage"])
            for choice in event["choices"]:
                index, text = choice["index"], choice["delta"].get("content") or ""
                reply.texts[index] = reply.texts.get(index, "") + text
                if choice["finish_reason"] is not None:
                    reply.reasons[index] = choice["finish_reason"]
        return reply


@dataclass
class Turn:
    """A request that was sent; `request_id` is the engine's, None for one that was refused."""

    body: dict[str, Any]
    reply: Future[Reply]
    request_id: str | None = None


class SteppedServer:
    """A server in this process, clients for it, and the gate before each step of its engine. A context manager.

    The engine's thread waits at the gate, or passes it without a step while a call of this object waits for the engine
    to receive a request, an abort or a change.
    """

    def __init__(self, llm: LLM) -> None:
        self.llm = llm
        self._gate = threading.Condition()
        self._num_allowed = self._num_done = 0
        self._passes = False
        self._added: list[str] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        engine, stack = self.llm.engine, self._stack
        self._methods = {name: getattr(engine, name) for name in ("advance", "add_request", "abort")}
        for name, method in (("advance", self._advance), ("add_request", self._add), ("abort", self._abort)):
            setattr(engine, name, method)
        self._loop = asyncio.new_event_loop()
        thread = threading.Thread(target=self._loop.run_forever)
        thread.start()
        stack.callback(thread.join)
        stack.callback(self._loop.call_soon_threadsafe, self._loop.stop)
        address = stack.enter_context(serving(self.llm, admin_key=ADMIN_KEY))
        self._client = httpx.AsyncClient(base_url=address, timeout=60)
        stack.callback(lambda: self._in_loop(self._client.aclose()).result())
        return self

    def __exit__(self, *error: object) -> None:
        with self._gate:
            self._num_allowed = 10**9  # what a failed test has left open is answered
            self._gate.notify_all()
        self._stack.close()
        for name in self._methods:
            delattr(self.llm.engine, name)

    def send(self, body: dict[str, Any]) -> Turn:
        """Send a chat request; returns when the engine has it, or when it was refused."""
        num_added = len(self._added)
        turn = Turn(body, self._in_loop(ask(self._client, body)))
        turn.reply.add_done_callback(lambda _: self._notify())
        self._wait(lambda: len(self._added) > num_added or turn.reply.done())
        if len(self._added) > num_added:
            turn.request_id = self._added[-1]
        return turn

    def is_open(self, turn: Turn) -> bool:
        """Whether the engine still computes a turn."""
        return turn.request_id is not None and self.llm.engine._has(turn.request_id)

    def disconnect(self, turn: Turn) -> None:
        """Close the connection of an open turn; returns when the engine has aborted it."""
        turn.reply.cancel()
        self._wait(lambda: not self.is_open(turn))

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
        """Send another request, with the admin's key, and wait for its response."""
        headers = {"Authorization": f"Bearer {ADMIN_KEY}"} if path.startswith("/admin") else {}
        response = self._in_loop(self._client.request(method, path, json=body, headers=headers))
        response.add_done_callback(lambda _: self._notify())
        self._wait(response.done)
        return response.result()

    def step(self) -> None:
        """Let the engine compute one step, if any request is open."""
        if not self.llm.engine.has_unfinished:
            return
        with self._gate:
            num_done = self._num_done
            self._num_allowed += 1
            self._gate.notify_all()
            assert self._gate.wait_for(lambda: self._num_done > num_done, timeout=60)

    def _in_loop(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _wait(self, is_done: Callable[[], bool]) -> None:
        with self._gate:
            self._passes = True
            self._gate.notify_all()
            assert self._gate.wait_for(is_done, timeout=60)
            self._passes = False

    def _notify(self) -> None:
        with self._gate:
            self._gate.notify_all()

    # In the engine's thread.

    def _advance(self) -> Any:
        with self._gate:
            self._gate.notify_all()
            self._gate.wait_for(lambda: self._passes or self._num_allowed)
            if not self._num_allowed:
                return ()
            self._num_allowed -= 1
        try:
            return self._methods["advance"]()
        finally:
            with self._gate:
                self._num_done += 1
                self._gate.notify_all()

    def _add(self, request_id: str, *arguments: Any, **named: Any) -> None:
        self._methods["add_request"](request_id, *arguments, **named)
        self._added.append(request_id)
        self._notify()

    def _abort(self, request_id: str) -> Any:
        output = self._methods["abort"](request_id)
        self._notify()
        return output
