"""Writers of a step's ragged batch: they fill the inputs of a plan in place.

Tokens of all requests are concatenated. A *logits row* is a row of the output logits [R, V], from which a token is
sampled; the graphs have one for the last token of each request that needs one, and one for each draft token.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from aethermind.cache.groups import FREED
from aethermind.cache.kv_cache import KVCache
from aethermind.cache.recurrent_states import NULL_SLOT
from aethermind.engine.requests.request import Request
from aethermind.engine.scheduling.decision import ScheduleDecision
from aethermind.graph.low_rank import ADAPTERS, ROW_ADAPTERS

if TYPE_CHECKING:
    from aethermind.sampling.logits_constraints import LogitsConstraints
    from aethermind.sampling.params import SamplingParams
    from aethermind.sampling.rows import PenaltyState

__all__ = [
    "AdapterRows",
    "BatchWriter",
    "DecodePadding",
    "DraftRow",
    "EmbeddingRows",
    "SampledRow",
    "count_accepted",
    "needs_adapters",
    "needs_embeddings",
    "request_of",
]


class DraftRow:
    """A request with its first `num_drafts` drafts as if they were accepted, for the sampler of the row after them."""

    __slots__ = ("num_drafts", "request")

    def __init__(self, request: Request, num_drafts: int) -> None:
        self.request = request
        self.num_drafts = num_drafts

    @property
    def params(self) -> SamplingParams:
        return self.request.params

    @property
    def seed(self) -> int:
        return self.request.seed

    @property
    def stop_token_ids(self) -> frozenset[int]:
        return self.request.stop_token_ids

    @property
    def constraints(self) -> LogitsConstraints | None:
        """The constraints without the guide: it has none yet (`can_speculate`), and drafts must not advance it."""
        constraints = self.request.constraints
        return constraints if constraints is None or constraints.guide is None else replace(constraints, guide=None)

    @property
    def penalties(self) -> PenaltyState:
        return self.request.penalties.fork().update(self.all_token_ids, self.output_token_ids)

    @property
    def prompt_token_ids(self) -> list[int]:
        return self.request.prompt_token_ids

    @property
    def all_token_ids(self) -> list[int]:
        return self.request.all_token_ids + self.request.draft_token_ids[: self.num_drafts]

    @property
    def output_token_ids(self) -> list[int]:
        return self.request.output_token_ids + self.request.draft_token_ids[: self.num_drafts]


SampledRow: TypeAlias = "Request | DraftRow"
"""The request whose parameters and tokens apply to a logits row, or a request with drafts."""


def request_of(sampled_row: SampledRow) -> Request:
    """Return the request of a logits row."""
    return sampled_row.request if isinstance(sampled_row, DraftRow) else sampled_row


def count_accepted(drafts: Sequence[int], sampled: Sequence[int]) -> int:
    """Return how many leading drafts were sampled; `sampled` has a token for each draft and one more.

    Rejection sampling (Leviathan et al.) accepts a deterministic draft with the probability p that the model assigns to
    it, and otherwise draws another token in proportion to p. To draw a token from p and compare it with the draft has
    the same distribution. Draws use the random numbers of the request's positions, as steps without drafts do, so a
    seed gives the same tokens with any drafts or none (drafter-invariant: Daliri, Musco and Suresh, 2025).
    """
    return next((i for i, draft in enumerate(drafts) if draft != sampled[i]), len(drafts))


class BatchWriter:
    """Writes a step's batch: token_ids, positions, slot_mapping, cu_seqlens_q, seqlens_k, block_tables and logits_rows
    (see `model.step_inputs`), the slots and tables of each further group of layers, and state_slots.
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
        self._state_slots = arrays.get("state_slots")
        self._row_range = np.arange(len(self._cu_seqlens_q), dtype=self._cu_seqlens_q.dtype)
        self._token_range = np.arange(len(self._positions), dtype=self._positions.dtype)
        self._block_offsets = np.arange(cache.spec.block_size, dtype=self._slot_mapping.dtype)
        self._cache = cache
        self._groups = range(1, cache.num_groups)
        self._window_slots = [arrays[f"slot_mapping.{group}"] for group in self._groups]
        self._window_tables = [arrays[f"block_tables.{group}"] for group in self._groups]

    def write(
        self, decision: ScheduleDecision, round_width: Callable[[int], int] = lambda width: width
    ) -> tuple[list[SampledRow], int]:
        """Write a step; returns the requests of the logits rows, in row order, and the width of the block tables.

        `round_width` maps the least width, in blocks, to the one to use.
        """
        cache = self._cache
        tables = [cache.block_table(entry.request.request_id) for entry in decision.scheduled]
        width = round_width(max(map(len, tables)))
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
            start -= request.num_dropped_tokens
            num_drafts = count - len(token_ids)
            self._token_ids[position:end] = token_ids + request.draft_token_ids[:num_drafts]
            first = cache.position(request.request_id, start) if cache.has_moved_positions else start
            self._positions[position:end] = self._token_range[:count] + first
            self._slot_mapping[position:end] = self._slots(padded[index], start, count)
            self._cu_seqlens_q[index + 1] = end
            self._seqlens_k[index] = start + count
            if needs_logits:
                self._logits_rows[len(sampled) : len(sampled) + num_drafts + 1] = range(end - 1 - num_drafts, end)
                sampled.append(request)
                sampled.extend(DraftRow(request, number) for number in range(1, num_drafts + 1))
            position = end
        for group in self._groups:
            self._write_group(decision, group, width)
        if self._state_slots is not None:
            self._state_slots[: len(tables)] = [
                cache.state_slot(entry.request.request_id) for entry in decision.scheduled
            ]
        return sampled, width

    def _write_group(self, decision: ScheduleDecision, group: int, width: int) -> None:
        """Write the slots and the block tables, `width` wide, of a further group of layers.

        In place of freed blocks a table has the sequence's first block that is not freed: a kernel that masks the keys
        outside the window, instead of skipping their blocks, then reads memory that exists.
        """
        slots, tables = self._window_slots[group - 1], self._window_tables[group - 1]
        block_size, num_decodes, position = len(self._block_offsets), decision.num_decodes, 0
        padded = tables[: len(decision.scheduled) * width].reshape(-1, width)
        padded[:] = 0
        for index, (request, count, _) in enumerate(decision.scheduled):
            table = self._cache.block_table(request.request_id, group)
            num_freed = table.count(FREED)
            padded[index, : len(table)] = table
            padded[index, :num_freed] = table[num_freed]
            start = request.num_computed_tokens
            if index < num_decodes:
                slots[position] = table[start // block_size] * block_size + start % block_size
            else:
                slots[position : position + count] = self._slots(padded[index], start, count)
            position += count

    def _slots(self, blocks: Any, start: int, count: int) -> Any:
        """Return the KV slots of the `count` tokens from index `start` on, of the sequence with these blocks."""
        block_size = len(self._block_offsets)
        first_block, offset = divmod(start, block_size)
        used = blocks[first_block : (start + count - 1) // block_size + 1].astype(self._block_offsets.dtype)
        return (used[:, None] * block_size + self._block_offsets).reshape(-1)[offset : offset + count]

    def _write_decodes(self, decision: ScheduleDecision, tables: list[array[int]]) -> list[Request]:
        """Write the leading entries, which have one token each; array by array, which is faster than entry by entry."""
        count = decision.num_decodes
        cache, block_size = self._cache, self._cache.spec.block_size
        requests = [entry.request for entry in decision.scheduled[:count]]
        indices = [request.num_computed_tokens - request.num_dropped_tokens for request in requests]
        self._token_ids[:count] = [request.all_token_ids[-1] for request in requests]
        self._positions[:count] = indices
        if cache.has_moved_positions:
            pairs = zip(requests, indices, strict=True)
            self._positions[:count] = [cache.position(request.request_id, index) for request, index in pairs]
        self._slot_mapping[:count] = [
            table[index // block_size] * block_size + index % block_size
            for table, index in zip(tables, indices, strict=False)
        ]
        self._cu_seqlens_q[1 : count + 1] = self._row_range[1 : count + 1]
        self._seqlens_k[:count] = [index + 1 for index in indices]
        self._logits_rows[:count] = self._row_range[:count]
        return requests


def needs_adapters(decision: ScheduleDecision) -> bool:
    """Whether any request of the step has an adapter."""
    return any(entry.request.adapter >= 0 for entry in decision.scheduled)


class AdapterRows:
    """Writes the adapter number of each token and of each logits row, -1 for none.

    These are the inputs `ADAPTERS` and `ROW_ADAPTERS` of graphs with adapters (see `graph.low_rank`).
    """

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self._token_adapters = arrays.get(ADAPTERS)
        self._row_adapters = arrays.get(ROW_ADAPTERS)

    def fill(self, decision: ScheduleDecision, sampled: Sequence[SampledRow]) -> None:
        """Write the adapters of a step; `sampled` are the requests of its logits rows."""
        if self._token_adapters is not None:
            self._fill_tokens(self._token_adapters, decision)
        if self._row_adapters is not None:
            self._row_adapters[: len(sampled)] = [request_of(row).adapter for row in sampled]

    def fill_all(self, adapter: int) -> None:
        """Write one adapter for all tokens and rows."""
        for numbers in (self._token_adapters, self._row_adapters):
            if numbers is not None:
                numbers[:] = adapter

    @staticmethod
    def _fill_tokens(array: Any, decision: ScheduleDecision) -> None:
        position = num_decodes = decision.num_decodes
        array[:num_decodes] = [entry.request.adapter for entry in decision.scheduled[:num_decodes]]
        request: Request
        for request, count, _ in decision.scheduled[num_decodes:]:
            array[position : position + count] = request.adapter
            position += count


def needs_embeddings(decision: ScheduleDecision) -> bool:
    """Whether any request has prompt embeddings that are not computed yet."""
    return any(entry.request.num_computed_tokens < entry.request.embeddings_end for entry in decision.scheduled)


class EmbeddingRows:
    """Writes prompt embeddings: inputs_embeds and inputs_embeds_rows (see `model.step_inputs`)."""

    def __init__(self, arrays: Mapping[str, Any], hidden_size: int) -> None:
        self._values = arrays["inputs_embeds"].reshape(-1, hidden_size)
        self._rows = arrays["inputs_embeds_rows"]

    def fill(self, decision: ScheduleDecision) -> int:
        """Write the rows of every span that the step computes; returns their number."""
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


_PADDING_VALUES = {
    "token_ids": 0,
    "positions": 0,
    "slot_mapping": -1,
    "seqlens_k": 0,
    "logits_rows": 0,
    "temperature": 0.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "uniform": 0.0,
}


class DecodePadding:
    """Pads a decode step to one of the batch sizes that a device prepares (`Capabilities.batch_sizes`), as CUDA graphs
    need it.

    A padding row is a sequence without queries and a token with the slot -1, which kernels do not write. Its recurrent
    state is in the null slot. Its results are never read.
    """

    def __init__(self, arrays: Mapping[str, Any], symbols: Mapping[str, int], batch_sizes: Sequence[int]) -> None:
        self._arrays = arrays
        self._padding_values = _PADDING_VALUES | {name: -1 for name in arrays if name.startswith("slot_mapping.")}
        if "state_slots" in arrays:
            self._padding_values["state_slots"] = NULL_SLOT
        self._tables = [name for name in arrays if name.split(".")[0] == "block_tables"]
        self._max_blocks = symbols["B"]
        max_batch_size = min(symbols[name] for name in ("T", "S", "R"))
        self._batch_sizes = [*(size for size in batch_sizes if size < max_batch_size), max_batch_size]

    def rows(self, num_sequences: int) -> int:
        """Return the number of rows to run with: the least prepared batch size of `num_sequences` or more."""
        return self._batch_sizes[bisect_left(self._batch_sizes, num_sequences)]

    def width(self, num_blocks: int) -> int:
        """Return the width of the block tables to run with: the least power of two of `num_blocks` or more."""
        return min(1 << (num_blocks - 1).bit_length(), self._max_blocks)

    def write(self, num_sequences: int, padded: int, table_width: int) -> None:
        """Write the padding rows from `num_sequences` to `padded`; block tables are `table_width` wide."""
        for name, value in self._padding_values.items():
            self._arrays[name][num_sequences:padded] = value
        self._arrays["cu_seqlens_q"][num_sequences + 1 : padded + 1] = num_sequences
        for name in self._tables:
            self._arrays[name][num_sequences * table_width : padded * table_width] = 0
