"""The server with engines in processes of their own: the same answers, restarts and shutdown."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from tests.server.conftest import await_idle, serving, unread

from aethermind import Runtime
from aethermind.engine.config import EngineConfig
from aethermind.engine.process import EngineProcess, RestartPolicy
from aethermind.engine.process.supervisor import Child

CONFIG = EngineConfig(device="cpu", dtype="float32", max_model_len=512)
ASK: dict[str, Any] = {"model": "demo", "prompt": "Once upon a time", "max_tokens": 16, "temperature": 0.0}
LONG: dict[str, Any] = {**ASK, "max_tokens": 500, "ignore_eos": True}


@pytest.fixture(scope="module")
def process_address(runtime: Runtime) -> Iterator[str]:
    with serving(EngineProcess("demo", CONFIG, runtime=runtime)) as address:
        yield address


@pytest.fixture(scope="module")
def both(address: str, process_address: str) -> Iterator[list[openai.OpenAI]]:
    """Clients of the same model with the engine in the server's process and in a process of its own."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(openai.OpenAI(base_url=f"{one}/v1", api_key="none", max_retries=0))
            for one in (address, process_address)
        ]


def test_an_engine_process_gives_the_same_answers(both: list[openai.OpenAI]) -> None:
    def answers(client: openai.OpenAI) -> list[Any]:
        whole = client.completions.create(**ASK, logprobs=3, n=2, echo=True)
        parts = list(client.completions.create(**ASK, stream=True, stream_options={"include_usage": True}))
        chat = client.chat.completions.create(
            model="demo", messages=[{"role": "user", "content": "Who are you?"}], temperature=0.0, max_tokens=20
        )
        formed = client.completions.create(**ASK, extra_body={"structured_outputs": {"regex": "[0-9]{3}"}})
        assert formed.choices[0].text.isdecimal()
        texts = "".join(part.choices[0].text for part in parts if part.choices)
        return [whole.choices, texts, parts[-1].usage.completion_tokens, chat.choices, formed.choices]

    assert answers(both[0]) == answers(both[1])


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"prompt": "word " * 2000}, "512"),
        ({"structured_outputs": {"regex": "("}}, "regex"),
        ({"structured_outputs": {"structural_tag": {}}}, "structural_tag"),
        ({"structured_outputs": {"json": {"$ref": "http://example.com/schema"}}}, ""),
        ({"prompt": [10**30]}, "vocabulary"),
        ({"max_tokens": 10**30}, "context"),
        ({"logit_bias": {"99999999": 1}}, "vocabulary"),
    ],
)
def test_an_engine_process_gives_the_same_errors(
    address: str, process_address: str, extra: dict[str, Any], words: str
) -> None:
    whole, other = (httpx.post(f"{one}/v1/completions", json={**ASK, **extra}) for one in (address, process_address))
    streamed = httpx.post(f"{process_address}/v1/completions", json={**ASK, **extra, "stream": True})
    assert whole.status_code == other.status_code == streamed.status_code == 400
    assert words in other.json()["error"]["message"]
    if extra.get("prompt") != [10**30]:  # the error names the greatest integer of the wire format instead
        assert whole.json() == other.json()


def test_a_disconnect_frees_the_blocks_of_an_engine_process(process_address: str) -> None:
    with httpx.Client(base_url=process_address, timeout=30) as http:
        for _ in range(3):
            with http.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as response:
                next(response.iter_lines())
        await_idle(http)


