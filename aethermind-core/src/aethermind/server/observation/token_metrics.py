"""What is counted for every token: numbers of our own, because the library's lock and look up in every call.

They belong to the event loop, as all metrics of a server do that are read where they are written.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

__all__ = ["TokenCollector"]


class TokenCollector(Collector):
    """Tokens written by each model, and the times between them. Mutable."""

    def __init__(self, bounds_s: Sequence[float]) -> None:
        """`bounds_s` are the upper bounds of the histogram's buckets."""
        self._bounds_s = bounds_s
        self._models: dict[str, _Tokens] = {}

    def count(self, model: str, num_new: int, gap_s: float | None) -> None:
        """Count tokens that came together, `gap_s` each after the one before; None for the first of an answer."""
        tokens = self._models.get(model)
        if tokens is None:
            tokens = self._models[model] = _Tokens(len(self._bounds_s) + 1)
        tokens.num_written += num_new
        if gap_s is not None:
            tokens.num_gaps[bisect_left(self._bounds_s, gap_s)] += num_new
            tokens.gaps_s += gap_s * num_new

    def collect(self) -> Iterator[Metric]:
        """The two families."""
        labels = ["model_name"]
        written = CounterMetricFamily("aethermind_generation_tokens", "Tokens written.", labels=labels)
        gaps = HistogramMetricFamily("aethermind_inter_token_latency_seconds", "Between two tokens.", labels=labels)
        names = [*map(str, self._bounds_s), "+Inf"]
        for model, tokens in self._models.items():
            written.add_metric([model], tokens.num_written)
            gaps.add_metric([model], list(zip(names, accumulate(tokens.num_gaps), strict=True)), tokens.gaps_s)
        yield written
        yield gaps


class _Tokens:
    __slots__ = ("gaps_s", "num_gaps", "num_written")

    def __init__(self, num_buckets: int) -> None:
        self.num_written = 0
        self.num_gaps = [0] * num_buckets
        self.gaps_s = 0.0
