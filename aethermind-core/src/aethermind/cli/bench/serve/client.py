"""The client of a load test: connect, find a request format that the server accepts, send all requests. Needs httpx."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import httpx

from aethermind.cli.bench.serve.metrics import LoadTest, RequestOutcome
from aethermind.cli.bench.serve.workload import BenchRequest
from aethermind.cli.openai_client import (
    EventParser,
    check_key,
    choose_model,
    client_options,
    code_of,
    connection_error,
    error_of,
    reason_of,
    text_of,
)
from aethermind.errors import InvalidArgumentError

__all__ = ["RequestFormat", "Send", "Target", "connect", "find_target", "measure", "send_all", "send_once"]


async def measure(
    test: LoadTest,
    requests: Sequence[BenchRequest],
    *,
    concurrency: int | None,
    limit_s: float,
    on_progress: Callable[[int, int], None],
) -> None:
    """Send the requests and record their outcomes in `test`.

    `concurrency` requests are open at a time; with None, each is sent at its arrival time. `limit_s` is the time limit
    of a response in seconds. Raises InvalidArgumentError, before any request is sent, if the server accepts none.
    """

    def record(outcome: RequestOutcome) -> None:
        test.outcomes.append(outcome)
        on_progress(len(test.outcomes), len(requests))

    async with connect(test.url, test.api_key) as client:
        try:
            async with asyncio.timeout(limit_s):
                target = await find_target(client, test.model, test.endpoint)
        except TimeoutError:
            raise InvalidArgumentError(
                f"The server at {test.url} has not answered in {limit_s:g} s. Correct --url, or allow it more with "
                "--request-timeout."
            ) from None
        test.model = target.model
        start_s = time.perf_counter()
        try:
            await send_all(
                requests,
                lambda request, due_s: target.send(request, due_s, limit_s),
                concurrency=concurrency,
                on_outcome=record,
            )
        finally:
            test.duration_s = time.perf_counter() - start_s


Send = Callable[["BenchRequest", float | None], Awaitable["RequestOutcome"]]
"""Sends one request. The second argument is the time at which it was due, by `time.perf_counter`; None for now."""


async def send_all(
    requests: Sequence[BenchRequest],
    send: Send,
    *,
    concurrency: int | None,
    on_outcome: Callable[[RequestOutcome], None],
) -> None:
    """Send all requests: `concurrency` at a time (closed loop), or with None each at its arrival time (open loop)."""
    async with asyncio.TaskGroup() as group:
        if concurrency is not None:
            waiting = iter(requests)
            for _ in range(min(concurrency, len(requests))):
                group.create_task(_send_in_turn(waiting, send, on_outcome))
            return
        start_s = time.perf_counter()
        for request in requests:
            due_s = start_s + (request.arrival_s or 0.0)
            await asyncio.sleep(max(due_s - time.perf_counter(), 0.0))
            group.create_task(_send_one(request, due_s, send, on_outcome))


async def _send_in_turn(
    waiting: Iterator[BenchRequest], send: Send, on_outcome: Callable[[RequestOutcome], None]
) -> None:
    for request in waiting:
        await _send_one(request, None, send, on_outcome)


async def _send_one(
    request: BenchRequest, due_s: float | None, send: Send, on_outcome: Callable[[RequestOutcome], None]
) -> None:
    on_outcome(await send(request, due_s))


PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
_PROBE = BenchRequest(None, 4, 2, "trial")


@dataclass(frozen=True, slots=True)
class RequestFormat:
    """The optional fields that requests have, since servers differ: token ids, `ignore_eos`, usage in streams."""

    has_token_ids: bool
    ignores_eos: bool
    has_usage: bool

    @classmethod
    def all_of(cls, endpoint: str) -> Iterator[RequestFormat]:
        """Return the formats in the order to try, the most exact first; chats have no token ids."""
        prompts = (True, False) if endpoint == "completions" else (False,)
        return (cls(*fields) for fields in product(prompts, (True, False), (True, False)))


@dataclass(frozen=True, slots=True)
class Target:
    """The server's endpoint and the format of requests to it."""

    client: httpx.AsyncClient
    model: str
    endpoint: str
    format: RequestFormat

    def body(self, request: BenchRequest) -> dict[str, Any]:
        """Return the request's JSON."""
        prompt = request.token_ids() if self.format.has_token_ids else request.text()
        content = {"prompt": prompt} if self.endpoint == "completions" else {"messages": [_message(prompt)]}
        body: dict[str, Any] = {
            "model": self.model,
            **content,
            "max_tokens": request.num_output_tokens,
            "temperature": 0.0,
        }
        body |= {"stream": True, **request.extra}
        if self.format.ignores_eos:
            body["ignore_eos"] = True
        if self.format.has_usage:
            body["stream_options"] = {"include_usage": True}
        return body

    async def send(self, request: BenchRequest, due_s: float | None, limit_s: float) -> RequestOutcome:
        """Send a request and read its response to the end.

        `due_s` is the time at which it was due, by `time.perf_counter`; None for now.
        """
        body = self.body(request)
        outcome = RequestOutcome(time.perf_counter() if due_s is None else due_s, request.num_prompt_tokens)
        await send_once(self.client, PATHS[self.endpoint], body, outcome, limit_s)
        return outcome


