"""OpenTelemetry tracing: one span for each request, as a child of the client's span.

A span is created from a request's record when the request ends, which costs nothing while it is served. The library is
an extra, imported only if tracing is enabled. Attribute names follow OpenTelemetry's semantic conventions for
generative AI and HTTP.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from aethermind import __version__
from aethermind.errors import SettingsError
from aethermind.first_party import pip_install_command

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

    from aethermind.server.observation.observer import GenerationRecord, HttpRecord

__all__ = ["Tracing", "open_tracing"]

_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}


def open_tracing(endpoint: str) -> Tracing:
    """Export spans to an OTLP endpoint over HTTP, such as http://127.0.0.1:4318/v1/traces.

    OTEL_SERVICE_NAME and the other variables of the SDK apply. SettingsError if the endpoint is not a URL or the extra
    is not installed.
    """
    if not endpoint.startswith(("http://", "https://")):
        raise SettingsError(
            f"--otlp-endpoint is {endpoint!r} but should be an address such as http://127.0.0.1:4318/v1/traces."
        )
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise SettingsError(f"Tracing needs {error.name}. Run `{pip_install_command('aethermind[otel]')}`.") from None
    name = os.environ.get("OTEL_SERVICE_NAME", "aethermind")
    provider = TracerProvider(resource=Resource.create({"service.name": name, "service.version": __version__}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    return Tracing(provider)


class Tracing:
    """Converts records into spans of a provider, which `close` shuts down."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("aethermind", __version__)
        self._propagator = TraceContextTextMapPropagator()

    def record(self, record: HttpRecord, headers: Mapping[str, str]) -> None:
        """Export the span of a finished request. Its parent is the span of the `traceparent` header."""
        from opentelemetry.trace import SpanKind, Status, StatusCode

        assert record.ended_s is not None, "the request is finished"
        elapsed_ns = int((time.perf_counter() - record.arrived_s) * 1e9)
        start_ns = time.time_ns() - elapsed_ns
        operation = _OPERATIONS.get(record.route)
        name = f"{record.method} {record.route}"
        served = record.generations[0] if record.generations else record.embedding
        if operation is not None and served is not None:
            name = f"{operation} {served.model}"
        span = self._tracer.start_span(
            name,
            context=self._propagator.extract(headers),
            kind=SpanKind.SERVER,
            attributes=_attributes(record, operation),
            start_time=start_ns,
        )
        if _has_failed(record):
            span.set_status(Status(StatusCode.ERROR))
        span.end(start_ns + int(record.duration_s * 1e9))

    def close(self) -> None:
        """Export the spans that are still queued."""
        self._provider.shutdown()


def _has_failed(record: HttpRecord) -> bool:
    """Whether the request failed by a fault of the server."""
    reasons = {reason for generation in record.generations for reason in generation.finish_reasons}
    return (record.status or 0) >= 500 or (record.status == 200 and "error" in reasons)


def _attributes(record: HttpRecord, operation: str | None) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "http.request.method": record.method,
        "http.route": record.route,
        "http.response.status_code": record.status,
        "error.type": record.error_code,
        "aethermind.request.id": record.request_id,
        "aethermind.tenant": record.tenant,
    }
    if record.generations:
        attributes |= _generation_attributes(record, record.generations, operation)
    if record.embedding is not None:
        attributes |= {
            **_model_attributes(record.embedding.model, operation),
            "gen_ai.usage.input_tokens": record.embedding.num_prompt_tokens,
        }
    return {name: value for name, value in attributes.items() if value is not None}


def _model_attributes(model: str, operation: str | None) -> dict[str, Any]:
    return {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "aethermind",
        "gen_ai.request.model": model,
        "gen_ai.response.model": model,
    }


def _generation_attributes(
    record: HttpRecord, generations: list[GenerationRecord], operation: str | None
) -> dict[str, Any]:
    first = generations[0]
    params = first.params
    queue_s = max((generation.queue_s for generation in generations if generation.queue_s is not None), default=None)
    return {
        **_model_attributes(first.model, operation),
        "gen_ai.request.max_tokens": params.max_tokens,
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.request.top_k": params.top_k or None,
        "gen_ai.request.seed": params.seed,
        "gen_ai.request.choice.count": params.n if params.n > 1 else None,
        "gen_ai.request.frequency_penalty": params.frequency_penalty or None,
        "gen_ai.request.presence_penalty": params.presence_penalty or None,
        "gen_ai.request.stop_sequences": params.stop or None,
        "gen_ai.response.finish_reasons": [
            reason for generation in generations for reason in generation.finish_reasons
        ],
        "gen_ai.usage.input_tokens": sum(generation.num_prompt_tokens for generation in generations),
        "gen_ai.usage.output_tokens": sum(generation.num_output_tokens for generation in generations),
        "gen_ai.usage.cache_read.input_tokens": sum(generation.num_cached_tokens for generation in generations),
        "aethermind.time_to_first_token_s": record.ttft_s,
        "aethermind.queue_time_s": queue_s,
    }
