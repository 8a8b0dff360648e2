"""The server's Prometheus metrics, `aethermind_*`; what vLLM measures, too, has vLLM's names behind the prefix."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from aethermind.server.observation.engine_metrics import EngineCollector, EngineProcessCollector
from aethermind.server.openai.errors import LIMIT_CODES, is_rejection

if TYPE_CHECKING:
    from aethermind.engine.requests.output_delta import OutputDelta
    from aethermind.server.admission import AdmissionController
    from aethermind.server.model_pool import ModelPool
    from aethermind.server.observation.observer import EmbeddingRecord, GenerationRecord, HttpRecord

__all__ = ["Metrics", "TokenCollector"]

_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_STEP_SECONDS = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5)
_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536)

_ADMISSION_GAUGES = {
    "num_open": "Answers admitted and not finished.",
    "num_queued": "Answers among them without a first token.",
    "num_queued_tokens": "Prompt tokens of answers without a first token.",
}
"""Gauges that read attributes of `AdmissionController`."""


class Metrics:
    """The metrics of one server, in a registry of their own. Mutable."""

    def __init__(self, models: ModelPool, admission: AdmissionController) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        registry.register(EngineCollector(models))
        registry.register(EngineProcessCollector(models))
        labels = ["model_name"]

        def counter(name: str, help: str, extra: str | None = None) -> Counter:
            return Counter(f"aethermind_{name}", help, labels + ([extra] if extra else []), registry=registry)

        def histogram(name: str, help: str, buckets: tuple[float, ...] = _SECONDS) -> Histogram:
            return Histogram(f"aethermind_{name}", help, labels, registry=registry, buckets=buckets)

        self._prompt_tokens = counter("prompt_tokens", "Prompt tokens of finished requests.")
        self._cached_tokens = counter("prompt_tokens_cached", "Prompt tokens found in the prefix cache.")
        self._tokens = TokenCollector(_STEP_SECONDS)
        registry.register(self._tokens)
        self._finished = counter(
            "request_success",
            "Answers ended, by reason: stop, length, abort (the client disconnected), error.",
            "finished_reason",
        )
        self._first_token = histogram("time_to_first_token_seconds", "From arrival to the first token.")
        self._per_token = histogram(
            "time_per_output_token_seconds", "Mean time between tokens of a request.", _STEP_SECONDS
        )
        self._whole = histogram("e2e_request_latency_seconds", "From arrival to the last token.")
        self._queue = histogram("request_queue_time_seconds", "In the engine's waiting queue.")
        self._prefill = histogram("request_prefill_time_seconds", "From being scheduled to the first token.")
        self._decode = histogram("request_decode_time_seconds", "From the first token to the last.")
        self._inference = histogram("request_inference_time_seconds", "From being scheduled to the last token.")
        self._prompt_lengths = histogram("request_prompt_tokens", "Prompt tokens of a request.", _TOKENS)
        self._output_lengths = histogram("request_generation_tokens", "Output tokens of a request.", _TOKENS)
        self._max_tokens = histogram("request_params_max_tokens", "max_tokens of a request.", _TOKENS)
        self._responses = Counter(
            "aethermind_http_requests", "HTTP requests.", ["method", "path", "status"], registry=registry
        )
        self._requests_open = Gauge("aethermind_http_requests_open", "HTTP requests in flight.", registry=registry)
        self._rejected = Counter(
            "aethermind_requests_rejected", "Requests rejected or ended by a limit.", ["reason"], registry=registry
        )
        for code in LIMIT_CODES:
            self._rejected.labels(code)
        for name, help in _ADMISSION_GAUGES.items():
            Gauge(f"aethermind_{name}", help, registry=registry).set_function(partial(getattr, admission, name))

    def count_rejection(self, reason: str) -> None:
        """Count a request that a limit rejected or ended; `reason` is one of `LIMIT_CODES`."""
        self._rejected.labels(reason).inc()

    def begin_request(self) -> None:
        """Count an HTTP request that arrived."""
        self._requests_open.inc()

    def count_response(self, record: HttpRecord) -> None:
        """Count an HTTP request by the status of its response."""
        self._responses.labels(record.method, record.route, record.status).inc()

    def end_request(self) -> None:
        """Count an HTTP request that ended."""
        self._requests_open.dec()

    @contextmanager
    def observing(self, record: GenerationRecord) -> Iterator[None]:
        """Count the end of a generation that fails or is aborted; `update`, which gets its outputs, counts one that
        finishes. A request that the engine rejects is not counted.
        """
        try:
            yield
        except Exception as error:
            if not record.finish_reasons:
                record.finish_reasons = ("error",)
                if record.num_output_tokens or not is_rejection(error):
                    self._count(record)
            raise
        finally:
            if not record.finish_reasons:
                record.finish_reasons = ("abort",)
                self._count(record)

    def update(self, record: GenerationRecord, delta: OutputDelta) -> None:
        """Update a record by new output of its request, and count the new tokens."""
        before_s, num_new = record.last_token_s, record.update(delta)
        if num_new and record.last_token_s is not None:
            if before_s is None:
                self._first_token.labels(record.model).observe(record.last_token_s - record.arrived_s)
                self._tokens.count(record.model, num_new, None)
            else:
                # The answers of a request (n > 1) decode side by side.
                gap_s = (record.last_token_s - before_s) * len(record.answer_reasons) / num_new
                self._tokens.count(record.model, num_new, gap_s)
        if delta.finished:
            self._count(record)

    def count_embedding(self, record: EmbeddingRecord) -> None:
        """Count the tokens of a finished embedding request."""
        self._prompt_tokens.labels(record.model).inc(record.num_prompt_tokens)

    def _count(self, record: GenerationRecord) -> None:
        model = record.model
        for reason in record.finish_reasons:
            self._finished.labels(model, reason).inc()
        if not record.num_prompt_tokens:  # the engine sent no output
            return
        self._prompt_tokens.labels(model).inc(record.num_prompt_tokens)
        self._cached_tokens.labels(model).inc(record.num_cached_tokens)
        lengths: list[tuple[Histogram, float | None]] = [
            (self._prompt_lengths, record.num_prompt_tokens),
            (self._output_lengths, record.num_output_tokens),
            (self._max_tokens, record.params.max_tokens),
            (self._per_token, record.tpot_s),
            (self._whole, None if record.last_token_s is None else record.last_token_s - record.arrived_s),
            (self._queue, record.queue_s),
            (self._prefill, record.prefill_s),
            (self._decode, record.decode_s),
            (self._inference, record.inference_s),
        ]
        for histogram, value in lengths:
            if value is not None:
                histogram.labels(model).observe(value)

    def render(self) -> bytes:
        """The metrics in Prometheus' text format; gauges and engine metrics are read now."""
        return generate_latest(self._registry)


