"""The server's Prometheus metrics, named `aethermind_*`. Metrics that vLLM also has have its names after the prefix.

`Metrics` counts requests and tokens as they occur. `EngineCollector` and `EngineProcessCollector` read the engines when
Prometheus scrapes: queues, KV cache, memory and CPU time.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from aethermind import __version__
from aethermind.server.openai.errors import LIMIT_CODES, is_rejection

if TYPE_CHECKING:
    from aethermind.engine.observation.engine_stats import EngineStats
    from aethermind.engine.observation.model_info import ModelInfo
    from aethermind.engine.requests.output_delta import OutputDelta
    from aethermind.server.admission import AdmissionController
    from aethermind.server.model_pool import ModelPool
    from aethermind.server.observation.observer import EmbeddingRecord, GenerationRecord, HttpRecord

__all__ = ["EngineCollector", "EngineProcessCollector", "Metrics", "TokenCollector"]

_LATENCY_BUCKETS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_TPOT_BUCKETS_S = (
    0.001,
    0.0025,
    0.005,
    0.0075,
    0.01,
    0.015,
    0.02,
    0.03,
    0.05,
    0.075,
    0.1,
    0.15,
    0.25,
    0.5,
    1.0,
    2.5,
)
_TOKEN_BUCKETS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536)

_ADMISSION_GAUGES = {
    "num_open": "Completions admitted and not finished.",
    "num_queued": "Completions among them without a first token.",
    "num_queued_tokens": "Prompt tokens of completions without a first token.",
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

        def histogram(name: str, help: str, buckets: tuple[float, ...] = _LATENCY_BUCKETS_S) -> Histogram:
            return Histogram(f"aethermind_{name}", help, labels, registry=registry, buckets=buckets)

        self._prompt_tokens = counter("prompt_tokens", "Prompt tokens of finished requests.")
        self._cached_tokens = counter("prompt_tokens_cached", "Prompt tokens found in the prefix cache.")
        self._tokens = TokenCollector(_TPOT_BUCKETS_S)
        registry.register(self._tokens)
        self._finished = counter(
            "request_success",
            "Completions ended, by reason: stop, length, abort (the client disconnected), error.",
            "finished_reason",
        )
        self._ttft = histogram("time_to_first_token_seconds", "From arrival to the first token.")
        self._tpot = histogram(
            "time_per_output_token_seconds", "Mean time between tokens of a request.", _TPOT_BUCKETS_S
        )
        self._e2e_latency = histogram("e2e_request_latency_seconds", "From arrival to the last token.")
        self._queue = histogram("request_queue_time_seconds", "In the engine's waiting queue.")
        self._prefill = histogram("request_prefill_time_seconds", "From being scheduled to the first token.")
        self._decode = histogram("request_decode_time_seconds", "From the first token to the last.")
        self._inference = histogram("request_inference_time_seconds", "From being scheduled to the last token.")
        self._prompt_lengths = histogram("request_prompt_tokens", "Prompt tokens of a request.", _TOKEN_BUCKETS)
        self._output_lengths = histogram("request_generation_tokens", "Output tokens of a request.", _TOKEN_BUCKETS)
        self._max_tokens = histogram("request_params_max_tokens", "max_tokens of a request.", _TOKEN_BUCKETS)
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
        previous_s, num_new_tokens = record.last_token_s, record.update(delta)
        if num_new_tokens and record.last_token_s is not None:
            if previous_s is None:
                self._ttft.labels(record.model).observe(record.last_token_s - record.arrived_s)
                self._tokens.count(record.model, num_new_tokens, None)
            else:
                # The completions of a request (n > 1) decode in the same steps.
                inter_token_s = (record.last_token_s - previous_s) * len(record.finish_reason_by_index) / num_new_tokens
                self._tokens.count(record.model, num_new_tokens, inter_token_s)
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
        observations: list[tuple[Histogram, float | None]] = [
            (self._prompt_lengths, record.num_prompt_tokens),
            (self._output_lengths, record.num_output_tokens),
            (self._max_tokens, record.params.max_tokens),
            (self._tpot, record.tpot_s),
            (self._e2e_latency, None if record.last_token_s is None else record.last_token_s - record.arrived_s),
            (self._queue, record.queue_s),
            (self._prefill, record.prefill_s),
            (self._decode, record.decode_s),
            (self._inference, record.inference_s),
        ]
        for histogram, value in observations:
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

    def __init__(self, bucket_bounds_s: Sequence[float]) -> None:
        """`bucket_bounds_s` are the upper bounds of the histogram's buckets in seconds."""
        self._bounds_s = bucket_bounds_s
        self._models: dict[str, _TokenCounts] = {}

    def count(self, model: str, num_new_tokens: int, inter_token_s: float | None) -> None:
        """Count new tokens, each `inter_token_s` after the one before; None for the first tokens of a request."""
        tokens = self._models.get(model)
        if tokens is None:
            tokens = self._models[model] = _TokenCounts(len(self._bounds_s) + 1)
        tokens.num_tokens += num_new_tokens
        if inter_token_s is not None:
            tokens.bucket_counts[bisect_left(self._bounds_s, inter_token_s)] += num_new_tokens
            tokens.sum_s += inter_token_s * num_new_tokens

    def collect(self) -> Iterator[Metric]:
        """The counter and the histogram."""
        labels = ["model_name"]
        generated = CounterMetricFamily("aethermind_generation_tokens", "Output tokens.", labels=labels)
        latencies = HistogramMetricFamily(
            "aethermind_inter_token_latency_seconds", "Between two tokens.", labels=labels
        )
        upper_bounds = [*map(str, self._bounds_s), "+Inf"]
        for model, tokens in self._models.items():
            generated.add_metric([model], tokens.num_tokens)
            latencies.add_metric(
                [model], list(zip(upper_bounds, accumulate(tokens.bucket_counts), strict=True)), tokens.sum_s
            )
        yield generated
        yield latencies


