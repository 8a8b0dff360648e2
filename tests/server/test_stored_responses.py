"""Stored responses with OpenAI's client: continued, read, deleted, and generated in background."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pytest
from pydantic import TypeAdapter
from tests.server.conftest import paused_engine, serving

from aethermind import LLM
from aethermind.server.access import Tenants
from aethermind.server.openai.errors import ApiError
from aethermind.server.openai.responses import InputItem, MessageItem
from aethermind.server.openai.stored_responses import ResponseStore, StoredResponse
from aethermind.server.sse import EventBatch

ASK: Any = {"model": "demo", "input": "Who are you?", "max_output_tokens": 16, "temperature": 0.0}
NEXT: Any = {**ASK, "input": "Tell me a story."}


@pytest.fixture(scope="module")
def url(llm: LLM) -> Iterator[str]:
    with serving(llm, response_store=ResponseStore(1 << 20, 3600)) as address:
        yield f"{address}/v1"


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def finished(client: openai.OpenAI, response_id: str) -> Any:
    """The response once its generation has ended."""
    for _ in client.responses.retrieve(response_id, stream=True):
        pass
    return client.responses.retrieve(response_id)


def test_a_previous_response_is_the_beginning_of_the_conversation(client: openai.OpenAI) -> None:
    """The answer is that to the whole conversation as input."""
    first = client.responses.create(**ASK)
    assert first.store
    second = client.responses.create(**NEXT, previous_response_id=first.id)
    third = client.responses.create(**ASK, previous_response_id=second.id, instructions="Be brief.", store=False)
    assert (second.previous_response_id, third.previous_response_id) == (first.id, second.id)

    def said(*texts: str) -> Any:
        roles = ("user", "assistant") * 3
        return [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]

    texts = [ASK["input"], first.output_text, NEXT["input"]]
    assert client.responses.create(**{**ASK, "input": said(*texts)}).output_text == second.output_text
    texts += [second.output_text, ASK["input"]]
    whole = client.responses.create(**{**ASK, "input": said(*texts)}, instructions="Be brief.", store=False)
    assert (whole.output_text, whole.usage.input_tokens) == (third.output_text, third.usage.input_tokens)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(third.id)


def test_calls_and_their_results_are_part_of_the_conversation(client: openai.OpenAI) -> None:
    call = {"type": "function_call", "call_id": "call_1", "name": "clock", "arguments": "{}"}
    first = client.responses.create(**{**ASK, "input": [{"role": "user", "content": "What time is it?"}, call]})
    result = {"type": "function_call_output", "call_id": "call_1", "output": "noon"}
    second = client.responses.create(**{**ASK, "input": [result]}, previous_response_id=first.id)
    assert second.usage.input_tokens > first.usage.input_tokens
    assert [item.type for item in client.responses.input_items.list(second.id)] == ["function_call_output"]


def test_a_response_is_read_and_deleted(client: openai.OpenAI) -> None:
    for stream in (False, True):
        if stream:
            made = list(client.responses.create(**ASK, stream=True))[-1].response
        else:
            made = client.responses.create(**ASK)
        assert client.responses.retrieve(made.id) == made
        (item,) = client.responses.input_items.list(made.id)
        assert item.content[0].text == ASK["input"]
        client.responses.delete(made.id)
        for lost in (client.responses.retrieve, client.responses.delete):
            with pytest.raises(openai.NotFoundError, match="no stored response"):
                lost(made.id)
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.create(**NEXT, previous_response_id=made.id)
        assert (caught.value.param, caught.value.code) == ("previous_response_id", "previous_response_not_found")


def test_input_items_are_listed_in_pages(client: openai.OpenAI) -> None:
    """The last ones first, 20 at once, as in OpenAI's API; its client asks for the next page."""
    texts = [f"Word {number}." for number in range(23)]
    made = client.responses.create(**{**ASK, "input": [{"role": "user", "content": text} for text in texts]})

    def listed(response_id: str, **query: Any) -> list[str]:
        return [item.content[0].text for item in client.responses.input_items.list(response_id, **query)]

    assert listed(made.id) == texts[::-1]
    assert listed(made.id, order="asc", limit=5) == texts
    page = client.responses.input_items.list(made.id, order="asc", limit=2)
    assert ([item.content[0].text for item in page.data], page.has_more) == (texts[:2], True)
    empty = client.responses.create(**{**ASK, "input": []}, previous_response_id=made.id)
    assert listed(empty.id) == []
    for query in ({"limit": 0}, {"limit": 101}, {"after": "item_x"}, {"order": "up"}):
        with pytest.raises(openai.BadRequestError) as caught:
            listed(made.id, **query)
        assert caught.value.param == next(iter(query))


