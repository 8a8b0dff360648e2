"""The server that is asked: which model, and which of the forms of a request it takes. Needs httpx."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import httpx

from aethermind.cli.bench.serve.outcome import Outcome
from aethermind.cli.bench.serve.stream import ask_once
from aethermind.cli.bench.serve.workload import Ask
from aethermind.cli.remote import check_key, choose_model, client_options, connection_error, reason_of
from aethermind.errors import InvalidArgumentError

__all__ = ["Form", "Target", "connect", "find_target"]

PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
_TRIAL = Ask(None, 4, 2, "trial")


@dataclass(frozen=True, slots=True)
class Form:
    """How a request is written. Servers differ in what they take; the first form is the most exact."""

    has_token_ids: bool
    ignores_eos: bool
    has_usage: bool

    @classmethod
    def all_of(cls, endpoint: str) -> Iterator[Form]:
        """The forms to try, in order; chats are of text."""
        prompts = (True, False) if endpoint == "completions" else (False,)
        return (cls(*choices) for choices in product(prompts, (True, False), (True, False)))


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go, and how they are written."""

    client: httpx.AsyncClient
    model: str
    endpoint: str
    form: Form

    def body(self, ask: Ask) -> dict[str, Any]:
        """The request's members."""
        prompt = ask.token_ids() if self.form.has_token_ids else ask.text()
        content = {"prompt": prompt} if self.endpoint == "completions" else {"messages": [_message(prompt)]}
        body: dict[str, Any] = {"model": self.model, **content, "max_tokens": ask.num_output_tokens, "temperature": 0.0}
        body |= {"stream": True, **ask.wishes}
        if self.form.ignores_eos:
            body["ignore_eos"] = True
        if self.form.has_usage:
            body["stream_options"] = {"include_usage": True}
        return body

    async def send(self, ask: Ask, due_s: float | None, limit_s: float) -> Outcome:
        """Ask, and wait for the end of the answer. `due_s` of `time.perf_counter` is when; None is now."""
        body = self.body(ask)
        outcome = Outcome(time.perf_counter() if due_s is None else due_s, ask.num_prompt_tokens)
        await ask_once(self.client, PATHS[self.endpoint], body, outcome, limit_s)
        return outcome


def _message(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def connect(url: str, api_key: str | None) -> httpx.AsyncClient:
    """A client for the server at `url`, with as many connections as there are requests and no proxy between."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    return httpx.AsyncClient(**client_options(url, api_key), limits=limits)


async def find_target(client: httpx.AsyncClient, model: str | None, endpoint: str) -> Target:
    """The target for a model (None: the first there is). InvalidArgumentError says what keeps it from being asked."""
    name = await _model(client, model)
    for form in Form.all_of(endpoint):
        target = Target(client, name, endpoint, form)
        response = await _request(client, "POST", PATHS[endpoint], target.body(_TRIAL))
        if response.status_code == 200:
            return target
        if response.status_code not in (400, 422):
            break
    raise InvalidArgumentError(
        f"{name} at {str(client.base_url).rstrip('/')} does not answer {PATHS[endpoint]}: {reason_of(response)} "
        "Correct --url, --model or --endpoint."
    )


async def _model(client: httpx.AsyncClient, asked: str | None) -> str:
    return str(choose_model(client, await _request(client, "GET", "/v1/models"), asked)["id"])


async def _request(client: httpx.AsyncClient, method: str, path: str, body: Any = None) -> httpx.Response:
    try:
        response = await client.request(method, path, json=body)
    except httpx.HTTPError as error:
        raise connection_error(client, error) from None
    check_key(client, response)
    return response
