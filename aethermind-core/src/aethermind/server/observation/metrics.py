"""What the server counts, in Prometheus' format: `aethermind_*`, in the names that vLLM's dashboards have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from aethermind.server.observation.engine_metrics import EngineCollector
from aethermind.server.observation.process_metrics import EngineProcessCollector
from aethermind.server.observation.token_metrics import TokenCollector
from aethermind.server.openai.errors import LIMIT_CODES, is_refusal

if TYPE_CHECKING:
    from aethermind.engine.requests.output import RequestOutput
    from aethermind.server.limits import Admission
    from aethermind.server.observation.records import EmbeddingRecord, GenerationRecord, HttpRecord
    from aethermind.server.served_model import ServedModels

__all__ = ["Metrics"]

_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_STEP_SECONDS = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5)
_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536)

_AT_THE_DOOR = {
    "num_open": "Answers that were let in and are not finished.",
    "num_queued": "Of those, answers that have not begun.",
    "num_queued_tokens": "Prompt tokens of answers that have not begun.",
}
"""Gauges that are attributes of `Admission`."""


class Metrics:
    """The metrics of one server, in a registry of its own. Mutable."""

    def __init__(self, models: ServedModels, admission: Admission) -> None:
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
        self._cached_tokens = counter("prompt_tokens_cached", "Prompt tokens whose keys and values were known.")
        self._tokens = TokenCollector(_STEP_SECONDS)
        registry.register(self._tokens)
        self._finished = counter(
            "request_success",
            "Answers ended, by reason: stop, length, abort (the client left), error.",
            "finished_reason",
        )
        self._first_token = histogram("time_to_first_token_seconds", "From arrival to the first token.")
        self._per_token = histogram(
            "time_per_output_token_seconds", "Mean time between tokens of a request.", _STEP_SECONDS
        )
        self._whole = histogram("e2e_request_latency_seconds", "From arrival to the last token.")
        self._queue = histogram("request_queue_time_seconds", "In the engine's queue, before it was let in.")
        self._prefill = histogram("request_prefill_time_seconds", "From being let in to the first token.")
        self._decode = histogram("request_decode_time_seconds", "From the first token to the last.")
        self._inference = histogram("request_inference_time_seconds", "From being let in to the last token.")
        self._prompt_lengths = histogram("request_prompt_tokens", "Prompt tokens of a request.", _TOKENS)
        self._output_lengths = histogram("request_generation_tokens", "Tokens written for a request.", _TOKENS)
        self._asked_lengths = histogram("request_params_max_tokens", "The most tokens a request wants.", _TOKENS)
        self._http = Counter(
            "aethermind_http_requests", "HTTP requests.", ["method", "path", "status"], registry=registry
        )
        self._http_open = Gauge("aethermind_http_requests_open", "HTTP requests being answered.", registry=registry)
        self._refused = Counter(
            "aethermind_requests_rejected", "Requests turned away or ended by a limit.", ["reason"], registry=registry
        )
        for code in LIMIT_CODES:
            self._refused.labels(code)
        for name, help in _AT_THE_DOOR.items():
            Gauge(f"aethermind_{name}", help, registry=registry).set_function(partial(getattr, admission, name))

    def count_refusal(self, reason: str) -> None:
        """Count a request that one of `LIMIT_CODES` turned away or ended."""
        self._refused.labels(reason).inc()

    def begin_http(self) -> None:
        """Count an HTTP request that is to be answered."""
        self._http_open.inc()

    def answer_http(self, record: HttpRecord) -> None:
        """Count an HTTP request by its answer's status."""
        self._http.labels(record.method, record.route, record.status).inc()

    def end_http(self) -> None:
        """Count an HTTP request that is over."""
        self._http_open.dec()

    @contextmanager
    def observing(self, record: GenerationRecord) -> Iterator[None]:
        """Count a request's end, whichever it is; its states are told to `grow` meanwhile. One that the engine refuses
        was never begun.
        """
        try:
            yield
        except Exception as error:
            record.finish_reasons = ("error",)
            if record.num_output_tokens or not is_refusal(error):
                self._count(record)
            raise
        finally:
            if not record.finish_reasons:
                record.finish_reasons = ("abort",)
                self._count(record)

    def grow(self, record: GenerationRecord, output: RequestOutput) -> None:
        """Note the newest state of a request in its record, and count what came with it."""
        before_s, num_new = record.last_token_s, record.grow(output)
        if num_new and record.last_token_s is not None:
            if before_s is None:
                self._first_token.labels(record.model).observe(record.last_token_s - record.arrived_s)
                self._tokens.count(record.model, num_new, None)
            else:
                gap_s = (record.last_token_s - before_s) * len(output.outputs) / num_new
                self._tokens.count(record.model, num_new, gap_s)
        if output.finished:
            self._count(record)

    def embed(self, record: EmbeddingRecord) -> None:
        """Count texts whose vectors are finished."""
        self._prompt_tokens.labels(record.model).inc(record.num_prompt_tokens)

    def _count(self, record: GenerationRecord) -> None:
        model = record.model
        for reason in record.finish_reasons:
            self._finished.labels(model, reason).inc()
        if not record.num_prompt_tokens:  # nothing of it was computed
            return
        self._prompt_tokens.labels(model).inc(record.num_prompt_tokens)
        self._cached_tokens.labels(model).inc(record.num_cached_tokens)
        lengths: list[tuple[Histogram, float | None]] = [
            (self._prompt_lengths, record.num_prompt_tokens),
            (self._output_lengths, record.num_output_tokens),
            (self._asked_lengths, record.params.max_tokens),
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
        """The metrics as text, those of this moment read now."""
        return generate_latest(self._registry)
