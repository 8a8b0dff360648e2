"""NPU graphs of decode steps: captured once, then launched by one call."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Hashable

import torch

from aethermind.errors import DeviceError
from aethermind.log import get_logger
from aethermind_cann.run_memo import Hosted, HostQueries, remembering

__all__ = ["CapturedSteps", "can_capture"]

_MOST_GRAPHS = 32
"""Capacity: each graph takes device streams, of which there are about two thousand."""
_log = get_logger(__name__)

Key = tuple[tuple[int, ...], tuple[Hashable, ...]]


def can_capture() -> bool:
    """Whether torch_npu has graphs and AETHERMIND_CANN_GRAPHS=0 does not disable them."""
    return hasattr(torch.npu, "NPUGraph") and os.environ.get("AETHERMIND_CANN_GRAPHS") != "0"


class CapturedSteps:
    """An LRU cache of 32 graphs, by run sizes and by the decisions that their steps make from values on the host.

    The first run of a size records the host queries of its steps. Later runs evaluate them first: the first run with
    some answers is not captured, because one-time initialisation must not be captured; the next one is. All graphs use
    the plan's memory and share their temporary allocations, because they run one after another.
    """

    def __init__(self, device: int) -> None:
        self._stream = torch.npu.Stream(device)
        self._graphs: OrderedDict[Key, torch.npu.NPUGraph] = OrderedDict()
        self._seen: set[Key] = set()
        self._pool = torch.npu.graph_pool_handle()
        self._is_refused = False

    def run(self, symbols: tuple[int, ...], queries: HostQueries, enqueue: Callable[[], None]) -> None:
        """Enqueue the run on the current stream, by `enqueue()` or as a graph; `queries` are the host queries recorded
        for these sizes.
        """
        if queries.is_open or self._is_refused:
            with remembering():
                enqueue()
            return
        hosted = queries.read()
        key = symbols, queries.answers(hosted)
        if key not in self._graphs and (key not in self._seen or not self._capture(key, queries, hosted, enqueue)):
            self._run_once(key, queries, hosted, enqueue)
            return
        self._graphs.move_to_end(key)
        graph = self._graphs[key]
        if queries.has_renewal:
            graph.update([queries.numbers(hosted)])
        graph.replay()

    def _run_once(self, key: Key, queries: HostQueries, hosted: Hosted, enqueue: Callable[[], None]) -> None:
        num_known = queries.count
        with remembering(queries, hosted):
            enqueue()
        if queries.count == num_known:
            self._seen.add(key)
        queries.is_open |= queries.has_renewal and not hasattr(torch.npu.NPUGraph, "update")

    def _capture(self, key: Key, queries: HostQueries, hosted: Hosted, enqueue: Callable[[], None]) -> bool:
        """Capture a run; returns whether that succeeded. After a failure, which is logged, nothing is captured any
        more.
        """
        graph = torch.npu.NPUGraph()
        options = {"auto_dispatch_capture": True} if queries.has_renewal else {}
        try:
            with (
                torch.npu.stream(torch.npu.current_stream()),  # restores the stream if the capture fails to begin
                torch.npu.graph(graph, self._pool, self._stream, capture_error_mode="thread_local", **options),
                remembering(hosted=hosted),
            ):
                enqueue()
        except (RuntimeError, DeviceError) as error:
            self._is_refused = True
            reason = (str(error) or type(error).__name__).splitlines()[0]
            _log.warning("Decode steps run without graphs from here on, because one could not be captured: %s", reason)
            return False
        self._graphs[key] = graph
        if len(self._graphs) > _MOST_GRAPHS:
            self._graphs.popitem(last=False)[1].reset()
        return True