def _message(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def connect(url: str, api_key: str | None) -> httpx.AsyncClient:
    """Return a client for the server at `url`, without a limit of connections and without a proxy."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    return httpx.AsyncClient(**client_options(url, api_key), limits=limits)


async def find_target(client: httpx.AsyncClient, model: str | None, endpoint: str) -> Target:
    """Return the target for a model, by default the server's first. InvalidArgumentError if it accepts no format."""
    name = await _model(client, model)
    for form in RequestFormat.all_of(endpoint):
        target = Target(client, name, endpoint, form)
        response = await _request(client, "POST", PATHS[endpoint], target.body(_PROBE))
        if response.status_code == 200:
            return target
        if response.status_code not in (400, 422):
            break
    raise InvalidArgumentError(
        f"{name} at {str(client.base_url).rstrip('/')} does not answer {PATHS[endpoint]}: {reason_of(response)} "
        "Correct --url, --model or --endpoint."
    )


async def _model(client: httpx.AsyncClient, model: str | None) -> str:
    return str(choose_model(client, await _request(client, "GET", "/v1/models"), model)["id"])


async def _request(client: httpx.AsyncClient, method: str, path: str, body: Any = None) -> httpx.Response:
    try:
        response = await client.request(method, path, json=body)
    except httpx.HTTPError as error:
        raise connection_error(client, error) from None
    check_key(client, response)
    return response


async def send_once(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], outcome: RequestOutcome, limit_s: float
) -> None:
    """Send a request and record its response in `outcome`; an error is recorded as the kind of failure."""
    try:
        async with asyncio.timeout(limit_s), client.stream("POST", path, json=body) as response:
            if response.status_code == 200:
                await _record(response, outcome)
            else:
                await response.aread()
                outcome.failure = " ".join((f"HTTP {response.status_code}", *code_of(error_of(response))))
    except TimeoutError:
        outcome.failure = "timeout"
    except httpx.ConnectError:
        outcome.failure = "no connection"
    except httpx.HTTPError:
        outcome.failure = "connection lost"
    except (ValueError, TypeError, AttributeError):  # events that are not JSON, or not of OpenAI's API
        outcome.failure = "not understood"
    outcome.finished_s = time.perf_counter()


async def _record(response: httpx.Response, outcome: RequestOutcome) -> None:
    is_complete = False
    usage: dict[str, Any] = {}
    async for now, data in _events(response):
        if data == b"[DONE]":
            is_complete = True
            break
        event = json.loads(data)
        if "error" in event:
            error = event["error"]
            outcome.failure = " ".join(("error in the stream:", *code_of(error if isinstance(error, dict) else {})))
            return
        usage = event.get("usage") or usage
        for choice in event.get("choices") or ():
            is_end = choice.get("finish_reason") is not None
            is_complete = is_complete or is_end
            if text_of(choice) or (is_end and not outcome.chunk_times_s):
                outcome.chunk_times_s.append(now)
    outcome.num_output_tokens = usage.get("completion_tokens") or len(outcome.chunk_times_s)
    outcome.num_prompt_tokens = usage.get("prompt_tokens") or outcome.num_prompt_tokens
    if not is_complete or not outcome.chunk_times_s:
        outcome.failure = "cut off"


async def _events(response: httpx.Response) -> AsyncIterator[tuple[float, bytes]]:
    """Yield the data of each server-sent event with its arrival time."""
    parser = EventParser()
    async for chunk in response.aiter_bytes():
        now = time.perf_counter()
        for data in parser.push(chunk):
            yield now, data