class _TokenCounts:
    """The tokens of one model, and the buckets of the histogram of their inter-token latency."""

    __slots__ = ("bucket_counts", "num_tokens", "sum_s")

    def __init__(self, num_buckets: int) -> None:
        self.num_tokens = 0
        self.bucket_counts = [0] * num_buckets
        self.sum_s = 0.0


class _StatMetric(NamedTuple):
    """A metric whose value is a field of `EngineStats`."""

    name: str
    help: str
    read: Callable[[EngineStats], float]
    family: type[CounterMetricFamily] | type[GaugeMetricFamily] = GaugeMetricFamily


_STAT_METRICS = (
    _StatMetric("num_requests_running", "Requests in the running batch.", lambda stats: stats.num_running),
    _StatMetric("num_requests_waiting", "Requests in the waiting queue.", lambda stats: stats.num_waiting),
    _StatMetric(
        "kv_cache_usage_ratio", "Fraction of the KV cache that requests hold.", lambda stats: stats.kv_cache_usage
    ),
    _StatMetric(
        "kv_memory_pressure_ratio",
        "Fraction of the KV cache and the swap space together that requests hold.",
        lambda stats: stats.memory_pressure,
    ),
    _StatMetric("num_sessions", "Sessions whose KV cache is kept.", lambda stats: stats.num_sessions),
    _StatMetric("num_kv_blocks", "Blocks of the KV cache.", lambda stats: stats.num_blocks),
    _StatMetric(
        "num_free_kv_blocks",
        "Blocks of the KV cache that are free or can be evicted.",
        lambda stats: stats.num_free_blocks,
    ),
    _StatMetric(
        "num_state_slots",
        "Slots for recurrent states of requests; 0 for a model without recurrent layers.",
        lambda stats: stats.num_state_slots,
    ),
    _StatMetric(
        "num_free_state_slots",
        "Slots for recurrent states that no request has.",
        lambda stats: stats.num_free_state_slots,
    ),
    _StatMetric(
        "num_swapped_blocks",
        "KV blocks of waiting requests in the swap space.",
        lambda stats: stats.num_swapped_blocks,
    ),
    _StatMetric("swapped_out_bytes", "Bytes swapped out.", lambda stats: stats.swapped_out_bytes, CounterMetricFamily),
    _StatMetric("swapped_in_bytes", "Bytes swapped in.", lambda stats: stats.swapped_in_bytes, CounterMetricFamily),
    _StatMetric(
        "num_preemptions",
        "Preemptions of requests.",
        lambda stats: stats.num_preemptions,
        CounterMetricFamily,
    ),
    _StatMetric(
        "spec_decode_num_draft_tokens",
        "Draft tokens that were verified.",
        lambda stats: stats.num_draft_tokens,
        CounterMetricFamily,
    ),
    _StatMetric(
        "spec_decode_num_accepted_tokens",
        "Draft tokens that were accepted.",
        lambda stats: stats.num_accepted_tokens,
        CounterMetricFamily,
    ),
    _StatMetric(
        "spec_decode_acceptance_ratio",
        "Fraction of the verified draft tokens that were accepted.",
        lambda stats: stats.acceptance_rate,
    ),
)

_MEMORY_BY_USE: dict[str, Callable[[ModelInfo], int]] = {
    "weights": lambda info: info.weight_bytes,
    "kv_cache": lambda info: info.kv_cache_bytes,
    "activations": lambda info: info.arena_bytes,
}


class EngineCollector(Collector):
    """The engine statistics, memory and model information of every model of a server."""

    def __init__(self, models: ModelPool) -> None:
        self._models = models

    def collect(self) -> Iterator[Metric]:
        """One metric family for each metric, with a sample for each model."""
        stats = {model.name: model.engine.stats for model in self._models.base_models}
        for metric in _STAT_METRICS:
            family = metric.family(f"aethermind_{metric.name}", metric.help, labels=["model_name"])
            for name, model_stats in stats.items():
                family.add_metric([name], metric.read(model_stats))
            yield family
        yield from _store_families(stats)
        yield from _device_families(stats)
        memory = GaugeMetricFamily(
            "aethermind_model_memory_bytes", "Device memory, by use.", labels=["model_name", "use"]
        )
        model_info = InfoMetricFamily(
            "aethermind_model", "The model's architecture, device and data types.", labels=["model_name"]
        )
        for model in self._models.base_models:
            info = model.info
            for use, num_bytes in _MEMORY_BY_USE.items():
                memory.add_metric([model.name, use], num_bytes(info))
            model_info.add_metric(
                [model.name],
                {
                    "architecture": info.architecture,
                    "device": info.device,
                    "dtype": info.dtype,
                    "max_model_len": str(info.max_model_len),
                    "block_size": str(info.block_size),
                },
            )
        yield memory
        yield model_info
        yield from _pool_families(self._models)
        version = InfoMetricFamily("aethermind_build", "The version of AetherMind.")
        version.add_metric([], {"version": __version__})
        yield version


