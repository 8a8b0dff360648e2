"""What monitors ask: health, readiness, version, metrics."""

from __future__ import annotations

import httpx
from prometheus_client.parser import text_string_to_metric_families

from aethermind import __version__


def test_probes(http: httpx.Client) -> None:
    assert http.get("/health").json() == {"status": "ok"}
    assert http.get("/ready").status_code == 200
    assert http.get("/version").json() == {"version": __version__}


def test_metrics_count_what_was_served(http: httpx.Client) -> None:
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


def read(http: httpx.Client) -> dict[str, float]:
    """Every sample, those of one name added up."""
    samples: dict[str, float] = {}
    for family in text_string_to_metric_families(http.get("/metrics").text):
        for sample in family.samples:
            samples[sample.name] = samples.get(sample.name, 0.0) + sample.value
    return samples
