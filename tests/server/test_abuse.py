"""Invalid and hostile requests, limits and disconnects: each gets one clear error, and the server continues."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable

import httpx
import openai
import pytest
from tests.server.conftest import NUM_UNREAD, unread

from aethermind.server.access import Quota, Tenant, Tenants, key_hash
from aethermind.server.admission import Limits

COMPLETIONS = "/v1/completions"
GOOD = {"model": "demo", "prompt": "Once upon a time", "max_tokens": 4}
SAY = [{"role": "user", "content": "Hi"}]
ENDLESS = {**GOOD, "max_tokens": 400, "ignore_eos": True}

HOSTILE = {
    "nothing": b"",
    "no JSON": b"{",
    "no object": b"[]",
    "text": b'"hello"',
    "NaN": b'{"model":"demo","prompt":"x","temperature":NaN}',
    "infinity": b'{"model":"demo","prompt":"x","temperature":1e999}',
    "huge integer": b'{"model":"demo","prompt":"x","max_tokens":' + b"9" * 400 + b"}",
    "more digits than Python reads": b'{"model":"demo","prompt":"x","max_tokens":' + b"9" * 5000 + b"}",
    "lone surrogate": b'{"model":"demo","prompt":"\\ud800"}',
    "lone surrogate in a name": b'{"model":"demo","prompt":"x","cache_salt":"\\uDFFF"}',
    "lone surrogate far inside": b'{"model":"demo","prompt":"x","structured_outputs":{"json":{"const":"\\ud83e!"}}}',
    "no UTF-8": b'{"model":"demo","prompt":"\xff"}',
    "deep list": b'{"model":"demo","prompt":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep object": b'{"model":' * 100_000 + b"1" + b"}" * 100_000,
    "name given twice": b'{"model":"demo","prompt":"x","prompt":"y"}',
    "text for a number": b'{"model":"demo","prompt":"x","max_tokens":"5"}',
    "number for a flag": b'{"model":"demo","prompt":"x","stream":1}',
    "fraction": b'{"model":"demo","prompt":"x","max_tokens":1.5}',
    "null byte after the end": b'{"model":"demo","prompt":"x"}\x00',
    "negative limit": b'{"model":"demo","prompt":"x","max_tokens":-1}',
    "token id out of range": b'{"model":"demo","prompt":[99999999]}',
    "negative token id": b'{"model":"demo","prompt":[-1]}',
    "mixed prompts": b'{"model":"demo","prompt":["x",[1]]}',
    "no prompts": b'{"model":"demo","prompt":[]}',
    "empty prompt": b'{"model":"demo","prompt":""}',
    "min above max": b'{"model":"demo","prompt":"x","max_tokens":2,"min_tokens":3}',
    "too many stops": json.dumps({**GOOD, "stop": ["x"] * 17}).encode(),
    "a million prompts": json.dumps({**GOOD, "prompt": ["x"] * 400_000}).encode(),
}

MALFORMED = (
    *("nothing", "no JSON", "no object", "text", "NaN", "more digits than Python reads", "lone surrogate", "no UTF-8"),
    *("deep list", "deep object", "name given twice", "null byte after the end"),
)
"""The hostile bodies that are invalid for every endpoint."""


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bodies_are_400(http: httpx.Client, name: str) -> None:
    answer = http.post(COMPLETIONS, content=HOSTILE[name])
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert 10 < len(error["message"]) < 400
    assert http.post(COMPLETIONS, json=GOOD).status_code == 200


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": "x"}, "model"),
        ({"model": "demo"}, "prompt"),
        ({**GOOD, "max_tokens": "5"}, "max_tokens"),
        ({**GOOD, "best_of": 2}, "best_of"),
        ({**GOOD, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({**GOOD, "temperature": -1}, "temperature"),
        ({**GOOD, "max_tokens": 0}, "max_tokens"),
        ({**GOOD, "logprobs": 21}, "logprobs"),
        ({**GOOD, "prompt": [10**9]}, "prompt"),
        ({**GOOD, "prompt": [[5], [10**9]]}, "prompt"),
        ({**GOOD, "prompt": [10**30]}, "prompt"),
        ({**GOOD, "logit_bias": {"99999999": 1}}, "logit_bias"),
        ({**GOOD, "allowed_token_ids": [5, 10**9]}, "allowed_token_ids"),
        ({**GOOD, "stop_token_ids": [10**9]}, "stop_token_ids"),
    ],
)
def test_errors_name_the_field(http: httpx.Client, body: dict[str, object], param: str) -> None:
    answer = http.post(COMPLETIONS, json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert param in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "field", "value"),
    [
        ("/v1/chat/completions", "max_completion_tokens", 0),
        ("/v1/chat/completions", "max_tokens", 0),
        ("/v1/chat/completions", "top_logprobs", 21),
        ("/v1/responses", "max_output_tokens", 0),
        ("/v1/responses", "top_logprobs", 21),
        ("/v1/responses", "input", []),
        ("/v1/embeddings", "input", [10**9]),
    ],
)
def test_errors_name_the_field_as_the_client_does(http: httpx.Client, path: str, field: str, value: object) -> None:
    ask: dict[str, object] = {"model": "demo"}
    if path == "/v1/chat/completions":
        ask |= {"messages": SAY, "logprobs": True}
    elif path == "/v1/responses":
        ask |= {"input": "Hi", "include": ["message.output_text.logprobs"]}
    error = http.post(path, json={**ask, field: value}).json()["error"]
    assert error["param"] == field
    assert error["message"].startswith(f"{field} ")


def test_an_integer_of_thousands_of_digits_is_a_400(http: httpx.Client) -> None:
    error = http.post(COMPLETIONS, content=HOSTILE["more digits than Python reads"]).json()["error"]
    assert error["message"] == "The request body has a number of thousands of digits."


@pytest.mark.parametrize("wrong", [[10**9], [], [5] * 600])
def test_an_invalid_prompt_is_rejected_before_the_others_begin(http: httpx.Client, wrong: list[int]) -> None:
    def answers() -> list[str]:
        lines = http.get("/metrics").text.splitlines()
        return [line for line in lines if line.startswith(("aethermind_request_success", "aethermind_prompt_tokens"))]

    before = answers()
    for is_stream in (False, True):
        answer = http.post(COMPLETIONS, json={**GOOD, "prompt": [[5], [6], wrong], "stream": is_stream})
        assert answer.status_code == 400, answer.text
    assert answers() == before


def test_a_surrogate_pair_is_one_character(http: httpx.Client) -> None:
    body = b'{"model":"demo","prompt":"\\ud83e\\udd8a and","max_tokens":2,"echo":true}'
    assert http.post(COMPLETIONS, content=body).json()["choices"][0]["text"].startswith("🦊 and")


def test_errors_of_unknown_paths_and_methods_have_the_openai_format(http: httpx.Client) -> None:
    for answer, status in ((http.get("/v1/nothing"), 404), (http.get(COMPLETIONS), 405)):
        assert answer.status_code == status
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert answer.json()["error"]["message"] == f"GET does not go with {COMPLETIONS}; use POST."


def test_errors_below_api_have_ollamas_format(http: httpx.Client) -> None:
    answer = http.get("/api/nothing")
    assert (answer.status_code, set(answer.json())) == (404, {"error"})
    assert answer.json()["error"].startswith("There is no /api/nothing here")


def test_a_body_that_is_too_large_is_rejected_before_it_is_read(open_server: Callable[..., httpx.Client]) -> None:
    http = open_server(limits=Limits(max_body_bytes=1000))
    assert http.post(COMPLETIONS, json={**GOOD, "prompt": "x" * 2000}).status_code == 413

    def endless() -> object:
        while True:
            yield b" " * 100

    assert http.post(COMPLETIONS, content=endless()).status_code == 413
    assert http.post(COMPLETIONS, json=GOOD).status_code == 200


def test_a_disconnect_frees_the_kv_blocks_of_the_request(http: httpx.Client) -> None:
    for _ in range(5):
        with http.stream("POST", COMPLETIONS, json={**ENDLESS, "stream": True}) as answer:
            next(answer.iter_lines())
    with pytest.raises(httpx.ReadTimeout):
        http.post(COMPLETIONS, json=ENDLESS, timeout=httpx.Timeout(30, read=0.001))
    assert http.post(COMPLETIONS, json=GOOD).status_code == 200


def test_an_overloaded_server_sends_retry_after(open_server: Callable[..., httpx.Client]) -> None:
    http = open_server(limits=Limits(max_concurrent_requests=2 * NUM_UNREAD))
    with unread(http) as one, unread(http) as two:
        assert one.status_code == two.status_code == 200
        refused = http.post(COMPLETIONS, json=GOOD)
        assert refused.status_code == 429
        assert int(refused.headers["Retry-After"]) >= 1
        assert refused.json()["error"]["type"] == "rate_limit_error"
        metrics = http.get("/metrics").text
        assert f'aethermind_http_requests_total{{method="POST",path="{COMPLETIONS}",status="429"}} 1.0' in metrics
        assert http.post("/tokenize", json={"model": "demo", "prompt": "Once"}).status_code == 200


def test_more_answers_than_the_limit_are_a_400_without_retry_after(open_server: Callable[..., httpx.Client]) -> None:
    http = open_server(limits=Limits(max_concurrent_requests=2))
    for more, param in (({"n": 3}, "n"), ({"prompt": ["x"] * 3}, "prompt"), ({"n": 2, "prompt": ["x"] * 2}, "n")):
        answer = http.post(COMPLETIONS, json={**GOOD, **more})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == param
        assert "Retry-After" not in answer.headers


def test_tokens_of_answers_in_flight_count_against_the_quota(open_server: Callable[..., httpx.Client]) -> None:
    http = open_server(tenants=Tenants([(key_hash("a"), Tenant("a", "a", Quota(tokens_per_minute=1700)))]))
    http.headers["Authorization"] = "Bearer a"
    with unread(http, dict(http.headers)) as held:
        assert held.status_code == 200
        refused = http.post(COMPLETIONS, json={**GOOD, "max_tokens": 100})
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "key_token_rate")
        assert http.post(COMPLETIONS, json=GOOD).status_code == 200
    for path, ask, param in (
        (COMPLETIONS, {**GOOD, "max_tokens": 400, "n": 5}, "max_tokens"),
        ("/v1/chat/completions", {"messages": SAY, "n": 5, "max_completion_tokens": 400}, "max_completion_tokens"),
    ):
        refused = http.post(path, json={"model": "demo", **ask})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


def test_an_overloaded_server_rejects_before_it_reads_the_body(open_server: Callable[..., httpx.Client]) -> None:
    http = open_server(limits=Limits(max_concurrent_requests=NUM_UNREAD))
    with unread(http) as held:
        assert held.status_code == 200
        with socket.create_connection((http.base_url.host, http.base_url.port or 0), timeout=10) as plug:
            plug.sendall(f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n".encode())
            assert plug.recv(12) == b"HTTP/1.1 429"  # without waiting for the five bytes


def test_a_request_that_times_out_is_a_408_that_clients_do_not_retry(open_server: Callable[..., httpx.Client]) -> None:
    http = open_server(limits=Limits(request_timeout_s=0.001))
    answer = http.post(COMPLETIONS, json=ENDLESS)
    assert answer.status_code == 408
    assert answer.json()["error"]["code"] == "timeout"
    with (
        openai.OpenAI(base_url=f"{http.base_url}/v1", api_key="none", max_retries=2) as client,
        pytest.raises(openai.APIStatusError, match="408"),
    ):
        client.completions.create(**GOOD)
    counted = f'aethermind_http_requests_total{{method="POST",path="{COMPLETIONS}",status="408"}} 2.0'
    assert counted in http.get("/metrics").text


def test_a_request_without_a_valid_key_is_a_401(open_server: Callable[..., httpx.Client]) -> None:
    http = open_server(tenants=Tenants.of_keys(["open sesame"]))
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic open sesame"}):
        answer = http.post(COMPLETIONS, json=GOOD, headers=headers)
        assert answer.status_code == 401
        assert answer.json()["error"]["type"] == "authentication_error"
    good = http.post(COMPLETIONS, json=GOOD, headers={"Authorization": "Bearer open sesame"})
    assert good.status_code == 200
    assert http.get("/health").status_code == 200
    assert http.get("/metrics").status_code == 401


def test_each_response_has_a_request_id_of_the_server(http: httpx.Client) -> None:
    ids = {http.get("/health", headers={"X-Request-Id": "mine"}).headers["X-Request-Id"] for _ in range(3)}
    assert len(ids) == 3
    assert "mine" not in ids


def test_a_host_other_than_this_machine_is_a_403(http: httpx.Client) -> None:
    for host in ("evil.example", "evil.example:80", "", "localhost.evil.example", "127.0.0.1.evil.example"):
        assert http.get("/v1/models", headers={"Host": host}).status_code == 403
    for host in ("localhost", "LocalHost:80", "127.0.0.1", "127.0.0.2:80", "[::1]:8000"):
        assert http.get("/v1/models", headers={"Host": host}).status_code == 200


def test_an_origin_other_than_the_server_is_a_403(http: httpx.Client) -> None:
    own = f"http://{http.base_url.netloc.decode()}"
    for origin, status in ((own, 200), ("https://evil.example", 403), ("http://localhost:1", 403), ("null", 403)):
        assert http.post(COMPLETIONS, json=GOOD, headers={"Origin": origin}).status_code == status
