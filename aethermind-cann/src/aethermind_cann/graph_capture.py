"""NPU graphs of decode steps: captured once, then replayed by one call."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Hashable

import torch

from aethermind.errors import DeviceError
from aethermind.log import get_logger
from aethermind_cann.run_memo import HostQueries, HostValues, memoised_run

__all__ = ["NpuGraphCache", "can_capture"]

_MAX_GRAPHS = 32
"""Graphs in the cache. Each graph uses device streams, of which there are about two thousand."""
_log = get_logger(__name__)

Key = tuple[tuple[int, ...], tuple[Hashable, ...]]
"""The sizes of a run, and the decisions of its kernels."""


def can_capture() -> bool:
    """Whether torch_npu has graphs and AETHERMIND_CANN_GRAPHS=0 does not disable them."""
    return hasattr(torch.npu, "NPUGraph") and os.environ.get("AETHERMIND_CANN_GRAPHS") != "0"


class NpuGraphCache:
    """An LRU cache of 32 graphs, by sizes and by the decisions that kernels make from device values read on the host.

    The first run of certain sizes records which values its kernels read (`HostQueries`). Later runs read them first.
    The first run with certain decisions is not captured, because one-time initialisation must not be captured; the
    second is. All graphs use the plan's memory and share their temporary allocations, because they run one after
    another.
    """

    def __init__(self, device: int) -> None:
        self._stream = torch.npu.Stream(device)
        self._graphs: OrderedDict[Key, torch.npu.NPUGraph] = OrderedDict()
        self._seen: set[Key] = set()
        self._pool = torch.npu.graph_pool_handle()
        self._is_disabled = False

    def run(self, symbols: tuple[int, ...], queries: HostQueries, enqueue: Callable[[], None]) -> None:
        """Enqueue the run on the current stream, by `enqueue()` or as a graph; `queries` are the host queries recorded
        for these sizes.
        """
        if queries.blocks_replay or self._is_disabled:
            with memoised_run():
                enqueue()
            return
        host_values = queries.read()
        key = symbols, queries.decisions(host_values)
        if key not in self._graphs and (key not in self._seen or not self._capture(key, queries, host_values, enqueue)):
            self._run_once(key, queries, host_values, enqueue)
            return
        self._graphs.move_to_end(key)
        graph = self._graphs[key]
        if queries.has_updates:
            graph.update([queries.updates(host_values)])
        graph.replay()

    def _run_once(self, key: Key, queries: HostQueries, host_values: HostValues, enqueue: Callable[[], None]) -> None:
        num_known = queries.count
        with memoised_run(queries, host_values):
            enqueue()
        if queries.count == num_known:
            self._seen.add(key)
        queries.blocks_replay |= queries.has_updates and not hasattr(torch.npu.NPUGraph, "update")

    def _capture(self, key: Key, queries: HostQueries, host_values: HostValues, enqueue: Callable[[], None]) -> bool:
        """Capture a run; returns whether that succeeded. After a failure, which is logged, nothing is captured any
        more.
        """
        graph = torch.npu.NPUGraph()
        options = {"auto_dispatch_capture": True} if queries.has_updates else {}
        try:
            with (
                torch.npu.stream(torch.npu.current_stream()),  # restores the stream if the capture fails to begin
                torch.npu.graph(graph, self._pool, self._stream, capture_error_mode="thread_local", **options),
                memoised_run(host_values=host_values),
            ):
                enqueue()
        except (RuntimeError, DeviceError) as error:
            self._is_disabled = True
            reason = (str(error) or type(error).__name__).splitlines()[0]
            _log.warning("Decode steps run without graphs from here on, because one could not be captured: %s", reason)
            return False
        self._graphs[key] = graph
        if len(self._graphs) > _MAX_GRAPHS:
            self._graphs.popitem(last=False)[1].reset()
        return True
