"""OpenAI's batch files: a request a line, answered by the application in this process, and a result a line."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx

from aethermind.errors import EngineDeadError
from aethermind.server.admission import MAX_LIMIT, Limits

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["BATCH_LIMITS", "BATCH_URLS", "BatchRequest", "BatchResult", "answer_requests", "read_requests"]

BATCH_URLS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
"""The endpoints that a request of a batch may name."""

BATCH_LIMITS = Limits(
    max_concurrent_requests=MAX_LIMIT - 1,
    max_queued_requests=MAX_LIMIT - 1,
    max_queued_tokens=MAX_LIMIT - 1,
    max_body_bytes=MAX_LIMIT - 1,
    request_timeout_s=MAX_LIMIT - 1,
)
"""The limits of an application that answers batches only. It has no other clients."""

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """A line of a batch: the id by which its result is found, an endpoint, and the JSON body for it."""

    custom_id: str
    url: str
    content: bytes


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The result of a line. `status_code`, `request_id` and `body` are those of the response, None without one.

    `error` has a `code` and a `message`; it is None for an answer. `custom_id` is None if the line has none.
    """

    custom_id: str | None
    status_code: int | None = None
    request_id: str | None = None
    body: dict[str, Any] | None = None
    error: dict[str, Any] | None = None

    @property
    def key(self) -> tuple[str | None, str | None]:
        """What identifies the line: its `custom_id`, else the message of its error, which names the line's number."""
        return self.custom_id, None if self.custom_id is not None or self.error is None else self.error["message"]

    @property
    def num_tokens(self) -> tuple[int, int]:
        """The tokens of the prompt and of the output, by the usage that the response states."""
        usage = (self.body or {}).get("usage") or {}
        num_prompt = usage.get("prompt_tokens", usage.get("input_tokens", 0))
        return num_prompt, usage.get("completion_tokens", usage.get("output_tokens", 0))

    def line(self) -> bytes:
        """The line of the result with its newline, as UTF-8."""
        response = None
        if self.status_code is not None:
            response = {"status_code": self.status_code, "request_id": self.request_id, "body": self.body}
        record = {
            "id": f"batch_req_{uuid.uuid4().hex}",
            "custom_id": self.custom_id,
            "response": response,
            "error": self.error,
        }
        try:
            return json.dumps(record, ensure_ascii=False).encode() + b"\n"
        except UnicodeEncodeError:  # half a character in custom_id
            return json.dumps(record).encode() + b"\n"

    @classmethod
    def read(cls, line: bytes) -> BatchResult:
        """Read a line that `line` wrote. ValueError for anything else."""
        record = json.loads(line)
        if not isinstance(record, dict) or not {"custom_id", "response", "error"} <= record.keys():
            raise ValueError("not a result of a batch")
        response = record["response"] or {}
        status_code, request_id, body = map(response.get, ("status_code", "request_id", "body"))
        return cls(record["custom_id"], status_code, request_id, body, record["error"])


class _LineError(Exception):
    """A line that is no request, with OpenAI's code for that."""

    def __init__(self, code: str, message: str, custom_id: str | None = None) -> None:
        super().__init__(message)
        self.result = BatchResult(custom_id, error={"code": code, "message": message})


def read_requests(content: bytes, model: str) -> Iterator[BatchRequest | BatchResult]:
    """Yield the requests of a batch file in JSON lines, and a result with an error for each line that is no request.

    Requests without a `model` get `model`. Empty lines are left out.
    """
    seen: set[str] = set()
    for number, line in enumerate(content.removeprefix(_BOM).split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            request = _read_request(line, f"Line {number}", model)
            if request.custom_id in seen:
                raise _LineError(
                    "duplicate_custom_id",
                    f"Line {number} has the custom_id {request.custom_id!r:.100} of an earlier line; give it another.",
                    request.custom_id,
                )
            seen.add(request.custom_id)
            yield request
        except _LineError as error:
            yield error.result


def _read_request(line: bytes, where: str, model: str) -> BatchRequest:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)[:200]
        raise _LineError("invalid_json_line", f"{where} is not JSON: {reason}.") from None
    if not isinstance(record, dict):
        raise _LineError("invalid_json_line", f"{where} should be a JSON object with custom_id, method, url and body.")
    custom_id, method, url, body = map(record.get, ("custom_id", "method", "url", "body"))
    if not isinstance(custom_id, str) or not custom_id:
        raise _LineError("missing_required_parameter", f"{where} needs a custom_id, a text that names its result.")
    for name, value in (("method", method), ("url", url), ("body", body)):
        if value is None:
            raise _LineError("missing_required_parameter", f"{where} has no {name}.", custom_id)
    if method != "POST":
        raise _LineError("invalid_method", f"{where} has the method {method!r:.100}, which should be POST.", custom_id)
    if url not in BATCH_URLS:
        message = f"{where} has the url {url!r:.100}, which should be one of {', '.join(BATCH_URLS)}."
        raise _LineError("invalid_url", message, custom_id)
    if not isinstance(body, dict):
        raise _LineError("invalid_request", f"{where} has a body that is no JSON object.", custom_id)
    if body.get("stream"):
        message = f"{where} asks for a stream, and a batch has whole answers; leave stream out."
        raise _LineError("unsupported_parameter", message, custom_id)
    if body.get("model") is None:
        body["model"] = model
    try:
        return BatchRequest(custom_id, url, json.dumps(body).encode())
    except RecursionError:
        raise _LineError("invalid_json_line", f"{where} has a body that is nested too deeply.", custom_id) from None


async def answer_requests(
    app: ASGIApp, requests: Iterable[BatchRequest], on_result: Callable[[BatchResult], None], *, max_in_flight: int
) -> None:
    """Send requests to an application in this process, at most `max_in_flight` at once, and hand over each result.

    Results come in the order in which they are finished. EngineDeadError if the engine fails; requests that it has not
    answered have no result then, so that they can be sent again. Exceptions of `on_result` end it, too.
    """
    remaining = iter(requests)
    # In the server these come from the connection.
    connection = {"disconnected": asyncio.get_running_loop().create_future(), "abort": lambda: None}

    async def connected_app(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "state": dict(connection)}, receive, send)

    transport = httpx.ASGITransport(connected_app, raise_app_exceptions=False)
    headers = {"Content-Type": "application/json"}
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client:

        async def work() -> None:
            for request in remaining:  # the tasks share the iterator
                on_result(await _answer(client, request))

        tasks = [asyncio.create_task(work()) for _ in range(max_in_flight)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _answer(client: httpx.AsyncClient, request: BatchRequest) -> BatchResult:
    response = await client.post(request.url, content=request.content)
    body, error = response.json(), None
    if response.status_code >= 400:
        error = {"code": body["error"]["code"] or body["error"]["type"], "message": body["error"]["message"]}
        if error["code"] == "engine_dead":
            raise EngineDeadError(error["message"])
    return BatchResult(request.custom_id, response.status_code, response.headers.get("X-Request-Id"), body, error)
