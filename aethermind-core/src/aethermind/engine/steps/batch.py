"""One step's ragged batch, written into the plan's inputs in place."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from typing import Any

from aethermind.cache.kv_cache import KVCache
from aethermind.engine.requests.request import Request
from aethermind.engine.scheduling.decision import ScheduleDecision
from aethermind.engine.steps.verification import DraftRow, SampledRow

__all__ = ["BatchWriter"]


class BatchWriter:
    """Fills token_ids, positions, slot_mapping, cu_seqlens_q, seqlens_k, block_tables and logits_rows (see
    `model.step_inputs`).
    """

    def __init__(self, arrays: Mapping[str, Any], cache: KVCache) -> None:
        import numpy as np

        self._token_ids = arrays["token_ids"]
        self._positions = arrays["positions"]
        self._slot_mapping = arrays["slot_mapping"]
        self._cu_seqlens_q = arrays["cu_seqlens_q"]
        self._seqlens_k = arrays["seqlens_k"]
        self._block_tables = arrays["block_tables"]
        self._logits_rows = arrays["logits_rows"]
        self._ramp = np.arange(len(self._cu_seqlens_q), dtype=self._cu_seqlens_q.dtype)
        self._indices = np.arange(len(self._positions), dtype=self._positions.dtype)
        self._offsets = np.arange(cache.spec.block_size, dtype=self._slot_mapping.dtype)
        self._cache = cache

    def write(
        self, decision: ScheduleDecision, widen: Callable[[int], int] = lambda width: width
    ) -> tuple[list[SampledRow], int]:
        """Write a step; returns whose rows get logits, in row order, and the width of the block table.

        `widen` turns the width that is needed into the one to have.
        """
        cache = self._cache
        tables = [cache.block_table(entry.request.request_id) for entry in decision.scheduled]
        width = widen(max(map(len, tables)))
        padded = self._block_tables[: len(tables) * width].reshape(len(tables), width)
        padded[:] = 0
        for row, table in zip(padded, tables, strict=True):
            row[: len(table)] = table
        self._cu_seqlens_q[0] = 0
        sampled: list[SampledRow] = list(self._write_decodes(decision, tables))
        position = num_decodes = decision.num_decodes
        for index, (request, count, needs_logits) in enumerate(decision.scheduled[num_decodes:], start=num_decodes):
            start = request.num_computed_tokens
            end = position + count
            token_ids = request.all_token_ids[start : start + count]
            num_drafts = count - len(token_ids)
            self._token_ids[position:end] = token_ids + request.draft_token_ids[:num_drafts]
            first = cache.position(request.request_id, start) if cache.has_moved else start
            self._positions[position:end] = self._indices[:count] + first
            self._slot_mapping[position:end] = self._slots(padded[index], start, count)
            self._cu_seqlens_q[index + 1] = end
            self._seqlens_k[index] = start + count
            if needs_logits:
                self._logits_rows[len(sampled) : len(sampled) + num_drafts + 1] = range(end - 1 - num_drafts, end)
                sampled.append(request)
                sampled.extend(DraftRow(request, number) for number in range(1, num_drafts + 1))
            position = end
        return sampled, width

    def _slots(self, blocks: Any, start: int, count: int) -> Any:
        """The slots of `count` tokens from index `start` on of the sequence that has these blocks."""
        block_size = len(self._offsets)
        first, offset = divmod(start, block_size)
        used = blocks[first : (start + count - 1) // block_size + 1].astype(self._offsets.dtype)
        return (used[:, None] * block_size + self._offsets).reshape(-1)[offset : offset + count]

    def _write_decodes(self, decision: ScheduleDecision, tables: list[array[int]]) -> list[Request]:
        """Write the leading entries, of one token each, array by array: element by element costs ten times that."""
        count = decision.num_decodes
        cache, block_size = self._cache, self._cache.spec.block_size
        requests = [entry.request for entry in decision.scheduled[:count]]
        indices = [request.num_computed_tokens for request in requests]
        self._token_ids[:count] = [request.all_token_ids[-1] for request in requests]
        self._positions[:count] = indices
        if cache.has_moved:
            pairs = zip(requests, indices, strict=True)
            self._positions[:count] = [cache.position(request.request_id, index) for request, index in pairs]
        self._slot_mapping[:count] = [
            table[index // block_size] * block_size + index % block_size
            for table, index in zip(tables, indices, strict=False)
        ]
        self._cu_seqlens_q[1 : count + 1] = self._ramp[1 : count + 1]
        self._seqlens_k[:count] = [index + 1 for index in indices]
        self._logits_rows[:count] = self._ramp[:count]
        return requests
