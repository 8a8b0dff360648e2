"""Stored responses of `/v1/responses`: continued by `previous_response_id`, read, deleted, or generated in background.

Responses are kept in memory only, each for its API key, for a limited time and up to a limited size in total. Without
`--max-stored-response-bytes` nothing is stored.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import TypeAdapter

from aethermind.server.cancellation import CancelScope
from aethermind.server.model_pool import ModelState
from aethermind.server.observation.observer import HttpRecord, log_request
from aethermind.server.openai.errors import ApiError, as_api_error
from aethermind.server.openai.response_builder import ResponseObjectBuilder
from aethermind.server.openai.responses import InputItem, MessageItem
from aethermind.server.openai.serving import generate_response
from aethermind.server.served_model import ServedModel
from aethermind.server.sse import NAMED, EventBatch, EventStream

if TYPE_CHECKING:
    from aethermind.server.openai.responses import ResponseGenerationParams, ResponseRequest
    from aethermind.server.openai.serving import PrepareResponse

__all__ = ["ResponseStore", "StoredResponse", "respond_in_background", "router", "stored_response"]

router = APIRouter()

_ITEMS: TypeAdapter[list[Any]] = TypeAdapter(list[InputItem])
_BYTES_PER_PART = 512
"""Bytes of memory besides the text, roughly: of an item, a part of one, an event, and a token's log probability."""
_CANCEL_TIMEOUT_S = 5.0
_MAX_LISTED = 100
_NOT_ENABLED = "This server stores no responses. Have it started with --max-stored-response-bytes, or send the whole "
_NOT_ENABLED += "conversation as input."


@dataclass(slots=True, eq=False)
class StoredResponse:
    """A response, and the conversation that ends with it. Mutable: one in background is stored from its beginning.

    `items` are those of the conversation before the output, and the last `num_own_items` are the request's own.
    """

    id: str
    tenant_id: str
    items: list[Any]
    num_own_items: int
    response: dict[str, Any] = field(default_factory=dict)
    events: list[dict[str, Any]] | None = None
    """The events of a response in background, so far."""
    is_done: bool = False
    num_bytes: int = 0
    stored_s: float = 0.0
    task: asyncio.Task[None] | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def finish(self, response: dict[str, Any]) -> None:
        """Set the final response; followers of its events end."""
        self.response, self.is_done = response, True
        self.notify()

    def fail(self, error: ApiError) -> None:
        """End a response in background by an error."""
        failure = {"code": error.code or "server_error", "message": error.message}
        failed = {**self.response, "status": "failed", "error": failure}
        assert self.events is not None
        self.events.append({"type": "response.failed", "sequence_number": len(self.events), "response": failed})
        self.finish(failed)

    def add(self, batch: EventBatch) -> None:
        """Add events of a response in background."""
        assert self.events is not None
        for event in batch.events:
            if isinstance(event, dict):  # comments are sent while a model is loaded
                self.events.append(event)
                self.response = event.get("response", self.response)
        self.notify()

    def notify(self) -> None:
        """Wake those who wait for a change."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def follow(self, starting_after: int) -> AsyncIterator[EventBatch]:
        """Yield the events after the one with this number: those so far, and then each new one."""
        assert self.events is not None
        position = starting_after + 1
        while True:
            changed, is_done, events = self._changed, self.is_done, self.events[position:]
            position += len(events)
            yield EventBatch(list(events), is_last=is_done)
            if is_done:
                return
            await changed.wait()  # also set if there was a change while these events were sent

    def conversation(self) -> list[Any]:
        """The items of the conversation with the output. ApiError 400 for a response without a complete output."""
        if self.response.get("status") not in ("completed", "incomplete"):
            raise ApiError(
                400,
                f"The response {self.id} is {self.response.get('status')}; only one that is completed has a next one.",
                param="previous_response_id",
            )
        return [*self.items, *_ITEMS.validate_python(self.response["output"])]


class ResponseStore:
    """The stored responses of a server, by id: at most `max_bytes` in all, each for `ttl_s` seconds. Mutable.

    If there are more, the least recently used are dropped. A conversation's size is counted with each of its responses.
    """

    def __init__(self, max_bytes: int, ttl_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_bytes = max_bytes
        self._ttl_s = ttl_s
        self._clock = clock
        self._responses: OrderedDict[str, StoredResponse] = OrderedDict()
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._responses)

    def add(self, stored: StoredResponse) -> None:
        """Store a response. If it is stored, its size is updated."""
        self._remove(stored.id)
        text = json.dumps(stored.response, ensure_ascii=False, default=str)
        stored.num_bytes = len(text) + sum(len(item.model_dump_json()) for item in stored.items)
        num_parts = sum(map(_num_parts, stored.items)) + sum(map(_num_parts_of_event, stored.events or ()))
        stored.num_bytes += _BYTES_PER_PART * num_parts
        stored.stored_s = self._clock()
        self._responses[stored.id] = stored
        self.num_bytes += stored.num_bytes
        self._drop_expired()
        open_ids = [name for name, one in self._responses.items() if one.is_done]
        for name in open_ids:
            if self.num_bytes <= self._max_bytes:
                break
            self._remove(name)

    def update(self, stored: StoredResponse) -> None:
        """Update the size of a response, unless it was deleted."""
        if stored.id in self._responses:
            self.add(stored)

    def find(self, response_id: str, tenant_id: str, *, param: str | None = None) -> StoredResponse:
        """Return a tenant's response. ApiError 404, or 400 if a request's field `param` names it."""
        self._drop_expired()
        stored = self._responses.get(response_id)
        if stored is None or stored.tenant_id != tenant_id:
            message = f"There is no stored response {response_id!r:.80}: it was not stored, or was dropped since."
            code = "response_not_found" if param is None else "previous_response_not_found"
            raise ApiError(404 if param is None else 400, message, param=param, code=code)
        self._responses.move_to_end(response_id)
        return stored

    def delete(self, response_id: str, tenant_id: str) -> StoredResponse:
        """Remove a tenant's response and return it. ApiError 404."""
        stored = self.find(response_id, tenant_id)
        self._remove(response_id)
        return stored

    def _remove(self, response_id: str) -> None:
        if (stored := self._responses.pop(response_id, None)) is not None:
            self.num_bytes -= stored.num_bytes

    def _drop_expired(self) -> None:
        oldest = self._clock() - self._ttl_s
        for name in [name for name, one in self._responses.items() if one.is_done and one.stored_s < oldest]:
            self._remove(name)


