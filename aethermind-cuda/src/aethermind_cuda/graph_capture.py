"""Steps of sizes that come again, captured once as CUDA graphs and then launched by one call."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress

from aethermind_cuda.devices import Context
from aethermind_cuda.driver import CudaError, Driver

__all__ = ["CapturedSteps"]

_MOST_GRAPHS = 64


class CapturedSteps:
    """Graphs by the sizes of their runs, the 64 used last. All of them use the plan's own memory.

    The first run of a size goes without a graph: what libraries load when they are first called must not be captured,
    and many a size never comes again.
    """

    def __init__(self, driver: Driver, context: Context) -> None:
        self._driver = driver
        self._context = context
        self._graphs: OrderedDict[tuple[int, ...], int] = OrderedDict()
        self._seen: set[tuple[int, ...]] = set()

    def __del__(self) -> None:
        with suppress(CudaError):  # of a device that is lost
            self.close()

    def __contains__(self, symbols: tuple[int, ...]) -> bool:
        """Whether these sizes came up before."""
        return symbols in self._seen

    def run(self, symbols: tuple[int, ...], stream: int, enqueue: Callable[[int], None]) -> None:
        """Put on a stream what `enqueue(stream)` puts there for these sizes."""
        graph = self._graphs.get(symbols)
        if graph is None and symbols not in self._seen:
            self._seen.add(symbols)
            enqueue(stream)
            return
        if graph is None:
            graph = self._graphs[symbols] = self._capture(stream, enqueue)
            if len(self._graphs) > _MOST_GRAPHS:
                self._give_back(self._graphs.popitem(last=False)[1])
        self._graphs.move_to_end(symbols)
        self._driver.graph_launch(graph, stream)

    def close(self) -> None:
        """Give all graphs back."""
        while self._graphs:
            self._give_back(self._graphs.popitem()[1])

    def _capture(self, stream: int, enqueue: Callable[[int], None]) -> int:
        self._driver.begin_capture(stream)
        try:
            enqueue(stream)
        except BaseException:
            self._abandon(stream)
            raise
        graph = self._driver.graph_instantiate(self._driver.end_capture(stream))
        return self._context.made("graph", graph)

    def _give_back(self, graph: int) -> None:
        self._context.give_back("graph", graph, self._driver.graph_destroy)

    def _abandon(self, stream: int) -> None:
        """End a capture that went wrong, so that the stream can be used again."""
        with suppress(CudaError):
            self._driver.graph_destroy(self._driver.graph_instantiate(self._driver.end_capture(stream)))