class TokenCollector(Collector):
    """Output tokens of each model, and a histogram of the inter-token latency. Mutable.

    It is updated for every token, so it needs neither the lock nor the label lookup of the library's metrics: all
    updates and `collect` run in the event loop's thread.
    """

    def __init__(self, bounds_s: Sequence[float]) -> None:
        """`bounds_s` are the upper bounds of the histogram's buckets in seconds."""
        self._bounds_s = bounds_s
        self._models: dict[str, _TokenCounts] = {}

    def count(self, model: str, num_new: int, gap_s: float | None) -> None:
        """Count new tokens with an inter-token latency of `gap_s` each; None for the first tokens of a request."""
        tokens = self._models.get(model)
        if tokens is None:
            tokens = self._models[model] = _TokenCounts(len(self._bounds_s) + 1)
        tokens.num_tokens += num_new
        if gap_s is not None:
            tokens.num_gaps[bisect_left(self._bounds_s, gap_s)] += num_new
            tokens.gaps_s += gap_s * num_new

    def collect(self) -> Iterator[Metric]:
        """The counter and the histogram."""
        labels = ["model_name"]
        generated = CounterMetricFamily("aethermind_generation_tokens", "Output tokens.", labels=labels)
        gaps = HistogramMetricFamily("aethermind_inter_token_latency_seconds", "Between two tokens.", labels=labels)
        names = [*map(str, self._bounds_s), "+Inf"]
        for model, tokens in self._models.items():
            generated.add_metric([model], tokens.num_tokens)
            gaps.add_metric([model], list(zip(names, accumulate(tokens.num_gaps), strict=True)), tokens.gaps_s)
        yield generated
        yield gaps


class _TokenCounts:
    __slots__ = ("gaps_s", "num_gaps", "num_tokens")

    def __init__(self, num_buckets: int) -> None:
        self.num_tokens = 0
        self.num_gaps = [0] * num_buckets
        self.gaps_s = 0.0