def _num_parts(item: Any) -> int:
    content = getattr(item, "content", None) or getattr(item, "output", None)
    return 1 + (len(content) if isinstance(content, list) else 0)


def _num_parts_of_event(event: dict[str, Any]) -> int:
    return 1 + sum(1 + len(token.get("top_logprobs") or ()) for token in event.get("logprobs") or ())


def stored_response(request: Request, body: ResponseRequest, response_id: str) -> StoredResponse | None:
    """The response to store for a request; None if it is not to be stored. ApiError 400 for what cannot be.

    The items of the previous response's conversation are put before those of the request.
    """
    store: ResponseStore | None = request.app.state.response_store
    fields = {"store": body.store, "previous_response_id": body.previous_response_id, "background": body.background}
    if store is None:
        if name := next((name for name, value in fields.items() if value), None):
            raise ApiError(400, f"{name} is not supported. {_NOT_ENABLED}", param=name, code="unsupported_parameter")
        return None
    if body.background and body.store is False:
        raise ApiError(400, "background needs store: the response is read from the store.", param="background")
    given = body.input
    own = [MessageItem(role="user", content=given)] if isinstance(given, str) else list(given)
    earlier: list[Any] = []
    tenant_id = request.state.tenant.id
    if body.previous_response_id is not None:
        previous = store.find(body.previous_response_id, tenant_id, param="previous_response_id")
        earlier = previous.conversation()
        body.input = [*earlier, *own]
    return None if body.store is False else StoredResponse(response_id, tenant_id, [*earlier, *own], len(own))


async def respond_in_background(
    request: Request,
    body: ResponseRequest,
    params: ResponseGenerationParams,
    stored: StoredResponse,
    prepare: PrepareResponse,
    builder_of: Callable[[ServedModel], ResponseObjectBuilder],
) -> Response:
    """Begin a response that is generated without its client; returns it as it is, or a stream that follows it.

    Errors that are known before its model computes are raised; later ones are in the response.
    """
    store: ResponseStore = request.app.state.response_store
    is_loaded = request.app.state.models.status(body.model).state is ModelState.LOADED
    stored.response, stored.events = {**builder_of(ServedModel.unloaded(body.model)).initial_response}, []
    stored.response["status"] = "queued"
    is_streamed, params.is_stream = params.is_stream, True
    prepared: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    prepared.add_done_callback(lambda future: future.exception())  # it is not awaited while a model is loaded

    async def prepare_and_tell(model: ServedModel) -> Any:
        result = await prepare(model)
        if not prepared.done():
            prepared.set_result(None)
        return result

    detached = _detached(request)
    record: HttpRecord = detached.state.record

    async def generate() -> None:
        try:
            stream = await generate_response(detached, body.model, params, 1, prepare_and_tell, builder_of, NAMED)
            if isinstance(stream, EventStream):
                with CancelScope(detached.state.disconnected):
                    async for batch in stream.batches():
                        stored.add(batch)
        except Exception as error:
            failure = as_api_error(error)
            record.error_code = failure.code
            if not prepared.done():
                prepared.set_exception(failure)
            stored.fail(failure)
            store.update(stored)
            return
        finally:
            record.ended_s = time.perf_counter()
            log_request(record)
        if not stored.is_done and stored.response["status"] in ("queued", "in_progress"):
            stored.fail(ApiError(503, "The server stopped before the response was complete.", code="server_stopped"))
        else:
            stored.finish(stored.response)
        store.update(stored)

    stored.task = asyncio.create_task(generate())
    if is_loaded:
        await asyncio.wait({stored.task, prepared}, return_when=asyncio.FIRST_COMPLETED)
        if prepared.done():
            prepared.result()
    store.add(stored)
    if is_streamed:
        return _following(request, stored, -1)
    return JSONResponse(stored.response)


