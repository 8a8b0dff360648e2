"""Metrics that are read from the engines when Prometheus scrapes: queues, KV cache, memory and CPU time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from aethermind import __version__

if TYPE_CHECKING:
    from aethermind.engine.observation.engine_stats import EngineStats
    from aethermind.engine.observation.model_info import ModelInfo
    from aethermind.server.model_pool import ModelPool

__all__ = ["EngineCollector", "EngineProcessCollector"]


class _Reading(NamedTuple):
    """A metric whose value is a field of `EngineStats`."""

    name: str
    help: str
    read: Callable[[EngineStats], float]
    kind: type[CounterMetricFamily] | type[GaugeMetricFamily] = GaugeMetricFamily


_READINGS = (
    _Reading("num_requests_running", "Requests in the running batch.", lambda stats: stats.num_running),
    _Reading("num_requests_waiting", "Requests in the waiting queue.", lambda stats: stats.num_waiting),
    _Reading(
        "kv_cache_usage_ratio", "Fraction of the KV cache that requests hold.", lambda stats: stats.kv_cache_usage
    ),
    _Reading(
        "kv_memory_pressure_ratio",
        "Fraction of the KV cache and the swap space together that requests hold.",
        lambda stats: stats.memory_pressure,
    ),
    _Reading("num_sessions", "Sessions whose KV cache is kept.", lambda stats: stats.num_sessions),
    _Reading("num_kv_blocks", "Blocks of the KV cache.", lambda stats: stats.num_blocks),
    _Reading(
        "num_free_kv_blocks",
        "Blocks of the KV cache that are free or can be evicted.",
        lambda stats: stats.num_free_blocks,
    ),
    _Reading(
        "num_state_slots",
        "Slots for recurrent states of requests; 0 for a model without recurrent layers.",
        lambda stats: stats.num_state_slots,
    ),
    _Reading(
        "num_free_state_slots",
        "Slots for recurrent states that no request has.",
        lambda stats: stats.num_free_state_slots,
    ),
    _Reading(
        "num_swapped_blocks",
        "KV blocks of waiting requests in the swap space.",
        lambda stats: stats.num_swapped_blocks,
    ),
    _Reading("swapped_out_bytes", "Bytes swapped out.", lambda stats: stats.swapped_out_bytes, CounterMetricFamily),
    _Reading("swapped_in_bytes", "Bytes swapped in.", lambda stats: stats.swapped_in_bytes, CounterMetricFamily),
    _Reading(
        "num_preemptions",
        "Preemptions of requests.",
        lambda stats: stats.num_preemptions,
        CounterMetricFamily,
    ),
    _Reading(
        "spec_decode_num_draft_tokens",
        "Draft tokens that were verified.",
        lambda stats: stats.num_draft_tokens,
        CounterMetricFamily,
    ),
    _Reading(
        "spec_decode_num_accepted_tokens",
        "Draft tokens that were accepted.",
        lambda stats: stats.num_accepted_tokens,
        CounterMetricFamily,
    ),
    _Reading(
        "spec_decode_acceptance_ratio",
        "Fraction of the verified draft tokens that were accepted.",
        lambda stats: stats.acceptance_rate,
    ),
)

_MEMORY: dict[str, Callable[[ModelInfo], int]] = {
    "weights": lambda info: info.weight_bytes,
    "kv_cache": lambda info: info.kv_cache_bytes,
    "activations": lambda info: info.arena_bytes,
}


class EngineCollector(Collector):
    """The engine statistics, memory and model information of every model of a server."""

    def __init__(self, models: ModelPool) -> None:
        self._models = models

    def collect(self) -> Iterator[Metric]:
        """One metric family for each reading, with a sample for each model."""
        stats = {model.name: model.engine.stats for model in self._models.base_models}
        for reading in _READINGS:
            family = reading.kind(f"aethermind_{reading.name}", reading.help, labels=["model_name"])
            for name, of_model in stats.items():
                family.add_metric([name], reading.read(of_model))
            yield family
        yield from _store_families(stats)
        yield from _device_families(stats)
        memory = GaugeMetricFamily(
            "aethermind_model_memory_bytes", "Device memory, by use.", labels=["model_name", "use"]
        )
        loaded = InfoMetricFamily(
            "aethermind_model", "The model's architecture, device and data types.", labels=["model_name"]
        )
        for model in self._models.base_models:
            info = model.info
            for use, of_info in _MEMORY.items():
                memory.add_metric([model.name, use], of_info(info))
            loaded.add_metric(
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
        yield loaded
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
    for name, of_model in stats.items():
        store = of_model.kv_store
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
    for name, of_model in stats.items():
        for usage in of_model.device_usage:
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