def _pool_families(models: ModelPool) -> Iterator[Metric]:
    """Which models are loaded, and how often each was."""
    labels = ["model_name"]
    is_loaded = GaugeMetricFamily("aethermind_model_loaded", "Whether the model is loaded: 1 or 0.", labels=labels)
    loads = CounterMetricFamily("aethermind_model_loads", "How often the model was loaded.", labels=labels)
    for status in models.statuses():
        is_loaded.add_metric([status.name], status.state == "loaded")
        loads.add_metric([status.name], status.num_loads)
    yield is_loaded
    yield loads


def _store_families(stats: Mapping[str, EngineStats]) -> Iterator[Metric]:
    """Hits, misses and errors of KV stores, for models that have one."""
    blocks = CounterMetricFamily(
        "aethermind_kv_store_blocks",
        "Blocks fetched from a KV store (hit), computed instead (miss), stored, not stored (dropped).",
        labels=["model_name", "outcome"],
    )
    errors = CounterMetricFamily(
        "aethermind_kv_store_errors", "Failed calls of a KV store, and bad entries.", labels=["model_name"]
    )
    for name, model_stats in stats.items():
        store = model_stats.kv_store
        if store is None:
            continue
        outcomes = (store.num_hits, store.num_misses, store.num_stored, store.num_dropped)
        for outcome, num_blocks in zip(("hit", "miss", "stored", "dropped"), outcomes, strict=True):
            blocks.add_metric([name, outcome], num_blocks)
        errors.add_metric([name], store.num_errors)
    yield blocks
    yield errors


def _device_families(stats: Mapping[str, EngineStats]) -> Iterator[Metric]:
    """Utilisation and memory of devices, by all processes, for devices that report them."""
    labels = ["model_name", "device"]
    utilization = GaugeMetricFamily(
        "aethermind_device_utilization_ratio", "Fraction of time in which a device computed.", labels=labels
    )
    used = GaugeMetricFamily(
        "aethermind_device_memory_used_bytes", "Memory of a device that is in use, by any process.", labels=labels
    )
    total = GaugeMetricFamily("aethermind_device_memory_bytes", "Memory of a device.", labels=labels)
    for name, model_stats in stats.items():
        for usage in model_stats.device_usage:
            used.add_metric([name, usage.device], usage.memory_used_bytes)
            total.add_metric([name, usage.device], usage.memory_total_bytes)
            if usage.utilization is not None:
                utilization.add_metric([name, usage.device], usage.utilization)
    yield utilization
    yield used
    yield total


_USER_TIME, _SYSTEM_TIME, _RESIDENT_PAGES = 11, 12, 21
"""Indices of fields of /proc/PID/stat behind the process name, the second field (proc_pid_stat(5))."""


class EngineProcessCollector(Collector):
    """CPU time and memory of each engine process and its child processes, the ranks of tensor parallelism.

    There are no samples for engines in the server's process, which `ProcessCollector` measures, nor without /proc.
    """

    def __init__(self, models: ModelPool) -> None:
        self._models = models

    def collect(self) -> Iterator[Metric]:
        """The counter of CPU time and the gauge of memory."""
        labels = ["model_name"]
        cpu = CounterMetricFamily("aethermind_engine_cpu_seconds", "CPU time of an engine's process.", labels=labels)
        memory = GaugeMetricFamily(
            "aethermind_engine_resident_memory_bytes", "Memory that an engine's process holds.", labels=labels
        )
        for model in self._models.base_models:
            if model.engine.pid is None:
                continue
            usages = [usage for pid in _process_tree(model.engine.pid) if (usage := _usage(pid)) is not None]
            if usages:
                cpu.add_metric([model.name], sum(seconds for seconds, _ in usages))
                memory.add_metric([model.name], sum(size for _, size in usages))
        yield cpu
        yield memory


def _process_tree(pid: int) -> Iterator[int]:
    """A process and its descendants."""
    yield pid
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:  # the process has ended, or the system has no such file
        return
    for child in children:
        yield from _process_tree(int(child))


def _usage(pid: int) -> tuple[float, int] | None:
    """Seconds of CPU time and resident bytes of a process; None if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    ticks = int(fields[_USER_TIME]) + int(fields[_SYSTEM_TIME])
    return ticks / os.sysconf("SC_CLK_TCK"), int(fields[_RESIDENT_PAGES]) * os.sysconf("SC_PAGE_SIZE")