def _detached(request: Request) -> Request:
    """A request with the same state whose client never disconnects; `abort` ends it."""
    disconnected: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def abort() -> None:
        if not disconnected.done():
            disconnected.set_result(None)

    record = replace(request.state.record, generations=[], is_stream=True)
    state = {**request.scope["state"], "disconnected": disconnected, "abort": abort, "record": record}
    return Request({**request.scope, "state": state})


def _following(request: Request, stored: StoredResponse, starting_after: int) -> EventStream:
    timeout_s = request.app.state.limits.send_timeout_s
    return EventStream(stored.follow(starting_after), AsyncExitStack(), framing=NAMED, send_timeout_s=timeout_s)


def _store(request: Request) -> ResponseStore:
    store: ResponseStore | None = request.app.state.response_store
    if store is None:
        raise ApiError(404, _NOT_ENABLED, code="response_not_found")
    return store


@router.get("/v1/responses/{response_id}", response_model=None)
async def read(request: Request, response_id: str) -> Response:
    """A stored response; with `stream=true` the events of one in background, those after `starting_after` only."""
    stored = _store(request).find(response_id, request.state.tenant.id)
    if request.query_params.get("stream") != "true":
        return JSONResponse(stored.response)
    if stored.events is None:
        raise ApiError(400, "Only the events of a response with background are kept.", param="stream")
    after = request.query_params.get("starting_after", "-1")
    if not (after == "-1" or (after.isascii() and after.isdecimal() and len(after) < 12)):
        raise ApiError(400, "starting_after is the number of an event.", param="starting_after")
    return _following(request, stored, int(after))


@router.delete("/v1/responses/{response_id}")
async def delete(request: Request, response_id: str) -> dict[str, Any]:
    """Drop a stored response; one that is generated in background is cancelled."""
    stored = _store(request).delete(response_id, request.state.tenant.id)
    if not stored.is_done:
        request.app.state.in_flight_requests.cancel(response_id, stored.tenant_id)
    return {"id": response_id, "object": "response", "deleted": True}


@router.post("/v1/responses/{response_id}/cancel")
async def cancel(request: Request, response_id: str) -> dict[str, Any]:
    """Cancel a response in background, which ends with its output so far."""
    stored = _store(request).find(response_id, request.state.tenant.id)
    if stored.events is None:
        raise ApiError(400, "Only a response with background can be cancelled by its id here.", param="response_id")
    if not stored.is_done and stored.task is not None:
        request.app.state.in_flight_requests.cancel(response_id, stored.tenant_id)
        await asyncio.wait({stored.task}, timeout=_CANCEL_TIMEOUT_S)
    return stored.response


@router.get("/v1/responses/{response_id}/input_items")
async def input_items(request: Request, response_id: str) -> dict[str, Any]:
    """The input items of a stored response's own request, the last one first unless `order` is `asc`.

    There are at most `limit` (20) items, those behind the item with the id `after`.
    """
    stored, query = _store(request).find(response_id, request.state.tenant.id), request.query_params
    order, limit, after = query.get("order", "desc"), query.get("limit", "20"), query.get("after")
    if order not in ("asc", "desc"):
        raise ApiError(400, "order is asc or desc.", param="order")
    if not (limit.isascii() and limit.isdecimal() and 1 <= int(limit[:4]) <= _MAX_LISTED):
        raise ApiError(400, f"limit is a number of 1 to {_MAX_LISTED}.", param="limit")
    items = _shown_items(stored.items[len(stored.items) - stored.num_own_items :], response_id)
    if order == "desc":
        items.reverse()
    ids = [item["id"] for item in items]
    if after is not None and after not in ids:
        raise ApiError(400, "after is the id of an item.", param="after")
    begin = 0 if after is None else ids.index(after) + 1
    page = slice(begin, begin + int(limit))
    first_id, last_id = (ids[page][0], ids[page][-1]) if ids[page] else (None, None)
    has_more = page.stop < len(items)
    return {"object": "list", "data": items[page], "first_id": first_id, "last_id": last_id, "has_more": has_more}


def _shown_items(items: Sequence[Any], response_id: str) -> list[dict[str, Any]]:
    data = []
    for number, item in enumerate(items):
        shown = {"id": f"item_{response_id.removeprefix('resp_')}_{number}", **item.model_dump(exclude_none=True)}
        if shown["type"] == "message" and isinstance(shown["content"], str):
            kind = "output_text" if shown["role"] == "assistant" else "input_text"
            shown["content"] = [{"type": kind, "text": shown["content"]}]
        data.append(shown)
    return data
