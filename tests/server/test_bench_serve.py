"""`aethermind bench serve` against this server, and against servers that answer wrongly."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer.testing

from aethermind.cli.app import app
from aethermind.cli.bench.serve.client import RequestFormat, connect, find_target
from aethermind.first_party import pip_install_command
from aethermind.server.access import Tenants
from aethermind.server.openai.errors import ApiError

TRACE = Path(__file__).parents[1] / "core" / "engine" / "simulation" / "small.csv"
SMALL = ("--num-prompts", "6", "--prompt-tokens", "20", "--output-tokens", "5")


def bench(address: str, *args: str) -> typer.testing.Result:
    return typer.testing.CliRunner().invoke(app, ["bench", "serve", "--url", address, *args])


def record(address: str, *args: str) -> dict[str, Any]:
    result = bench(address, *args, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def sse(*events: object) -> bytes:
    return b"".join(
        b"data: " + (one if isinstance(one, bytes) else json.dumps(one).encode()) + b"\n\n" for one in events
    )


def piece(text: str, finish_reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"text": text, "finish_reason": finish_reason}]}


@contextmanager
def answering(answer: Callable[[dict[str, Any]], tuple[int, bytes]]) -> Iterator[str]:
    """Run a server of the model `m` that answers each request by `answer(body)` and closes; yields its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.reply(200, json.dumps({"data": [{"id": "m"}]}).encode())

        def do_POST(self) -> None:
            self.reply(*answer(json.loads(self.rfile.read(int(self.headers["Content-Length"])))))

        def reply(self, status: int, content: bytes) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("pace", [("--concurrency", "3"), ("--request-rate", "200")])
def test_client_counts_equal_the_metrics_of_the_server(http: httpx.Client, address: str, pace: tuple[str, ...]) -> None:
    def written() -> float:
        lines = http.get("/metrics").text.splitlines()
        return sum(float(line.split()[1]) for line in lines if line.startswith("aethermind_generation_tokens_total{"))

    before = written()
    report = record(address, *SMALL, *pace)
    assert (report["model"], report["num_completed"], report["failures"]) == ("demo", 6, {})
    assert (report["prompt_tokens"], report["output_tokens"]) == (6 * 20, 6 * 5)
    assert written() - before == 6 * 5 + 2, "and two of the trial"
    assert report["output_tokens_per_s"] == pytest.approx(30 / report["duration_s"])
    for name in ("ttft", "tpot", "itl", "e2e"):
        assert 0 <= report[name]["p50"] <= report[name]["p90"] <= report[name]["p99"]
    assert report["ttft"]["p50"] < report["e2e"]["p50"]


def test_chats_and_traces(address: str) -> None:
    chats = record(address, *SMALL, "--endpoint", "chat")
    assert (chats["num_completed"], chats["output_tokens"]) == (6, 30)
    assert chats["prompt_tokens"] >= 6 * 20
    few = record(address, "--trace", str(TRACE), "--limit", "2", "--rate-scale", "1000")
    assert few["num_requests"] == 2


def test_goodput_counts_the_requests_that_meet_the_slo(address: str) -> None:
    easy = record(address, *SMALL, "--slo-ttft-ms", "1e8", "--slo-tpot-ms", "1e8")
    assert easy["num_good"] == 6
    assert easy["goodput_per_s"] == pytest.approx(easy["requests_per_s"])
    # A TPOT may be 0, where all tokens of an answer arrive in one read; a TTFT cannot.
    assert record(address, *SMALL, "--slo-ttft-ms", "1e-8")["num_good"] == 0


def test_a_full_server_is_counted_by_kind() -> None:
    seats = iter(range(3))  # the warm-up and two answers

    def answer_some(_: dict[str, Any]) -> tuple[int, bytes]:
        if next(seats, None) is None:
            return 429, json.dumps(ApiError(429, "The server is full.", code="overloaded").body()).encode()
        return 200, sse(piece("a", "length"), b"[DONE]")

    with answering(answer_some) as full:
        report = record(full, "--num-prompts", "8", "--concurrency", "8")
    assert report["failures"] == {"HTTP 429 overloaded": 6}
    assert (report["num_completed"], report["num_failed"]) == (2, 6)


def test_requests_beyond_the_context_are_counted_as_failures(address: str) -> None:
    result = bench(address, "--num-prompts", "2", "--prompt-tokens", "9000")
    assert result.exit_code == 1
    assert "2 × HTTP 400 context_length_exceeded" in result.stdout


def test_a_slow_server_is_counted() -> None:
    is_over = threading.Event()

    def hang(body: dict[str, Any]) -> tuple[int, bytes]:
        if body["max_tokens"] != 2:
            is_over.wait(60)
        return 200, sse(piece("a", "length"), b"[DONE]")

    with answering(hang) as slow:
        result = bench(slow, *SMALL, "--request-timeout", "2")
        is_over.set()
    assert result.exit_code == 1
    assert "6 × timeout" in result.stdout


def test_a_server_that_never_answers_is_a_one_line_error() -> None:
    is_over = threading.Event()

    def hang(_: dict[str, Any]) -> tuple[int, bytes]:
        is_over.wait(60)
        return 200, b""

    with answering(hang) as silent:
        result = bench(silent, "--request-timeout", "0.2")
        is_over.set()
    assert result.exit_code == 2
    assert "has not answered in 0.2 s" in result.stderr


