"""Decode steps captured as graphs of torch_npu, and then launched by one call each."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Hashable

import torch

from aethermind.errors import DeviceError
from aethermind.log import get_logger
from aethermind_cann.run_memo import Hosted, Questions, remembering

__all__ = ["CapturedSteps", "can_capture"]

_MOST_GRAPHS = 32
"""A graph takes streams of the device, of which there are about two thousand."""
_log = get_logger(__name__)

Key = tuple[tuple[int, ...], tuple[Hashable, ...]]


def can_capture() -> bool:
    """Whether this torch_npu has graphs, and nobody forbids them by AETHERMIND_CANN_GRAPHS=0."""
    return hasattr(torch.npu, "NPUGraph") and os.environ.get("AETHERMIND_CANN_GRAPHS") != "0"


class CapturedSteps:
    """Graphs by the sizes of their runs and by what their steps decide from values on the host; the 32 used last.

    The first run of a size finds out what its steps ask. From then on that is read before the run: the first one with
    these answers goes without a graph, because what is made at a first call must not be captured; the next is captured.
    All graphs use the plan's own memory, and share what their steps allocate, because they run one after another.
    """

    def __init__(self, device: int) -> None:
        self._stream = torch.npu.Stream(device)
        self._graphs: OrderedDict[Key, torch.npu.NPUGraph] = OrderedDict()
        self._seen: set[Key] = set()
        self._pool = torch.npu.graph_pool_handle()
        self._is_refused = False

    def run(self, symbols: tuple[int, ...], questions: Questions, enqueue: Callable[[], None]) -> None:
        """Put on the current stream what `enqueue()` puts there; `questions` are those of these sizes so far."""
        if questions.is_open or self._is_refused:
            with remembering():
                enqueue()
            return
        hosted = questions.read()
        key = symbols, questions.answers(hosted)
        if key not in self._graphs and (key not in self._seen or not self._capture(key, questions, hosted, enqueue)):
            self._run_once(key, questions, hosted, enqueue)
            return
        self._graphs.move_to_end(key)
        graph = self._graphs[key]
        if questions.has_renewal:
            graph.update([questions.numbers(hosted)])
        graph.replay()

    def _run_once(self, key: Key, questions: Questions, hosted: Hosted, enqueue: Callable[[], None]) -> None:
        num_known = questions.count
        with remembering(questions, hosted):
            enqueue()
        if questions.count == num_known:
            self._seen.add(key)
        questions.is_open |= questions.has_renewal and not hasattr(torch.npu.NPUGraph, "update")

    def _capture(self, key: Key, questions: Questions, hosted: Hosted, enqueue: Callable[[], None]) -> bool:
        """Whether it went well; if not, no further step is captured, and a line in the log says why."""
        graph = torch.npu.NPUGraph()
        options = {"auto_dispatch_capture": True} if questions.has_renewal else {}
        try:
            with (
                torch.npu.stream(torch.npu.current_stream()),  # a capture that cannot begin leaves another one current
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