def test_a_response_in_background_ends_without_its_client(client: openai.OpenAI) -> None:
    whole = client.responses.create(**ASK)
    begun = client.responses.create(**ASK, background=True)
    assert begun.status in ("queued", "in_progress")
    assert begun.background
    ended = finished(client, begun.id)
    assert (ended.status, ended.output_text, ended.id) == (whole.status, whole.output_text, begun.id)
    assert ended.usage == whole.usage or ended.usage.output_tokens == whole.usage.output_tokens
    following = client.responses.create(**NEXT, previous_response_id=ended.id)
    assert following.output_text == client.responses.create(**NEXT, previous_response_id=whole.id).output_text


def test_a_stream_goes_on_after_any_event(client: openai.OpenAI, llm: LLM) -> None:
    """A client that has lost its connection misses nothing and gets nothing twice."""
    with paused_engine(llm, after=3) as resume:
        with client.responses.create(**ASK, background=True, stream=True) as stream:
            seen = [next(stream) for _ in range(3)]
        resume.set()
    response_id = seen[0].response.id
    rest = list(client.responses.retrieve(response_id, stream=True, starting_after=seen[-1].sequence_number))
    events = list(client.responses.retrieve(response_id, stream=True))
    assert [*seen, *rest] == events
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].response == client.responses.retrieve(response_id)
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == client.responses.create(**ASK).output_text


def test_a_response_in_background_is_cancelled(client: openai.OpenAI, llm: LLM) -> None:
    for method in ("cancel", "delete"):
        with paused_engine(llm, after=2) as resume:
            begun = client.responses.create(**{**ASK, "max_output_tokens": 400}, background=True)
            resume.set()
            if method == "cancel":
                cancelled = client.responses.cancel(begun.id)
                assert cancelled.status in ("cancelled", "incomplete", "completed")
                assert client.responses.retrieve(begun.id).status == cancelled.status
                assert client.responses.cancel(begun.id) == cancelled
            else:
                client.responses.delete(begun.id)
    with pytest.raises(openai.BadRequestError, match="Only a response with background"):
        client.responses.cancel(client.responses.create(**ASK).id)


def test_a_response_that_is_deleted_while_it_is_generated_does_not_come_back(
    client: openai.OpenAI, url: str, llm: LLM
) -> None:
    with paused_engine(llm, after=2) as resume:
        begun = client.responses.create(**{**ASK, "max_output_tokens": 400}, background=True)
        with client.responses.retrieve(begun.id, stream=True) as events:
            client.responses.delete(begun.id)
            resume.set()
            assert [event.type for event in events][-1] in ("response.completed", "response.incomplete")
    assert httpx.get(f"{url}/responses/{begun.id}").status_code == 404


def test_an_error_after_the_beginning_is_in_the_response(client: openai.OpenAI) -> None:
    begun = client.responses.create(**{**ASK, "input": "word " * 600}, background=True)
    ended = finished(client, begun.id)
    assert ended.status == "failed"
    assert "The context holds" in ended.error.message
    with pytest.raises(openai.BadRequestError, match="is failed; only one that is completed"):
        client.responses.create(**ASK, previous_response_id=begun.id)


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"background": True, "store": False}, "background"),
        ({"background": True, "tools": [{"type": "function", "name": "f"}]}, "tools"),
        ({"background": True, "temperature": -1}, "temperature"),
        ({"previous_response_id": "resp_none"}, "previous_response_id"),
    ],
)
def test_bad_requests_are_a_400_at_once(url: str, extra: Any, param: str) -> None:
    answer = httpx.post(f"{url}/responses", json={**ASK, **extra})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


def test_an_unknown_model_is_a_404(url: str) -> None:
    assert httpx.post(f"{url}/responses", json={**ASK, "model": "x", "background": True}).status_code == 404


