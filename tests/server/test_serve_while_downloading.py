"""`aethermind serve NAME` of a model that is not in the cache: it listens at once, and serves after the download."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from threading import Event
from typing import IO

import httpx
import pytest
from tests.end_to_end.models import DEMO
from tests.hub_server import HubServer, Repo

from aethermind import LLM, Runtime, SamplingParams

FILES = {path.name: path.read_bytes() for path in DEMO.iterdir() if path.suffix in (".json", ".safetensors")}
PROMPT = "Once upon a time"


@contextmanager
def started(hub: HubServer, home: Path, *args: str) -> Iterator[subprocess.Popen[str]]:
    """A process of `aethermind serve` with an empty cache and this Hub."""
    hub_variables = {"HF_HOME": str(home / "hub"), "HF_ENDPOINT": hub.endpoint, "HF_HUB_OFFLINE": "0"}
    command = [sys.executable, "-m", "aethermind", "serve", *args, "--port", "0", "--device", "cpu", "--threads", "1"]
    with subprocess.Popen(
        [*command, "--max-model-len", "64", "--weight-cache", "0"],
        env={**os.environ, **hub_variables, "HF_HUB_DISABLE_XET": "1", "XDG_CACHE_HOME": str(home)},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def line_with(words: str, stderr: IO[str] | None) -> str:
    assert stderr is not None
    lines = []
    for line in stderr:
        lines.append(line)
        if words in line:
            return line
    raise AssertionError("".join(lines))


def test_a_server_listens_while_its_model_is_downloaded(
    hub_server: HubServer, tmp_path: Path, runtime: Runtime
) -> None:
    hub_server.repos["org/demo"] = Repo(FILES)
    arrives = hub_server.held[sha256(FILES["model.safetensors"]).hexdigest()] = Event()
    body = {"model": "org/demo", "prompt": PROMPT, "max_tokens": 8, "temperature": 0}
    with started(hub_server, tmp_path, "org/demo") as process:
        address = line_with("Listening at ", process.stderr).split()[2]
        with httpx.Client(base_url=address, timeout=60) as http:
            assert http.get("/health").status_code == 200
            ready = http.get("/ready")
            for answer in (
                ready,
                http.post("/v1/completions", json=body),
                http.post("/v1/completions", json=body | {"stream": True}),
                http.post("/v1/embeddings", json={"model": "org/demo", "input": "x"}),
            ):
                assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_loading"), answer.text
                assert int(answer.headers["Retry-After"]) > 0
            (model,) = http.get("/v1/models").json()["data"]
            assert (model["id"], model["status"]["value"]) == ("org/demo", "loading")
            arrives.set()
            assert f"Serving org/demo at {address}/v1" in line_with("Serving ", process.stderr)
            assert http.get("/ready").status_code == 200
            text = http.post("/v1/completions", json=body).json()["choices"][0]["text"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    with LLM(device="cpu", max_model_len=64, runtime=runtime) as llm:
        assert text == llm.generate(PROMPT, SamplingParams(max_tokens=8, temperature=0.0))[0].outputs[0].text
    whole = [path for _, path, headers in hub_server.requests if path.startswith("/cdn/") and "range" not in headers]
    assert len(whole) == 1, "the weights are downloaded once, by the engine's process"


def test_a_server_stops_while_its_model_is_downloaded(hub_server: HubServer, tmp_path: Path) -> None:
    hub_server.repos["org/demo"] = Repo(FILES)
    hub_server.held[sha256(FILES["model.safetensors"]).hexdigest()] = Event()
    with started(hub_server, tmp_path, "org/demo") as process:
        line_with("Listening at ", process.stderr)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


@pytest.mark.parametrize(
    ("name", "args", "says"),
    [
        ("org/none", (), "org/none"),
        ("org/demo", ("--memory", "16MiB"), "may be used by --memory"),
    ],
)
def test_a_model_that_cannot_be_had_ends_the_server_with_a_sentence(
    hub_server: HubServer, tmp_path: Path, name: str, args: tuple[str, ...], says: str
) -> None:
    hub_server.repos["org/demo"] = Repo(FILES)
    arrives = hub_server.held[sha256(FILES["model.safetensors"]).hexdigest()] = Event()
    with started(hub_server, tmp_path, name, *args) as process:
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 2, stderr
    assert says in stderr.splitlines()[-1]
    assert "Traceback" not in stderr
    assert not arrives.is_set(), "no weight was waited for"