@pytest.mark.parametrize(
    ("stream", "kind"),
    [
        (sse(piece("a"), piece("b")), "cut off"),
        (b"", "cut off"),
        (sse(piece("a"), {"error": {"message": "oh", "code": "engine_dead"}}), "error in the stream: engine_dead"),
        (sse(piece("a"), b"{"), "not understood"),
        (sse(["a"]), "not understood"),
    ],
)
def test_broken_streams_are_failures_by_kind(stream: bytes, kind: str) -> None:
    with answering(lambda _: (200, stream)) as broken:
        result = bench(broken, *SMALL)
    assert result.exit_code == 1
    assert f"6 × {kind}" in result.stdout


def test_without_usage_the_chunks_with_text_are_counted() -> None:
    stream = sse(piece("a\u2028"), piece(""), piece("b"), piece("", "stop"), b"[DONE]")
    with answering(lambda _: (200, stream)) as plain:
        assert record(plain, *SMALL)["output_tokens"] == 6 * 2


@pytest.mark.parametrize(
    ("unknown", "form"),
    [
        ((), RequestFormat(True, True, True)),
        (("ignore_eos",), RequestFormat(True, False, True)),
        (("ignore_eos", "stream_options"), RequestFormat(True, False, False)),
        (("ids",), RequestFormat(False, True, True)),
        (("ids", "ignore_eos", "stream_options"), RequestFormat(False, False, False)),
    ],
)
def test_requests_have_a_format_that_the_server_accepts(unknown: tuple[str, ...], form: RequestFormat) -> None:
    def pick(body: dict[str, Any]) -> tuple[int, bytes]:
        names = {*body, "ids"} if isinstance(body["prompt"], list) else set(body)
        return (400, b"{}") if names & set(unknown) else (200, sse(piece("a", "length"), b"[DONE]"))

    async def found(address: str) -> RequestFormat:
        async with connect(address, None) as client:
            return (await find_target(client, None, "completions")).format

    with answering(pick) as picky:
        assert asyncio.run(found(picky)) == form


def test_a_server_that_rejects_all_requests_is_a_one_line_error(
    address: str, open_server: Callable[..., httpx.Client]
) -> None:
    locked = str(open_server(tenants=Tenants.of_keys(["secret"])).base_url)
    with answering(lambda _: (500, b"it broke")) as broken:
        for url, args, words in (
            ("http://127.0.0.1:1", (), "No server answers at http://127.0.0.1:1 ("),
            (f"{address}/metrics", (), "does not list models as OpenAI's API does: /v1/models gives HTTP 404"),
            (address, ("--model", "other"), "The server has no model 'other'; it has demo."),
            (locked, (), "wants an API key"),
            (locked, ("--api-key", "wrong"), "Set AETHERMIND_API_KEY or pass --api-key."),
            (broken, (), "m at " + broken + " does not answer /v1/completions: HTTP 500, it broke."),
            ("ftp://here", (), "should be an address such as http://"),
            ("http://here:x", (), "cannot be used"),
            (address, ("--api-key", "clé"), "cannot be used"),
        ):
            result = bench(url, *args)
            assert (result.exit_code, words in result.stderr) == (2, True), result.output
            assert len(result.stderr.splitlines()) == 1
    assert record(locked, *SMALL, "--api-key", "secret")["num_completed"] == 6


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--request-rate", "0"), "--request-rate is 0.0 but must be a number above 0"),
        (("--request-rate", "2", "--concurrency", "2"), "pass one of them"),
        (("--trace", str(TRACE), "--num-prompts", "2"), "leave --num-prompts out"),
        (("--limit", "2"), "pass it with --trace"),
        (("--rate-scale", "2"), "pass it with --trace"),
        (("--endpoint", "embeddings"), "should be completions or chat"),
        (("--plot", "run.gif"), "should end in .svg or .png"),
        (("--trace", "absent.csv"), "absent.csv cannot be used"),
    ],
)
def test_invalid_options_are_a_one_line_error(args: tuple[str, ...], words: str) -> None:
    result = bench("http://127.0.0.1:1", *args)
    assert (result.exit_code, words in result.stderr) == (2, True), result.output


def test_a_missing_httpx_is_a_one_line_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "aethermind.cli.bench.serve.client", raising=False)
    monkeypatch.setitem(sys.modules, "httpx", None)
    result = bench("http://127.0.0.1:1")
    assert result.exit_code == 2
    assert f"`bench serve` needs httpx. Run `{pip_install_command('aethermind[serve]')}`." in result.stderr


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_a_plot_is_written_in_the_format_of_its_suffix(address: str, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"run.{suffix}"
    record(address, *SMALL, "--plot", str(path))
    begin = path.read_bytes()[:300]
    assert (b"<?xml" in begin) if suffix == "svg" else begin.startswith(b"\x89PNG")


def test_an_interrupt_prints_the_results_so_far() -> None:
    requests, third, is_over = [], threading.Event(), threading.Event()

    def hang_at_the_third(body: dict[str, Any]) -> tuple[int, bytes]:
        requests.append(body)
        if len(requests) > 3:  # the warm-up and two answers
            third.set()
            is_over.wait(60)
        return 200, sse(piece("a", "length"), b"[DONE]")

    with answering(hang_at_the_third) as address:
        command = [sys.executable, "-m", "aethermind", "bench", "serve", "--url", address, "--concurrency", "1"]
        process = subprocess.Popen([*command, "--num-prompts", "5"], stdout=subprocess.PIPE, text=True)
        assert third.wait(60)
        os.kill(process.pid, signal.SIGINT)
        printed, _ = process.communicate(timeout=60)
        is_over.set()
    assert process.returncode == 130
    assert "2 of 5 in" in printed
    assert "3, interrupted" in printed
