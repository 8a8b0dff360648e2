"""A span for each request in the client's trace, by OpenTelemetry's conventions, without prompts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import httpx
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from tests.server.conftest import await_idle

from aethermind.errors import SettingsError
from aethermind.server.observation.tracing import Tracing, open_tracing

COMPLETIONS = "/v1/completions"
ASK = {
    "model": "demo",
    "prompt": "The heron",
    "max_tokens": 6,
    "ignore_eos": True,
    "temperature": 0.5,
    "top_k": 40,
    "top_p": 0.9,
    "seed": 3,
}
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def http(open_server: Callable[..., httpx.Client], exporter: InMemorySpanExporter) -> httpx.Client:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return open_server(tracing=Tracing(provider))


def test_a_span_has_the_usage_and_times_of_a_request(http: httpx.Client, exporter: InMemorySpanExporter) -> None:
    answer = http.post(COMPLETIONS, json=ASK, headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
    await_idle(http)
    (span,) = exporter.get_finished_spans()
    usage = answer.json()["usage"]
    assert (span.name, span.kind, span.status.status_code) == (
        "text_completion demo",
        SpanKind.SERVER,
        StatusCode.UNSET,
    )
    assert f"{span.context.trace_id:032x}" == TRACE
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == PARENT
    found = dict(span.attributes)
    assert found.pop("aethermind.queue_time_s") >= 0
    assert 0 < found.pop("aethermind.time_to_first_token_s") * 1e9 < span.end_time - span.start_time
    assert found == {
        "http.request.method": "POST",
        "http.route": COMPLETIONS,
        "http.response.status_code": 200,
        "aethermind.request.id": answer.headers["X-Request-Id"],
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "aethermind",
        "gen_ai.request.model": "demo",
        "gen_ai.response.model": "demo",
        "gen_ai.request.max_tokens": 6,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.top_k": 40,
        "gen_ai.request.seed": 3,
        "gen_ai.response.finish_reasons": ("length",),
        "gen_ai.usage.input_tokens": usage["prompt_tokens"],
        "gen_ai.usage.output_tokens": 6,
        "gen_ai.usage.cache_read.input_tokens": 0,
    }


def test_a_request_without_traceparent_starts_a_trace(http: httpx.Client, exporter: InMemorySpanExporter) -> None:
    for header in (None, "00-nonsense-01", f"00-{'0' * 32}-{PARENT}-01"):
        http.post(COMPLETIONS, json=ASK, headers={} if header is None else {"traceparent": header})
    await_idle(http)
    spans = exporter.get_finished_spans()
    assert [span.parent for span in spans] == [None] * 3
    assert len({span.context.trace_id for span in spans}) == 3


def test_spans_of_chats_errors_and_probes(http: httpx.Client, exporter: InMemorySpanExporter) -> None:
    http.post(
        "/v1/chat/completions", json={"model": "demo", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
    )
    http.post(COMPLETIONS, json={**ASK, "model": "gpt-9"})
    http.get("/health")
    await_idle(http)
    chat, unknown = exporter.get_finished_spans()
    assert chat.name == "chat demo"
    assert unknown.name == f"POST {COMPLETIONS}"
    assert unknown.attributes is not None
    assert (unknown.attributes["http.response.status_code"], unknown.attributes["error.type"]) == (
        404,
        "model_not_found",
    )
    assert unknown.status.status_code is StatusCode.UNSET, "it is the client's mistake"


def test_an_embedding_span_has_the_model_and_tokens(http: httpx.Client, exporter: InMemorySpanExporter) -> None:
    http.post("/v1/embeddings", json={"model": "demo", "input": [[5] * 7, [6] * 4]})
    await_idle(http)
    (span,) = exporter.get_finished_spans()
    assert span.name == "embeddings demo"
    assert span.attributes is not None
    assert span.attributes["gen_ai.request.model"] == "demo"
    assert span.attributes["gen_ai.usage.input_tokens"] == 11


def test_spans_contain_no_prompts(http: httpx.Client, exporter: InMemorySpanExporter) -> None:
    http.post(COMPLETIONS, json=ASK)
    http.post(COMPLETIONS, json={**ASK, "temperature": "heron"})
    await_idle(http)
    spans = exporter.get_finished_spans()
    assert len(spans) == 2
    assert "heron" not in "".join(json.dumps(dict(span.attributes or {}), default=str) for span in spans)


def test_a_server_without_tracing_does_not_import_it() -> None:
    code = "import aethermind.server, sys; print([one for one in sys.modules if one.startswith('opentelemetry.sdk')])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


def test_an_invalid_otlp_endpoint_is_an_error() -> None:
    with pytest.raises(SettingsError, match="--otlp-endpoint is 'collector:4318'"):
        open_tracing("collector:4318")


def test_a_missing_otel_extra_is_an_error_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(SettingsError, match=r"pip install .*\[otel\]"):
        open_tracing("http://127.0.0.1:4318/v1/traces")
