"""Health, readiness, version and metrics."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from aethermind import __version__
from aethermind.engine.kv_offload import KVStoreStats
from aethermind.engine.observation.engine_stats import EngineStats
from aethermind.hal import DeviceUsage
from aethermind.server.app import create_app
from aethermind.server.observation import Metrics


def test_probes_answer_get_and_head(http: httpx.Client) -> None:
    for path in ("/health", "/ready", "/version", "/metrics", "/v1/models", "/v1/models/demo", "/"):
        got, head = http.get(path), http.head(path)  # load balancers ask either way
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers.get("Content-Type") == got.headers.get("Content-Type")
    assert http.head("/v1/completions").status_code == 405
    assert 'aethermind_http_requests_total{method="HEAD",path="/version",status="200"} ' in http.get("/metrics").text
    assert http.get("/health").json() == {"status": "ok"}
    assert http.get("/ready").status_code == 200
    assert http.get("/version").json() == {"version": __version__}


@pytest.mark.parametrize(("is_draining", "failure", "code"), [(True, None, "draining"), (False, "gone", "engine_dead")])
def test_a_server_that_is_not_ready_sends_retry_after(is_draining: bool, failure: str | None, code: str) -> None:
    engine = SimpleNamespace(failure=failure, stats=None, pid=None)
    info = SimpleNamespace(adapters=(), max_model_len=8, weight_bytes=0, kv_cache_bytes=0, arena_bytes=0)
    model: Any = SimpleNamespace(name="demo", engine=engine, info=info)
    model.with_adapters = lambda: [model]
    app = create_app([model])
    app.state.admission.is_draining = is_draining

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            return await client.get("/ready")

    answer = asyncio.run(ask())
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, code)
    assert int(answer.headers["Retry-After"]) > 0


def test_metrics_count_finished_requests(http: httpx.Client) -> None:
    before = read(http)
    http.post("/v1/completions", json={"model": "demo", "prompt": "The old fox", "max_tokens": 6, "ignore_eos": True})
    after = read(http)

    def gained(name: str) -> float:
        return after[name] - before.get(name, 0.0)

    assert gained("aethermind_generation_tokens_total") == 6
    assert gained("aethermind_request_success_total") == 1
    assert gained("aethermind_time_to_first_token_seconds_count") == 1
    assert gained("aethermind_e2e_request_latency_seconds_count") == 1
    assert gained("aethermind_prompt_tokens_total") > 0
    assert after["process_resident_memory_bytes"] > 0


def test_engine_metrics_show_the_memory_and_the_kv_cache() -> None:
    stats = EngineStats(
        0,
        2,
        num_blocks=8,
        num_free_blocks=2,
        num_swap_blocks=4,
        num_swapped_blocks=3,
        swapped_out_bytes=5,
        swapped_in_bytes=0,
        num_preemptions=7,
        memory_pressure=0.75,
        kv_store=KVStoreStats(num_hits=1, num_misses=2, num_stored=3, num_dropped=4, num_errors=5),
        num_draft_tokens=40,
        num_accepted_tokens=30,
        device_usage=(DeviceUsage("gpu:0", 30, 80, 0.25), DeviceUsage("gpu:1", 1, 80)),
    )
    info = SimpleNamespace(architecture="A", device="cpu:0", dtype="float32", max_model_len=64, block_size=16,
                           weight_bytes=1, kv_cache_bytes=2, arena_bytes=3)  # fmt: skip
    model = SimpleNamespace(name="demo", engine=SimpleNamespace(stats=stats, pid=None), info=info)
    models: Any = SimpleNamespace(base_models=(model,), statuses=lambda: ())
    admission: Any = SimpleNamespace(num_open=3, num_queued=2, num_queued_tokens=70)
    samples = read_samples(Metrics(models, admission).render().decode())
    assert samples["aethermind_kv_cache_usage_ratio"] == 6 / 8
    assert samples["aethermind_kv_memory_pressure_ratio"] == 0.75
    assert samples["aethermind_num_swapped_blocks"] == 3
    assert samples["aethermind_num_preemptions_total"] == 7
    assert samples["aethermind_kv_store_blocks_total"] == 1 + 2 + 3 + 4
    assert samples["aethermind_kv_store_errors_total"] == 5
    assert samples["aethermind_spec_decode_num_draft_tokens_total"] == 40
    assert samples["aethermind_spec_decode_num_accepted_tokens_total"] == 30
    assert samples["aethermind_spec_decode_acceptance_ratio"] == 0.75
    assert samples["aethermind_model_memory_bytes"] == 6
    assert samples["aethermind_num_queued_tokens"] == 70
    assert samples["aethermind_device_memory_used_bytes"] == 31
    assert samples["aethermind_device_memory_bytes"] == 160
    assert samples["aethermind_device_utilization_ratio"] == 0.25, "of the one device that reports it"


def read(http: httpx.Client) -> dict[str, float]:
    return read_samples(http.get("/metrics").text)


def read_samples(text: str) -> dict[str, float]:
    """Every sample, those of one name added up."""
    samples: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples[sample.name] = samples.get(sample.name, 0.0) + sample.value
    return samples
