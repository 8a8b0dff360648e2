"""What the engines' own processes take of the machine. Most of it: they hold the weights, and compute."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from aethermind.server.served_model import ServedModels

__all__ = ["EngineProcessCollector"]

_USER_TIME, _SYSTEM_TIME, _RESIDENT_PAGES = 11, 12, 21
"""Fields of /proc/PID/stat behind the name (proc_pid_stat(5), less the first two)."""


class EngineProcessCollector(Collector):
    """CPU and memory of each engine's process, and of the processes it has started: ranks that share its model.

    Nothing is told of engines in the server's process, whose own metrics have them, nor where there is no /proc.
    """

    def __init__(self, models: ServedModels) -> None:
        self._models = models

    def collect(self) -> Iterator[Metric]:
        """The two families."""
        labels = ["model_name"]
        cpu = CounterMetricFamily("aethermind_engine_cpu_seconds", "CPU time of an engine's process.", labels=labels)
        memory = GaugeMetricFamily(
            "aethermind_engine_resident_memory_bytes", "Memory that an engine's process holds.", labels=labels
        )
        for model in self._models.loaded:
            if model.engine.pid is None:
                continue
            taken = [use for pid in _family(model.engine.pid) if (use := _use(pid)) is not None]
            if taken:
                cpu.add_metric([model.name], sum(seconds for seconds, _ in taken))
                memory.add_metric([model.name], sum(size for _, size in taken))
        yield cpu
        yield memory


def _family(pid: int) -> Iterator[int]:
    """A process and its descendants."""
    yield pid
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:  # it has ended, or the system does not tell
        return
    for child in children:
        yield from _family(int(child))


def _use(pid: int) -> tuple[float, int] | None:
    """Seconds of CPU time and resident bytes of a process; None of one that has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    ticks = int(fields[_USER_TIME]) + int(fields[_SYSTEM_TIME])
    return ticks / os.sysconf("SC_CLK_TCK"), int(fields[_RESIDENT_PAGES]) * os.sysconf("SC_PAGE_SIZE")
