"""Which adapter each token and each row of a step has, written into the plan's inputs in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aethermind.engine.requests.request import Request
from aethermind.engine.scheduling.decision import ScheduleDecision
from aethermind.engine.steps.verification import SampledRow, request_of
from aethermind.graph.low_rank import ADAPTERS, ROW_ADAPTERS

__all__ = ["AdapterRows", "needs_adapters"]


def needs_adapters(decision: ScheduleDecision) -> bool:
    """Whether some request has an adapter."""
    return any(entry.request.adapter >= 0 for entry in decision.scheduled)


class AdapterRows:
    """Fills `ADAPTERS` and `ROW_ADAPTERS`, as far as a graph has them (see `graph.low_rank`)."""

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self._of_tokens = arrays.get(ADAPTERS)
        self._of_rows = arrays.get(ROW_ADAPTERS)

    def fill(self, decision: ScheduleDecision, sampled: Sequence[SampledRow]) -> None:
        """Write those of a step, `sampled` being whose rows get logits."""
        if self._of_tokens is not None:
            self._fill_tokens(self._of_tokens, decision)
        if self._of_rows is not None:
            self._of_rows[: len(sampled)] = [request_of(row).adapter for row in sampled]

    def fill_all(self, adapter: int) -> None:
        """Write one adapter for all that may come."""
        for array in (self._of_tokens, self._of_rows):
            if array is not None:
                array[:] = adapter

    @staticmethod
    def _fill_tokens(array: Any, decision: ScheduleDecision) -> None:
        position = num_decodes = decision.num_decodes
        array[:num_decodes] = [entry.request.adapter for entry in decision.scheduled[:num_decodes]]
        request: Request
        for request, count, _ in decision.scheduled[num_decodes:]:
            array[position : position + count] = request.adapter
            position += count
