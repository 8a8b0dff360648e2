"""What the engines say of themselves when Prometheus asks: queues, memory, and what was loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from aethermind import __version__

if TYPE_CHECKING:
    from aethermind.engine.observation.engine_stats import EngineStats
    from aethermind.engine.observation.model_info import ModelInfo
    from aethermind.server.served_model import ServedModels

__all__ = ["EngineCollector"]


class _Reading(NamedTuple):
    """A metric whose value is read when it is asked for."""

    name: str
    help: str
    read: Callable[[EngineStats], float]
    kind: type[CounterMetricFamily] | type[GaugeMetricFamily] = GaugeMetricFamily


_READINGS = (
    _Reading("num_requests_running", "Requests that are computed.", lambda stats: stats.num_running),
    _Reading("num_requests_waiting", "Requests that wait to be computed.", lambda stats: stats.num_waiting),
    _Reading(
        "kv_cache_usage_ratio", "Fraction of the KV cache that open requests hold.", lambda stats: stats.kv_cache_usage
    ),
    _Reading(
        "kv_memory_pressure_ratio",
        "The same fraction of the cache and the swap space together.",
        lambda stats: stats.memory_pressure,
    ),
    _Reading("num_sessions", "Conversations whose last turn is kept.", lambda stats: stats.num_sessions),
    _Reading("num_kv_blocks", "Blocks of the KV cache.", lambda stats: stats.num_blocks),
    _Reading("num_free_kv_blocks", "Those that can be had at once.", lambda stats: stats.num_free_blocks),
    _Reading(
        "num_swapped_blocks",
        "KV blocks of waiting requests in the swap space.",
        lambda stats: stats.num_swapped_blocks,
    ),
    _Reading(
        "swapped_out_bytes", "Moved to the swap space.", lambda stats: stats.swapped_out_bytes, CounterMetricFamily
    ),
    _Reading(
        "swapped_in_bytes", "Moved back from the swap space.", lambda stats: stats.swapped_in_bytes, CounterMetricFamily
    ),
    _Reading(
        "num_preemptions",
        "Times that a request gave way to others.",
        lambda stats: stats.num_preemptions,
        CounterMetricFamily,
    ),
    _Reading(
        "spec_decode_num_draft_tokens",
        "Drafts that were checked.",
        lambda stats: stats.num_draft_tokens,
        CounterMetricFamily,
    ),
    _Reading(
        "spec_decode_num_accepted_tokens",
        "Drafts that were right.",
        lambda stats: stats.num_accepted_tokens,
        CounterMetricFamily,
    ),
    _Reading(
        "spec_decode_acceptance_ratio",
        "Fraction of the checked drafts that were right.",
        lambda stats: stats.acceptance_rate,
    ),
)

_MEMORY: dict[str, Callable[[ModelInfo], int]] = {
    "weights": lambda info: info.weight_bytes,
    "kv_cache": lambda info: info.kv_cache_bytes,
    "activations": lambda info: info.arena_bytes,
}


class EngineCollector(Collector):
    """The readings of every model of a server."""

    def __init__(self, models: ServedModels) -> None:
        self._models = models

    def collect(self) -> Iterator[Metric]:
        """One family for each reading."""
        stats = {model.name: model.engine.stats for model in self._models.loaded}
        for reading in _READINGS:
            family = reading.kind(f"aethermind_{reading.name}", reading.help, labels=["model_name"])
            for name, of_model in stats.items():
                family.add_metric([name], reading.read(of_model))
            yield family
        yield from _store_families(stats)
        memory = GaugeMetricFamily(
            "aethermind_model_memory_bytes", "Taken on the device, by use.", labels=["model_name", "use"]
        )
        loaded = InfoMetricFamily("aethermind_model", "What is loaded, and where.", labels=["model_name"])
        for model in self._models.loaded:
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
        version = InfoMetricFamily("aethermind_build", "What runs.")
        version.add_metric([], {"version": __version__})
        yield version


def _store_families(stats: Mapping[str, EngineStats]) -> Iterator[Metric]:
    """What became of the blocks of KV stores, for models that have one."""
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
