"""The embeddings of one step, written into the plan's inputs in place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aethermind.engine.scheduling.decision import ScheduleDecision

__all__ = ["EmbeddingRows", "needs_embeddings"]


def needs_embeddings(decision: ScheduleDecision) -> bool:
    """Whether some request still has embeddings that its cache does not hold."""
    return any(entry.request.num_computed_tokens < entry.request.embeddings_end for entry in decision.scheduled)


class EmbeddingRows:
    """Fills inputs_embeds and inputs_embeds_rows (see `model.step_inputs`)."""

    def __init__(self, arrays: Mapping[str, Any], hidden_size: int) -> None:
        self._values = arrays["inputs_embeds"].reshape(-1, hidden_size)
        self._rows = arrays["inputs_embeds_rows"]

    def fill(self, decision: ScheduleDecision) -> int:
        """Write the part of every span that the step computes; returns the number of rows."""
        count = first_row = 0
        for request, num_tokens, _ in decision.scheduled:
            begin = request.num_computed_tokens
            for span in request.embeddings:
                start, end = max(span.start, begin), min(span.end, begin + num_tokens)
                if start < end:
                    last = count + end - start
                    self._values[count:last] = span.values[start - span.start : end - span.start]
                    self._rows[count:last] = range(first_row + start - begin, first_row + end - begin)
                    count = last
            first_row += num_tokens
        return count