def test_a_killed_engine_ends_streams_with_an_error_and_is_restarted(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch, is_first, may_restart = Child.launch, iter([True]), threading.Event()

    async def launch_when_allowed(*args: Any) -> Child:
        if not next(is_first, False):
            await asyncio.to_thread(may_restart.wait)
        return await launch(*args)

    monkeypatch.setattr(Child, "launch", launch_when_allowed)
    policy = RestartPolicy(first_delay_s=0.01)
    engine = EngineProcess("demo", replace(CONFIG, max_model_len=2048), runtime=runtime, policy=policy)
    with serving(engine) as address, httpx.Client(base_url=address, timeout=30) as http, ExitStack() as stack:
        stack.callback(may_restart.set)
        with http.stream("POST", "/v1/completions", json={**LONG, "max_tokens": 2000, "stream": True}) as response:
            lines = response.iter_lines()
            next(lines)
            assert engine.pid is not None
            os.kill(engine.pid, signal.SIGKILL)
            *_, last, done = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        assert done == "[DONE]"
        assert json.loads(last)["error"]["code"] == "engine_dead"
        refused = http.post("/v1/completions", json=ASK)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_dead")
        assert int(refused.headers["Retry-After"]) > 0
        assert http.get("/health").status_code == 200
        assert http.get("/metrics").status_code == 200
        ready = http.get("/ready")
        assert ready.status_code == 503
        assert "started again" in ready.json()["error"]["message"]
        may_restart.set()
        while http.get("/ready").status_code != 200:
            pass
        assert http.post("/v1/completions", json=ASK).status_code == 200


def test_several_models_are_served_by_name_and_end_with_the_server() -> None:
    with serve("--model", "tall=demo", "--model", "short=demo") as (server, http):
        pids = children(server.pid)
        assert len(pids) == 2
        assert [model["id"] for model in http.get("/v1/models").json()["data"]] == ["tall", "short"]
        texts = {
            name: http.post("/v1/completions", json={**ASK, "model": name}).json()["choices"][0]["text"]
            for name in ("tall", "short")
        }
        assert texts["tall"] == texts["short"]
        assert http.post("/v1/completions", json={**ASK, "model": "demo"}).status_code == 404
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 0
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_sigint_drains_requests_and_only_the_engine_process_loads_kernels() -> None:
    with serve("--drain-timeout", "600", "--send-timeout", "600") as (server, http):
        (pid,) = children(server.pid)
        assert "aethermind_cpu/_native" in Path(f"/proc/{pid}/maps").read_text()
        assert "aethermind_cpu/_native" not in Path(f"/proc/{server.pid}/maps").read_text()
        with unread(http) as response:
            os.killpg(server.pid, signal.SIGINT)  # as a terminal sends it
            while http.get("/ready").status_code == 200:
                pass
            said = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]
        *_, last, done = said
        assert done == "[DONE]"
        assert json.loads(last)["choices"][0]["finish_reason"] == "length"
        assert server.wait(30) == 0
        assert not Path(f"/proc/{pid}").exists()


def test_a_client_that_does_not_read_does_not_delay_the_stop() -> None:
    with serve("--drain-timeout", "0.1") as (server, http), unread(http):
        server.send_signal(signal.SIGTERM)
        assert server.stderr is not None
        said = server.stderr.read().splitlines()
        assert server.wait(30) == 0
    assert len(said) == 4, said  # the address, the open answers, their end with an error, the request


def test_a_model_that_cannot_be_loaded_is_a_one_line_error_with_exit_code_2() -> None:
    options = ["--port", "0", "--dtype", "float16", "--kv-cache-dtype", "bfloat16"]
    result = subprocess.run(
        [sys.executable, "-m", "aethermind", "serve", *options], capture_output=True, text=True, timeout=60
    )
    assert (result.returncode, result.stdout) == (2, "")
    assert re.fullmatch(r"Error: [^\n]*Pass --dtype[^\n]*\n", result.stderr), result.stderr


@contextmanager
def serve(*options: str) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    """Run `aethermind serve` in a process group of its own; yields the process and a client."""
    command = [sys.executable, "-m", "aethermind", "serve", "--port", "0", "--device", "cpu", *options]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert server.stderr is not None
    try:
        said = iter(server.stderr.readline, "")
        address = next(filter(None, (re.search(r"at (http://\S+)/v1", line) for line in said)), None)
        assert address, "the server ended before it served"
        with httpx.Client(base_url=address[1], timeout=30) as http:
            yield server, http
    finally:
        server.kill()
        server.communicate()


def children(pid: int) -> list[int]:
    """The child processes of a process."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