def test_bad_queries_are_a_400(client: openai.OpenAI, url: str) -> None:
    begun = client.responses.create(**ASK, background=True)
    finished(client, begun.id)
    for query in ("stream=true&starting_after=x", "stream=true&starting_after=-2"):
        answer = httpx.get(f"{url}/responses/{begun.id}?{query}")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "starting_after")
    plain = client.responses.create(**ASK)
    assert httpx.get(f"{url}/responses/{plain.id}?stream=true").json()["error"]["param"] == "stream"


def test_responses_belong_to_an_api_key(open_server: Callable[..., httpx.Client]) -> None:
    http = open_server(tenants=Tenants.of_keys(["one", "two"]), response_store=ResponseStore(1 << 20, 3600))
    keys = [{"Authorization": f"Bearer {key}"} for key in ("one", "two")]
    made = http.post("/v1/responses", json=ASK, headers=keys[0]).json()
    paths = (f"/v1/responses/{made['id']}", f"/v1/responses/{made['id']}/input_items")
    for path in paths:
        assert [http.get(path, headers=key).status_code for key in keys] == [200, 404]
        assert http.get(path).status_code == 401
    ask = {**NEXT, "previous_response_id": made["id"]}
    assert [http.post("/v1/responses", json=ask, headers=key).status_code for key in keys] == [200, 400]
    assert [http.delete(paths[0], headers=key).status_code for key in reversed(keys)] == [404, 200]


def test_nothing_is_stored_unless_the_operator_allows_it(http: httpx.Client) -> None:
    made = http.post("/v1/responses", json=ASK).json()
    assert made["store"] is False
    for method in ("GET", "DELETE"):
        answer = http.request(method, f"/v1/responses/{made['id']}")
        assert answer.status_code == 404
        assert "--max-stored-response-bytes" in answer.json()["error"]["message"]
    for field in ("store", "background", "previous_response_id"):
        answer = http.post("/v1/responses", json={**ASK, field: "resp_1" if field[0] == "p" else True})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)


def test_the_size_of_a_response_is_that_of_its_memory() -> None:
    """Not only that of its text: small items would take many times the limit."""
    parts = [{"type": "input_text", "text": ""}] * 50
    messages = [[{"role": "user", "content": ""} for _ in range(1000)], [{"role": "user", "content": parts}] * 20]
    store = ResponseStore(1 << 30, 60)
    for number, given in enumerate(messages):
        tracemalloc.start()
        items = TypeAdapter(list[InputItem]).validate_python(given)
        used, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        before = store.num_bytes
        store.add(StoredResponse(f"resp_{number}", "t", items, 1, {"output": []}))
        assert used / 1.5 < store.num_bytes - before < used * 1.5


def test_a_follower_sees_what_comes_while_it_sends() -> None:
    async def follow() -> tuple[EventBatch, EventBatch]:
        stored = StoredResponse("resp_1", "t", [], 0, response={"status": "in_progress"}, events=[])
        followed = stored.follow(-1)
        first = await anext(followed)
        stored.add(EventBatch([{"type": "one"}]))
        stored.finish({"status": "completed"})
        async with asyncio.timeout(10):
            return first, await anext(followed)

    first, second = asyncio.run(follow())
    assert (first.events, first.is_last) == ([], False)
    assert (second.events, second.is_last) == ([{"type": "one"}], True)


def test_the_store_is_bounded_in_bytes_and_time() -> None:
    now = [0.0]
    store = ResponseStore(10_000, 60, clock=lambda: now[0])
    for number in range(20):
        item = MessageItem(role="user", content="x" * 1000)
        stored = StoredResponse(f"resp_{number}", "t", [item], 1)
        stored.finish({"status": "completed", "output": []})
        store.add(stored)
        store.find("resp_0", "t")  # the most recently used one stays
    assert 0 < store.num_bytes <= 10_000
    assert 5 < len(store) < 10
    assert store.find("resp_19", "t")
    with pytest.raises(ApiError, match="no stored response 'resp_1'"):
        store.find("resp_1", "t")
    now[0] = 61.0
    with pytest.raises(ApiError, match="no stored response"):
        store.find("resp_0", "t")
    assert (len(store), store.num_bytes) == (0, 0)
