"""CUDA graphs of the runs of a plan: a run of sizes that recur is captured once, then launched by one call."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress

from aethermind_cuda.devices import Context
from aethermind_cuda.driver import CudaError, Driver

__all__ = ["CudaGraphCache"]

_MAX_GRAPHS = 64


class CudaGraphCache:
    """An LRU cache of 64 graphs by run sizes. All graphs use the plan's memory.

    The first run of a size is not captured: library initialisation must not be captured, and many sizes do not recur.
    """

    def __init__(self, driver: Driver, context: Context) -> None:
        self._driver = driver
        self._context = context
        self._graphs: OrderedDict[tuple[int, ...], int] = OrderedDict()
        self._seen: set[tuple[int, ...]] = set()

    def __del__(self) -> None:
        with suppress(CudaError):  # the device may be lost
            self.close()

    def __contains__(self, symbols: tuple[int, ...]) -> bool:
        """Whether these sizes have run before."""
        return symbols in self._seen

    def run(self, symbols: tuple[int, ...], stream: int, enqueue: Callable[[int], None]) -> None:
        """Enqueue the run of these sizes, by `enqueue(stream)` or as a graph captured from it."""
        graph = self._graphs.get(symbols)
        if graph is None and symbols not in self._seen:
            self._seen.add(symbols)
            enqueue(stream)
            return
        if graph is None:
            graph = self._graphs[symbols] = self._capture(stream, enqueue)
            if len(self._graphs) > _MAX_GRAPHS:
                self._destroy(self._graphs.popitem(last=False)[1])
        self._graphs.move_to_end(symbols)
        self._driver.graph_launch(graph, stream)

    def close(self) -> None:
        """Destroy all graphs."""
        while self._graphs:
            self._destroy(self._graphs.popitem()[1])

    def _capture(self, stream: int, enqueue: Callable[[int], None]) -> int:
        self._driver.begin_capture(stream)
        try:
            enqueue(stream)
        except BaseException:
            self._end_failed_capture(stream)
            raise
        graph = self._driver.graph_instantiate(self._driver.end_capture(stream))
        return self._context.register("graph", graph)

    def _destroy(self, graph: int) -> None:
        self._context.release("graph", graph, self._driver.graph_exec_destroy)

    def _end_failed_capture(self, stream: int) -> None:
        """End a failed capture, so that the stream can be used again."""
        with suppress(CudaError):
            self._driver.graph_exec_destroy(self._driver.graph_instantiate(self._driver.end_capture(stream)))
