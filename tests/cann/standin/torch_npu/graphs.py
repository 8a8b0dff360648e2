"""Graphs with the interface of the real `torch_npu/npu/graphs.py`: work is recorded during capture and run at replay.

During capture nothing may synchronise: hardware fails with error 107027, "Not allow to synchronize captured-stream".
Memory allocated during capture belongs to the graph and is filled at replay. An operator with updatable lengths
(`auto_dispatch_capture`) waits for an `update` in each replay.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from torch_npu import streams

__all__ = ["NPUGraph", "graph", "graph_pool_handle"]

_RENEWABLE = {"npu_fused_infer_attention_score": ("actual_seq_lengths", "actual_seq_lengths_kv")}
_MODES = ("global", "thread_local", "relaxed")


def graph_pool_handle() -> tuple[int, int]:
    return (0, 1)


class NPUGraph:
    """Recorded work, in order, over the recorded memory."""

    def __init__(self) -> None:
        self.auto_dispatch_capture = False
        self._work: list[Callable[[], None]] = []
        self._renewable: list[_Renewable] = []
        self._released: list[Callable[[], None]] = []
        self._stream: streams.Stream | None = None
        self._is_whole = False

    def __del__(self) -> None:
        self.reset()

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        stream = streams.current_stream()
        if stream is streams.default_stream(stream.device):
            raise RuntimeError("NPUGraph: the default stream cannot be captured.")
        if capture_error_mode not in _MODES:
            raise RuntimeError(f"NPUGraph: capture_error_mode {capture_error_mode!r} is none of {_MODES}.")
        if streams.is_capturing():
            raise RuntimeError("NPUGraph: only one capture may be underway.")
        self._stream = stream
        stream.captured_by = self
        streams.begin_capture(threading.get_ident(), anywhere=capture_error_mode == "global")

    def capture_end(self) -> None:
        assert self._stream is not None
        streams.end_capture()
        self._stream.captured_by = None
        self._is_whole = True

    def record(self, work: Any) -> None:
        """Record work submitted to the captured stream."""
        if self.auto_dispatch_capture and getattr(work, "name", None) in _RENEWABLE:
            work = _Renewable(work, _RENEWABLE[work.name])
            self._renewable.append(work)
        self._work.append(work)

    def keep(self, release: Callable[[], None]) -> None:
        """Keep memory that was allocated during capture and dropped: it is freed with the graph."""
        self._released.append(release)

    def replay(self) -> None:
        if not self._is_whole:
            raise RuntimeError("NPUGraph: there is nothing to replay before capture_end.")
        if streams.is_capturing():
            raise RuntimeError("Cannot prepare for replay during capturing stage.")
        self._stream = streams.current_stream()
        for work in self._work:
            self._stream.submit(work)

    def update(self, cpu_update_input: list[Mapping[str, Any]]) -> None:
        if not self.auto_dispatch_capture:
            raise RuntimeError("The current graph configuration does not support update")
        given = cpu_update_input * len(self._renewable) if len(cpu_update_input) == 1 else cpu_update_input
        if len(given) != len(self._renewable):
            raise RuntimeError(f"there are {len(self._renewable)} operators that need to be updated by capture")
        for work, values in zip(self._renewable, given, strict=True):
            work.renew(values)

    def reset(self) -> None:
        while self._released and self._stream is not None:
            self._stream.queue.submit(self._released.pop())
        self._work, self._renewable, self._is_whole = [], [], False

    def pool(self) -> tuple[int, int]:
        return graph_pool_handle()


class _Renewable:
    """Work that waits for an update of its lengths in each replay."""

    def __init__(self, work: Any, names: tuple[str, ...]) -> None:
        self._work = work
        self._names = names
        self._given: deque[dict[str, Any]] = deque()

    def renew(self, values: Mapping[str, Any]) -> None:
        self._given.append({name: list(values[name]) for name in self._names if name in values})

    def __call__(self) -> None:
        if not self._given:
            raise RuntimeError(f"{self._work.name} waits for an update of its graph that never came.")
        self._work(**self._given.popleft())


class graph:  # noqa: N801
    """Captures work submitted in the block, on a separate stream."""

    default_capture_stream: streams.Stream | None = None

    def __init__(
        self,
        npu_graph: NPUGraph,
        pool: Any = None,
        stream: streams.Stream | None = None,
        auto_dispatch_capture: bool = False,
        capture_error_mode: str = "global",
    ) -> None:
        if type(self).default_capture_stream is None:
            type(self).default_capture_stream = streams.Stream()  # on the device that is current at first use
        self._context = streams.stream(stream or type(self).default_capture_stream)
        self._graph = npu_graph
        self._pool = pool
        self._mode = capture_error_mode
        npu_graph.auto_dispatch_capture = auto_dispatch_capture

    def __enter__(self) -> None:
        streams.synchronize()
        self._context.__enter__()
        self._graph.capture_begin(self._pool, capture_error_mode=self._mode)

    def __exit__(self, *error: object) -> None:
        self._graph.capture_end()
        self._context.__exit__(*error)
