"""One step's ragged batch, written into the plan's inputs in place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aethermind.cache.kv_cache import KVCache
from aethermind.engine.request import Request
from aethermind.engine.scheduler import ScheduleDecision

__all__ = ["BatchWriter"]


class BatchWriter:
    """Fills token_ids, positions, slot_mapping, cu_seqlens_q, seqlens_k, block_tables and logits_rows (see
    `model.step_inputs`).
    """

    def __init__(self, arrays: Mapping[str, Any], cache: KVCache) -> None:
        self._token_ids = arrays["token_ids"]
        self._positions = arrays["positions"]
        self._slot_mapping = arrays["slot_mapping"]
        self._cu_seqlens_q = arrays["cu_seqlens_q"]
        self._seqlens_k = arrays["seqlens_k"]
        self._block_tables = arrays["block_tables"]
        self._logits_rows = arrays["logits_rows"]
        self._cache = cache

    def write(self, decision: ScheduleDecision) -> tuple[list[Request], int]:
        """Write a step; returns the requests whose rows get logits, in row order, and the width of the block table."""
        cache = self._cache
        tables = [cache.block_table(entry.request.request_id) for entry in decision.scheduled]
        width = max(map(len, tables))
        sampled: list[Request] = []
        position = 0
        self._cu_seqlens_q[0] = 0
        for index, ((request, count, needs_logits), table) in enumerate(zip(decision.scheduled, tables, strict=True)):
            start = request.num_computed_tokens
            end = position + count
            if count == 1:
                self._token_ids[position] = request.all_token_ids[start]
                self._positions[position] = start
                self._slot_mapping[position] = cache.slot(request.request_id, start)
            else:
                self._token_ids[position:end] = request.all_token_ids[start : start + count]
                self._positions[position:end] = range(start, start + count)
                cache.fill_slots(request.request_id, start, count, self._slot_mapping, position)
            self._cu_seqlens_q[index + 1] = end
            self._seqlens_k[index] = start + count
            row = index * width
            self._block_tables[row : row + len(table)] = table
            self._block_tables[row + len(table) : row + width] = 0
            if needs_logits:
                self._logits_rows[len(sampled)] = end - 1
                sampled.append(request)
            position = end
        return sampled, width
