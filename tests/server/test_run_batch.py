"""`aethermind run-batch`: OpenAI's batch files, answered offline by the server's application."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer.testing

from aethermind.cli import run_batch
from aethermind.cli.app import app
from aethermind.engine.engine import Engine

ENGINE = ("--device", "cpu", "--dtype", "float32", "--max-model-len", "512")
"""The options of the server's model in these tests."""

BODIES = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "A story of a fox?"}], "max_tokens": 12},
    "/v1/completions": {"prompt": ["Once upon a time", "The old fox"], "max_tokens": 9, "logprobs": 2, "n": 2},
    "/v1/embeddings": {"input": ["The sea.", "A fox."]},
    "/v1/responses": {"input": "Who is the fox?", "max_output_tokens": 8},
}


@pytest.fixture
def batch(tmp_path: Path) -> Callable[..., typer.testing.Result]:
    """`batch(lines, *flags)` runs a batch from requests.jsonl to results.jsonl in `tmp_path`."""

    def run(lines: list[Any], *flags: str) -> typer.testing.Result:
        text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
        (tmp_path / "requests.jsonl").write_text(text, encoding="utf-8")
        paths = ("-i", str(tmp_path / "requests.jsonl"), "-o", str(tmp_path / "results.jsonl"))
        return typer.testing.CliRunner().invoke(app, ["run-batch", *paths, *ENGINE, *flags])

    return run


def request(custom_id: str, url: str = "/v1/completions", **body: Any) -> dict[str, Any]:
    body = {"temperature": 0, **body} if url != "/v1/embeddings" else body
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def story(custom_id: str, num_tokens: int) -> dict[str, Any]:
    return request(custom_id, prompt=f"The fox number {custom_id}", max_tokens=num_tokens, ignore_eos=True)


def results(folder: Path) -> dict[str, dict[str, Any]]:
    """The results by custom_id, each of which occurs once."""
    lines = [json.loads(line) for line in (folder / "results.jsonl").read_text(encoding="utf-8").splitlines()]
    assert all(line.keys() == {"id", "custom_id", "response", "error"} for line in lines)
    assert len({line["id"] for line in lines}) == len(lines)
    found = {line["custom_id"]: line for line in lines}
    assert len(found) == len(lines)
    return found


def content(value: Any) -> Any:
    """A body without what differs from one request to the next: ids and times."""
    if isinstance(value, dict):
        return {name: content(inner) for name, inner in value.items() if name not in ("id", "created", "created_at")}
    return [content(inner) for inner in value] if isinstance(value, list) else value


def test_results_are_the_bodies_of_the_servers_endpoints(
    batch: Callable[..., typer.testing.Result], tmp_path: Path, http: httpx.Client
) -> None:
    lines = [request(url, url, **body) for url, body in BODIES.items()]
    lines.append(request("named", model="demo", prompt="Hé — ", max_tokens=3))
    lines.append(request("too long", prompt="fox", max_tokens=5000))
    lines.append(request("elsewhere", model="gpt-4o", prompt="fox"))
    ran = batch(lines, "--json")
    found = results(tmp_path)
    assert found.keys() == {line["custom_id"] for line in lines}
    for line in lines:
        ours = found[line["custom_id"]]
        theirs = http.post(line["url"], json={"model": "demo", **line["body"]})
        assert ours["response"]["status_code"] == theirs.status_code
        assert ours["response"]["request_id"].startswith("req_")
        assert content(ours["response"]["body"]) == content(theirs.json())
        assert (ours["error"] is None) == theirs.is_success
    assert found["elsewhere"]["error"]["message"] == found["elsewhere"]["response"]["body"]["error"]["message"]
    assert found["too long"]["error"]["code"] == "context_length_exceeded"
    summary = json.loads(ran.stdout)
    usages = [one["response"]["body"].get("usage", {}) for one in found.values()]
    assert summary["num_output_tokens"] == sum(u.get("completion_tokens", u.get("output_tokens", 0)) for u in usages)
    assert (summary["num_completed"], summary["num_failed"], ran.exit_code) == (5, 2, 1)


def test_a_line_that_is_no_request_has_an_error_and_the_others_are_answered(
    batch: Callable[..., typer.testing.Result], tmp_path: Path
) -> None:
    whole = request("good", prompt="fox", max_tokens=2)
    bad = {
        "stream": whole | {"body": {"prompt": "fox", "stream": True}},
        "url": whole | {"url": "/v1/images"},
        "method": whole | {"method": "GET"},
        "body": whole | {"body": "fox"},
        "bodiless": {name: value for name, value in whole.items() if name != "body"},
    }
    lines = [whole | {"custom_id": 5}, "{no JSON", "[1]", "", "[" * 5000]
    lines += [one | {"custom_id": name} for name, one in bad.items()]
    ran = batch([*lines, whole])
    assert (ran.exit_code, ran.stderr) == (1, "")
    assert ran.stdout.startswith("10 requests: 1 answered, 9 failed; ")
    found = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [one["custom_id"] for one in found] == [None] * 4 + [*bad, "good"]
    assert all(one["response"] is None for one in found[:-1])
    assert [one["error"]["code"] for one in found[:-1]] == [
        *("missing_required_parameter", *["invalid_json_line"] * 3),
        *("unsupported_parameter", "invalid_url", "invalid_method", "invalid_request", "missing_required_parameter"),
    ]
    assert found[1]["error"]["message"].startswith("Line 2 is not JSON: ")
    assert found[5]["error"]["message"].startswith("Line 7 has the url '/v1/images', which should be one of /v1/chat")
    assert batch([*lines, whole], "--resume").exit_code == 0
    assert (tmp_path / "results.jsonl").read_bytes().count(b"\n") == 10


