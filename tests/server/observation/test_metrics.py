"""Metrics: each outcome is counted once, times add up, and the dashboard queries existing metrics."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.server.conftest import await_idle, paused_engine, serving

from aethermind import LLM, Runtime, SamplingParams
from aethermind.engine.config import EngineConfig
from aethermind.engine.process import EngineProcess
from aethermind.engine.requests.output import RequestMetrics
from aethermind.engine.requests.output_delta import CompletionDelta, OutputDelta
from aethermind.server.admission import Limits
from aethermind.server.observation.observer import GenerationRecord

COMPLETIONS = "/v1/completions"
ASK = {"model": "demo", "prompt": "The old fox", "max_tokens": 6, "ignore_eos": True}
DASHBOARD = Path(__file__).parents[3] / "docs" / "using" / "grafana" / "aethermind.json"
NAME = re.compile(r"\b(?:aethermind|process)_\w+")


@pytest.fixture(scope="module")
def apart(runtime: Runtime) -> Iterator[httpx.Client]:
    """A client of a server whose engine has a process of its own."""
    engine = EngineProcess("demo", EngineConfig(device="cpu", max_model_len=512), runtime=runtime)
    with serving(engine) as address, httpx.Client(base_url=address, timeout=30) as http:
        yield http


def samples(http: httpx.Client) -> dict[tuple[str, str], float]:
    """Every sample by its name and, where it has one, its reason."""
    families = text_string_to_metric_families(http.get("/metrics").text)
    found: dict[tuple[str, str], float] = {}
    for sample in (sample for family in families for sample in family.samples):
        key = (sample.name, sample.labels.get("finished_reason", ""))
        found[key] = found.get(key, 0.0) + sample.value
    return found


def gained(http: httpx.Client, before: dict[tuple[str, str], float], name: str, reason: str = "") -> float:
    key = (f"aethermind_{name}", reason)
    return samples(http).get(key, 0.0) - before.get(key, 0.0)


def test_the_times_of_a_request_add_up(http: httpx.Client) -> None:
    before = samples(http)
    http.post(COMPLETIONS, json=ASK)
    for name in ("queue_time", "prefill_time", "decode_time", "inference_time"):
        assert gained(http, before, f"request_{name}_seconds_count") == 1
    for name in ("time_to_first_token", "time_per_output_token", "e2e_request_latency"):
        assert gained(http, before, f"{name}_seconds_count") == 1
    parts = [gained(http, before, f"request_{name}_time_seconds_sum") for name in ("queue", "prefill", "decode")]
    assert all(part >= 0 for part in parts)
    assert sum(parts[1:]) == pytest.approx(gained(http, before, "request_inference_time_seconds_sum"))
    first, whole = (
        gained(http, before, f"{name}_seconds_sum") for name in ("time_to_first_token", "e2e_request_latency")
    )
    assert 0 < first <= whole  # equal if the first and the last token arrived together
    assert sum(parts) < whole
    assert gained(http, before, "request_params_max_tokens_sum") == 6


def test_each_of_several_answers_is_counted(http: httpx.Client) -> None:
    before = samples(http)
    http.post(COMPLETIONS, json={**ASK, "n": 3, "seed": 1})
    assert gained(http, before, "request_success_total", "length") == 3
    assert gained(http, before, "generation_tokens_total") == 18
    assert gained(http, before, "request_generation_tokens_sum") == 18
    assert gained(http, before, "request_prompt_tokens_count") == 1


def test_a_disconnect_is_counted_as_an_abort(llm: LLM, http: httpx.Client) -> None:
    before = samples(http)
    with paused_engine(llm):
        with http.stream("POST", COMPLETIONS, json={**ASK, "max_tokens": 400, "stream": True}) as answer:
            next(answer.iter_lines())
        while not gained(http, before, "request_success_total", "abort"):
            pass
    await_idle(http)
    assert gained(http, before, "request_success_total", "abort") == 1
    assert gained(http, before, "request_success_total", "length") == 0
    assert 0 < gained(http, before, "generation_tokens_total") < 400


@pytest.mark.parametrize("num_padding", [0, 200_000])
def test_a_disconnect_before_a_whole_answer_is_counted_as_an_abort(
    llm: LLM, http: httpx.Client, num_padding: int
) -> None:
    before = samples(http)
    body = json.dumps({**ASK, "max_tokens": 400}).encode() + b" " * num_padding
    with paused_engine(llm):
        with socket.create_connection((http.base_url.host, http.base_url.port or 0), timeout=30) as plug:
            head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
            plug.sendall(head.encode() + body)
            while not gained(http, before, "num_requests_running"):
                pass
        while not gained(http, before, "request_success_total", "abort"):
            pass
    await_idle(http)


def test_a_request_that_the_engine_rejects_is_not_counted(http: httpx.Client) -> None:
    before = samples(http)
    assert (
        http.post(COMPLETIONS, json={**ASK, "ignore_eos": False, "structured_outputs": {"regex": "("}}).status_code
        == 400
    )
    for reason in ("error", "abort", "stop", "length"):
        assert gained(http, before, "request_success_total", reason) == 0
    assert gained(http, before, "request_prompt_tokens_count") == 0


def test_a_failed_request_is_counted_as_an_error(open_server: Callable[..., httpx.Client]) -> None:
    http = open_server(limits=Limits(request_timeout_s=0.001))
    assert http.post(COMPLETIONS, json={**ASK, "max_tokens": 400}).status_code == 408
    assert samples(http)["aethermind_request_success_total", "error"] == 1


def test_embeddings_count_prompt_tokens(http: httpx.Client) -> None:
    before = samples(http)
    assert http.post("/v1/embeddings", json={"model": "demo", "input": [[5] * 7, [6] * 4]}).status_code == 200
    assert http.post("/v1/embeddings", json={"model": "demo", "input": [[]]}).status_code == 400
    assert gained(http, before, "prompt_tokens_total") == 11


def test_tpot_of_parallel_answers_is_that_of_the_longest() -> None:
    record = GenerationRecord("demo", 0.0, SamplingParams(n=3))
    assert record.tpot_s is None
    for new, lengths in (((1, 1, 1), (1, 1, 1)), ((4, 2, 3), (5, 3, 4))):
        deltas = [CompletionDelta(i, "", [7] * new[i], None, size) for i, size in enumerate(lengths)]
        assert record.update(OutputDelta("r", deltas, False, RequestMetrics(0.0, None, None), 1)) == sum(new)
    assert (record.num_output_tokens, record.num_prompt_tokens) == (12, 1)
    record.first_token_s, record.last_token_s = 10.0, 12.0
    assert record.tpot_s == 0.5


def test_the_engine_process_has_metrics_of_its_own(apart: httpx.Client, http: httpx.Client) -> None:
    taken = samples(apart)
    assert taken["aethermind_engine_cpu_seconds_total", ""] > 0
    assert taken["aethermind_engine_resident_memory_bytes", ""] > 1 << 20
    assert ("aethermind_engine_resident_memory_bytes", "") not in samples(http), "that engine is in the server's"


def test_a_repeated_prompt_counts_cached_tokens(http: httpx.Client) -> None:
    ask = {**ASK, "prompt": "A fox that no test has met before. " * 8}
    http.post(COMPLETIONS, json=ask)
    before = samples(http)
    http.post(COMPLETIONS, json=ask)
    cached, read = (gained(http, before, name) for name in ("prompt_tokens_cached_total", "prompt_tokens_total"))
    assert 0.5 * read < cached < read


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    return found


def queries() -> Iterator[str]:
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    yield from (target["expr"] for panel in panels() for target in panel.get("targets", ()))
    yield from (one["definition"] for one in dashboard["templating"]["list"] if one["type"] == "query")


def test_the_dashboard_queries_existing_metrics(apart: httpx.Client) -> None:
    apart.post(COMPLETIONS, json=ASK)
    known = {name for name, _ in samples(apart)}
    known |= {family.name for family in text_string_to_metric_families(apart.get("/metrics").text)}  # without a device
    asked = {name for query in queries() for name in NAME.findall(query)}
    assert len(asked) > 30
    assert asked <= known


def test_the_dashboard_is_valid_for_grafana() -> None:
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    assert {"title", "uid", "schemaVersion", "panels", "templating", "time"} <= dashboard.keys()
    variables = {one["name"] for one in dashboard["templating"]["list"]}
    assert {name for query in queries() for name in re.findall(r"\$(\w+)", query)} <= {*variables, "__rate_interval"}
    assert len({panel["id"] for panel in panels()}) == len(panels())
    covered = set()
    for panel in panels():
        area = panel["gridPos"]
        cells = {(area["x"] + i, area["y"] + j) for i in range(area["w"]) for j in range(area["h"])}
        assert not cells & covered, f"{panel['title']} lies over another"
        assert area["x"] + area["w"] <= 24
        covered |= cells
        if panel["type"] != "row":
            assert panel["targets"]
            assert all(one["datasource"]["uid"] == "${datasource}" for one in (panel, *panel["targets"]))
            assert all(one["expr"].count("(") == one["expr"].count(")") for one in panel["targets"])
