"""The server that is asked: which model, and which of the forms of a request it takes. Needs httpx."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import httpx

from aethermind.cli.bench.serve.outcome import Outcome
from aethermind.cli.bench.serve.stream import ask_once, error_of
from aethermind.cli.bench.serve.workload import Ask
from aethermind.errors import InvalidArgumentError

__all__ = ["Form", "Target", "connect", "find_target"]

PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
_CONNECT_S = 10.0
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
    if not url.startswith(("http://", "https://")):
        raise InvalidArgumentError(f"--url is {url!r} but should be an address such as http://127.0.0.1:8000.")
    try:
        return httpx.AsyncClient(
            base_url=url.rstrip("/").removesuffix("/v1"),
            headers={} if api_key is None else {"Authorization": f"Bearer {api_key}"},
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            timeout=httpx.Timeout(None, connect=_CONNECT_S),
            trust_env=False,
        )
    except (httpx.InvalidURL, UnicodeError) as error:
        raise InvalidArgumentError(f"--url or --api-key cannot be used: {error}. Correct it.") from None


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
        f"{name} at {_shown(client)} does not answer {PATHS[endpoint]}: {_why(response)} "
        "Correct --url, --model or --endpoint."
    )


async def _model(client: httpx.AsyncClient, asked: str | None) -> str:
    response = await _request(client, "GET", "/v1/models")
    try:
        names = [str(one["id"]) for one in response.json()["data"]]
    except (ValueError, KeyError, TypeError):
        names = []
    if response.status_code != 200 or not names:
        raise InvalidArgumentError(
            f"{_shown(client)} does not list models as OpenAI's API does: /v1/models gives {_why(response)} "
            "Correct --url."
        )
    if asked is not None and asked not in names:
        shown = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
        raise InvalidArgumentError(f"The server has no model {asked!r}; it has {shown}. Correct --model.")
    return asked or names[0]


async def _request(client: httpx.AsyncClient, method: str, path: str, body: Any = None) -> httpx.Response:
    try:
        response = await client.request(method, path, json=body)
    except httpx.HTTPError as error:
        reason = str(error) or type(error).__name__
        raise InvalidArgumentError(
            f"No server answers at {_shown(client)} ({reason}). Start one with `aethermind serve`, or correct --url."
        ) from None
    if response.status_code == 401:
        raise InvalidArgumentError(
            f"The server at {_shown(client)} wants an API key: {error_of(response)['message']} "
            "Set AETHERMIND_API_KEY or pass --api-key."
        )
    return response


def _shown(client: httpx.AsyncClient) -> str:
    return str(client.base_url).rstrip("/")


def _why(response: httpx.Response) -> str:
    """An answer that was not the one hoped for, as the end of a sentence."""
    if response.status_code == 200:
        return "something else."
    return f"HTTP {response.status_code}, {error_of(response)['message'].rstrip('.')}."