def test_a_custom_id_that_occurs_twice_is_answered_once(
    batch: Callable[..., typer.testing.Result], tmp_path: Path
) -> None:
    assert batch([request("a", prompt="fox", max_tokens=2)] * 2).exit_code == 1
    errors = [json.loads(line)["error"] for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [error and error["code"] for error in errors] == ["duplicate_custom_id", None]


def test_requests_run_in_one_batch(
    batch: Callable[..., typer.testing.Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance, sizes = Engine.advance, []

    def counted(engine: Engine) -> Any:
        sizes.append(len(engine.running))
        return advance(engine)

    monkeypatch.setattr(Engine, "advance", counted)
    assert batch([story(str(i), 150) for i in range(10)], "--max-num-seqs", "4").exit_code == 0
    assert max(sizes) == 4
    assert len(sizes) < 10 * 150
    assert len(results(tmp_path)) == 10


def test_ctrl_c_keeps_the_results_and_resume_adds_the_others(
    batch: Callable[..., typer.testing.Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [story("short", 1), *(story(str(i), 300) for i in range(6))]
    write = run_batch._Run.write

    def interrupted_write(run: run_batch._Run, result: Any) -> None:
        write(run, result)
        if run.num_done == 1:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(run_batch._Run, "write", interrupted_write)
        ran = batch(lines, "--max-num-seqs", "2")
    assert ran.exit_code == 130
    before = (tmp_path / "results.jsonl").read_bytes()
    assert results(tmp_path).keys() == {"short"}
    assert ran.stdout.startswith("7 requests: 1 answered, 0 failed, 6 not finished; ")
    assert "--resume" in ran.stdout
    refused = batch(lines)
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    assert "--resume" in refused.stderr
    # A process that was killed may have cut off its last line.
    (tmp_path / "results.jsonl").write_bytes(before + b'{"id": "batch_req_1", "custom_id": "0", "respo')
    resumed = batch(lines, "--resume", "--json")
    assert resumed.exit_code == 0
    assert json.loads(resumed.stdout)["num_skipped"] == 1
    assert (tmp_path / "results.jsonl").read_bytes().startswith(before)
    assert results(tmp_path).keys() == {line["custom_id"] for line in lines}
    assert batch(lines, "--resume").stdout.startswith("7 requests: 0 answered, 0 failed, 7 finished before; ")


def test_a_failed_engine_ends_the_run_and_unanswered_requests_have_no_result(
    batch: Callable[..., typer.testing.Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [story("short", 1), *(story(str(i), 100) for i in range(3))]
    advance = Engine.advance

    def failing_advance(engine: Engine) -> Any:
        if (tmp_path / "results.jsonl").stat().st_size:
            raise RuntimeError("no luck")
        return advance(engine)

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "advance", failing_advance)
        ran = batch(lines)
    assert (ran.exit_code, ran.stdout) == (2, "")
    assert "no luck" in ran.stderr
    assert results(tmp_path).keys() == {"short"}
    assert batch(lines, "--resume").exit_code == 0
    assert len(results(tmp_path)) == 4


def test_a_batch_from_standard_input_to_standard_output() -> None:
    line = json.dumps(request("ä", model="fable", prompt="fox", max_tokens=2))
    words = ["run-batch", "-", "-", *ENGINE, "--served-model-name", "fable"]
    ran = typer.testing.CliRunner().invoke(app, words, input=f"\ufeff{line}\r\n")
    found = json.loads(ran.stdout)
    assert (found["custom_id"], found["response"]["body"]["model"]) == ("ä", "fable")
    assert ran.stderr.startswith("1 requests: 1 answered, 0 failed; ")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("{folder}/none.jsonl", "{folder}/out"), "none.jsonl cannot be used: No such file or directory."),
        (("{folder}", "{folder}/out"), "cannot be used: Is a directory."),
        (("{folder}/empty", "{folder}/out"), "empty has no requests"),
        (("{folder}/in", "{folder}/none/out"), "OUT {folder}/none/out cannot be written: No such file"),
        (("{folder}/in", "{folder}/in"), "IN and OUT are the same file"),
        (("{folder}/in", "{folder}/other", "--resume"), "Line 1 of OUT {folder}/other is no result of a batch"),
        (("{folder}/in",), "OUT is missing"),
        (("{folder}/in", "-i", "{folder}/in", "-o", "-"), "IN is given twice"),
        (("-", "-", "--resume"), "--resume continues a file"),
        (("-", "-", "--json"), "--json prints a summary"),
    ],
)
def test_what_cannot_be_read_or_written_is_one_sentence(tmp_path: Path, words: tuple[str, ...], says: str) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "in").write_text("{}\n")
    (tmp_path / "other").write_text("a story\n")
    ran = typer.testing.CliRunner().invoke(app, ["run-batch", *(word.format(folder=tmp_path) for word in words)])
    assert (ran.exit_code, ran.stdout) == (2, "")
    assert says.format(folder=tmp_path) in ran.stderr
    assert len(ran.stderr.splitlines()) == 1
    assert (tmp_path / "other").read_text() == "a story\n"
