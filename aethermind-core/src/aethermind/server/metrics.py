"""What the server counts, in Prometheus' format: `aethermind_*`."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

if TYPE_CHECKING:
    from aethermind.engine.output import RequestOutput
    from aethermind.server.limits import Admission
    from aethermind.server.served_model import ServedModels

__all__ = ["Metrics"]

_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536)


class Metrics:
    """The metrics of one server, in a registry of its own. Mutable."""

    def __init__(self, models: ServedModels, admission: Admission) -> None:
        self._models = models
        self._admission = admission
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        labels = ["model_name"]

        def counter(name: str, help: str, extra: str | None = None) -> Counter:
            return Counter(f"aethermind_{name}", help, labels + ([extra] if extra else []), registry=registry)

        def gauge(name: str, help: str) -> Gauge:
            return Gauge(f"aethermind_{name}", help, labels, registry=registry)

        def histogram(name: str, help: str, buckets: tuple[float, ...] = _SECONDS) -> Histogram:
            return Histogram(f"aethermind_{name}", help, labels, registry=registry, buckets=buckets)

        self._running = gauge("num_requests_running", "Requests that are computed.")
        self._waiting = gauge("num_requests_waiting", "Requests that wait to be computed.")
        self._cache_usage = gauge("kv_cache_usage_ratio", "Fraction of the KV cache that open requests hold.")
        self._pressure = gauge(
            "kv_memory_pressure_ratio", "The same fraction of the cache and the swap space together."
        )
        self._swapped = gauge("num_swapped_blocks", "KV blocks of waiting requests in the swap space.")
        self._prompt_tokens = counter("prompt_tokens", "Prompt tokens of finished requests.")
        self._cached_tokens = counter("prompt_tokens_cached", "Prompt tokens whose keys and values were known.")
        self._output_tokens = counter("generation_tokens", "Tokens written.")
        self._finished = counter("request_success", "Requests finished, by reason.", "finished_reason")
        self._first_token = histogram("time_to_first_token_seconds", "From arrival to the first token.")
        self._per_token = histogram("time_per_output_token_seconds", "Mean time between tokens of a request.")
        self._whole = histogram("e2e_request_latency_seconds", "From arrival to the last token.")
        self._prompt_lengths = histogram("request_prompt_tokens", "Prompt tokens of a request.", _TOKENS)
        self._output_lengths = histogram("request_generation_tokens", "Tokens written for a request.", _TOKENS)
        self._http = Counter(
            "aethermind_http_requests", "HTTP requests.", ["method", "path", "status"], registry=registry
        )
        self._rejected = Gauge("aethermind_requests_rejected", "Requests turned away at the door.", registry=registry)

    def count_http(self, method: str, path: str, status: int) -> None:
        """Count an answered HTTP request; `path` is a route, so that there are few of them."""
        self._http.labels(method, path, status).inc()

    async def observed(
        self, model: str, states: AsyncGenerator[RequestOutput, None]
    ) -> AsyncGenerator[RequestOutput, None]:
        """The same states, with the times between them and the counts at the end taken."""
        arrived, has_begun = time.perf_counter(), False
        async with aclosing(states):
            async for output in states:
                if not has_begun:
                    has_begun = True
                    self._first_token.labels(model).observe(time.perf_counter() - arrived)
                yield output
                if output.finished:
                    self._count(model, output)

    def _count(self, model: str, output: RequestOutput) -> None:
        num_prompt = len(output.prompt_token_ids)
        num_written = sum(len(one.token_ids) for one in output.outputs)
        self._prompt_tokens.labels(model).inc(num_prompt)
        self._cached_tokens.labels(model).inc(output.num_cached_tokens)
        self._output_tokens.labels(model).inc(num_written)
        self._prompt_lengths.labels(model).observe(num_prompt)
        self._output_lengths.labels(model).observe(num_written)
        for one in output.outputs:
            self._finished.labels(model, one.finish_reason or "abort").inc()
        times = output.metrics
        if times.first_token_s is not None and times.finished_s is not None:
            self._whole.labels(model).observe(times.finished_s - times.arrival_s)
            if num_written > 1:
                self._per_token.labels(model).observe((times.finished_s - times.first_token_s) / (num_written - 1))

    def render(self) -> bytes:
        """The metrics as text, those of this moment read now."""
        for model in self._models:
            stats = model.engine.stats
            self._running.labels(model.name).set(stats.num_running)
            self._waiting.labels(model.name).set(stats.num_waiting)
            self._cache_usage.labels(model.name).set(stats.kv_cache_usage)
            self._pressure.labels(model.name).set(stats.memory_pressure)
            self._swapped.labels(model.name).set(stats.num_swapped_blocks)
        self._rejected.set(self._admission.num_rejected)
        return generate_latest(self._registry)
