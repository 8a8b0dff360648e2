"""`/v1/embeddings` with OpenAI's client against the offline API."""

from __future__ import annotations

import base64
import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from tests.end_to_end.models import copy_demo
from tests.server.conftest import serving

from aethermind import LLM, Runtime
from aethermind.server.admission import Limits

TEXTS = ["The old fox", "A small hen lives here."]


@pytest.fixture(scope="module")
def expected() -> list[np.ndarray]:
    with LLM(device="cpu", dtype="float32", max_model_len=512) as other:
        return other.embed(TEXTS)


def test_all_forms_of_input_give_the_same_embeddings(
    client: openai.OpenAI, llm: LLM, expected: list[np.ndarray]
) -> None:
    ids = [llm.tokenizer.encode(text) for text in TEXTS]
    for given, vectors in ((TEXTS[0], expected[:1]), (TEXTS, expected), (ids[0], expected[:1]), (ids, expected)):
        answer = client.embeddings.create(model="demo", input=given)
        assert [one.index for one in answer.data] == list(range(len(vectors)))
        for one, vector in zip(answer.data, vectors, strict=True):
            np.testing.assert_allclose(one.embedding, vector, rtol=1e-6, atol=1e-7)
            assert np.linalg.norm(one.embedding) == pytest.approx(1.0, abs=1e-5)
        num_tokens = sum(map(len, ids[: len(vectors)]))
        assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (num_tokens, num_tokens)


def test_texts_are_truncated_to_the_max_seq_length_of_the_model(tmp_path: Path, runtime: Runtime, llm: LLM) -> None:
    """Texts of any length are accepted, because only their first tokens are used."""
    limits = {"modules.json": b"[]", "sentence_bert_config.json": b'{"max_seq_length": 3}'}
    cut = LLM(copy_demo(tmp_path / "model", files=limits), device="cpu", max_model_len=64, runtime=runtime)
    ids = llm.tokenizer.encode(TEXTS[1])[:3]
    with serving(cut) as address, httpx.Client(base_url=address, timeout=30) as http:
        answers = [
            http.post("/v1/embeddings", json={"model": "demo", "input": given}).json()
            for given in (ids, TEXTS[1], TEXTS[1] * 1000)
        ]
        assert all(answer["data"] == answers[0]["data"] for answer in answers)
        assert [answer["usage"]["prompt_tokens"] for answer in answers] == [3, 3, 3]


def test_floats_and_base64_are_the_same(http: httpx.Client) -> None:
    ask = {"model": "demo", "input": TEXTS[0]}
    floats = http.post("/v1/embeddings", json={**ask, "encoding_format": "float"}).json()["data"][0]["embedding"]
    text = http.post("/v1/embeddings", json={**ask, "encoding_format": "base64"}).json()["data"][0]["embedding"]
    np.testing.assert_array_equal(np.frombuffer(base64.b64decode(text), "<f4"), np.float32(floats))
    mean = http.post("/v1/embeddings", json={**ask, "pooling": "mean"}).json()["data"][0]["embedding"]
    assert not np.allclose(mean, floats)


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"dimensions": 8}, "dimensions"),
        ({"encoding_format": "int8"}, "encoding_format"),
        ({"pooling": "max"}, "pooling"),
        ({"input": []}, "input"),
        ({"input": ["x"] * 2049}, "input"),
        ({"input": ""}, None),
        ({"input": [[]]}, None),
        ({"input": [10**9]}, "input"),
        ({"input": "word " * 2000}, None),
    ],
)
def test_invalid_embedding_requests_are_a_400(http: httpx.Client, extra: dict[str, object], param: str | None) -> None:
    answer = http.post("/v1/embeddings", json={"model": "demo", "input": "x", **extra})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


def test_dimensions_accepts_only_the_length_of_the_embedding(http: httpx.Client) -> None:
    ask = {"model": "demo", "input": TEXTS}
    length = len(http.post("/v1/embeddings", json=ask).json()["data"][0]["embedding"])
    assert http.post("/v1/embeddings", json={**ask, "dimensions": length}).status_code == 200
    error = http.post("/v1/embeddings", json={**ask, "dimensions": length - 1}).json()["error"]
    assert (error["param"], str(length) in error["message"]) == ("dimensions", True)


def test_an_empty_text_has_an_error_of_its_own(http: httpx.Client) -> None:
    for texts in ("", ["a fox", ""], [[]]):
        answer = http.post("/v1/embeddings", json={"model": "demo", "input": texts})
        assert answer.status_code == 400
        assert answer.json()["error"]["message"] == "The text is empty; give it at least one token."
        assert answer.json()["error"]["code"] is None


@contextmanager
def held_at_the_second_text(http: httpx.Client, llm: LLM) -> Iterator[Future[httpx.Response]]:
    """A request for two texts, with the id `mine`, whose second text is held while the context is open."""
    embed, resume, numbers = llm.engine.embed, threading.Event(), itertools.count()

    def held(*args: Any, **names: Any) -> Any:
        if next(numbers) == 1:
            resume.wait()
        return embed(*args, **names)

    llm.engine.embed = held  # type: ignore[method-assign]
    body, headers = {"model": "demo", "input": TEXTS}, {"X-Request-Id": "mine"}
    try:
        with ThreadPoolExecutor(1) as threads:
            asking = threads.submit(http.post, "/v1/embeddings", json=body, headers=headers)
            metrics = ""
            while not ("aethermind_num_open 1.0" in metrics and "aethermind_num_queued 0.0" in metrics):
                assert not asking.done()
                metrics = http.get("/metrics").text
            try:
                yield asking
            finally:
                resume.set()
    finally:
        del llm.engine.embed  # type: ignore[method-assign]


def test_an_embedding_request_leaves_the_queue_with_its_first_embedding(http: httpx.Client, llm: LLM) -> None:
    with held_at_the_second_text(http, llm) as asking:
        assert "aethermind_num_queued_tokens 0.0" in http.get("/metrics").text
    assert asking.result().status_code == 200


def test_an_embedding_request_is_cancelled_by_its_id(http: httpx.Client, llm: LLM) -> None:
    with held_at_the_second_text(http, llm) as asking:
        assert http.delete("/v1/requests/mine").json() == {"id": "mine", "object": "request", "cancelled": True}
        answer = asking.result()
    assert (answer.status_code, answer.json()["error"]["code"]) == (499, "request_cancelled")
    assert http.delete("/v1/requests/mine").status_code == 404


def test_the_tokens_of_all_texts_together_are_limited(open_server: Callable[..., httpx.Client]) -> None:
    http = open_server(limits=Limits(max_queued_tokens=40))
    for texts, status in (([[5] * 41], 200), ([[5] * 20] * 2, 200), ([[5] * 20, [5] * 21], 400)):
        answer = http.post("/v1/embeddings", json={"model": "demo", "input": texts})
        assert answer.status_code == status, answer.text
    assert answer.json()["error"]["param"] == "input"
    assert answer.json()["error"]["code"] == "token_queue_full"
