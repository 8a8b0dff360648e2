"""Attention of Qwen2-7B over a paged cache: decodes, prompts, chunks, and both at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from tests.cuda.check.bench import Bench, Case, Facts, within
from tests.cuda.check.gpu import error_of
from torch.nn import functional

__all__ = ["Attention"]

_ROUNDED_WEIGHTS = 8e-3
"""The bar: softmax weights are rounded to bfloat16, and so is the result."""


@dataclass(frozen=True)
class Attention:
    """Its cases by group."""

    bench: Bench

    def decode(self) -> Iterator[Case]:
        """Attention of a query each over caches of elements."""
        for batch, keys in self.bench.sizes.decodes:
            yield f"decode {batch} x {keys}", partial(self._attention, [(1, keys)] * batch, None)
        for code in (torch.int8, torch.float8_e4m3fn):
            batch, keys = self.bench.sizes.decodes[-1]
            yield f"decode {batch} x {keys} {str(code)[6:]}", partial(self._attention, [(1, keys)] * batch, code)

    def prefill(self) -> Iterator[Case]:
        """Attention of prompts, of chunks behind others, of speculated tokens, and mixed with decodes."""
        for sequences in self.bench.sizes.prefills:
            first = ", ".join(f"{queries} of {keys}" for queries, keys in dict.fromkeys(sequences))
            yield f"prefill {first}", partial(self._attention, list(sequences), None)

    def _attention(self, sequences: list[tuple[int, int]], code: torch.dtype | None, facts: Facts) -> None:
        gpu, sizes = self.bench.gpu, self.bench.sizes
        num_queries, scale = sum(queries for queries, _ in sequences), sizes.head_dim**-0.5
        q = self.bench.normal(num_queries, sizes.heads, sizes.head_dim)
        out = self.bench.poisoned(*q.shape)
        counts = [-(-keys // 16) for _, keys in sequences]
        shape = (sum(counts) + 1, sizes.kv_heads, 16, sizes.head_dim)
        places = (torch.randperm(shape[0] - 1, device=gpu.device) + 1).int()
        tables = torch.zeros(len(sequences), max(counts), dtype=torch.int32, device=gpu.device)
        begin = 0
        for row, count in enumerate(counts):
            tables[row, :count] = places[begin : begin + count]
            begin += count
        starts = [0]
        for queries, _ in sequences:
            starts.append(starts[-1] + queries)
        cu, lengths = (
            torch.tensor(values, dtype=torch.int32, device=gpu.device)
            for values in (starts, [keys for _, keys in sequences])
        )
        bytes_of_cache = 2 * shape[0] * sizes.kv_heads * 16 * sizes.head_dim * (2 if code is None else 1)
        caches = [[self.bench.normal(*shape) for _ in range(2)] for _ in range(self.bench.sets(bytes_of_cache))]
        arguments, values, operator = [], [], "paged_attention"
        for pair in caches:
            if code is None:
                arguments.append((q, *pair, cu, lengths, tables))
                values.append(pair)
            else:
                operator = "paged_attention_quantized"
                quantized, scales = zip(*(_encoded(cache, code) for cache in pair), strict=True)
                arguments.append((q, *quantized, cu, lengths, tables, *scales))
                values.append([c.float() * s[..., None] for c, s in zip(quantized, scales, strict=True)])
        attributes = {"scale": scale, "window": 0}
        calls = [gpu.bind(operator, inputs, (out,), attributes) for inputs in arguments]
        gpu.run(calls[0])
        facts["error"] = self._attention_error(out, q, values[0], tables, sequences, starts, scale)
        self.bench.time(facts, calls, self._attention_by_torch(sequences, scale))
        seen = sum(keys for _, keys in sequences) * 2 * sizes.kv_heads * sizes.head_dim * (2 if code is None else 1)
        pairs = sum(queries * keys - queries * (queries - 1) // 2 for queries, keys in sequences)
        self.bench.rates(facts, seen, 4 * sizes.heads * sizes.head_dim * pairs)
        within(facts, _ROUNDED_WEIGHTS)

    def _attention_error(
        self, out: Any, q: Any, cache: Any, tables: Any, sequences: Any, starts: list[int], scale: float
    ) -> float:
        """Of at most four sequences, and of a long prompt's first and last queries."""
        sizes, worst = self.bench.sizes, 0.0
        group = sizes.heads // sizes.kv_heads
        for row in {0, 1, len(sequences) // 2, len(sequences) - 1} & set(range(len(sequences))):
            queries, keys = sequences[row]
            blocks = tables[row, : -(-keys // 16)].long()
            k, v = (
                part[blocks].transpose(0, 1).reshape(sizes.kv_heads, -1, sizes.head_dim)[:, :keys] for part in cache
            )
            chosen = torch.arange(queries, device=q.device)
            if queries > 1024:
                chosen = torch.cat([chosen[:512], chosen[queries // 2 : queries // 2 + 128], chosen[-512:]])
            mine = q[starts[row] + chosen].float().reshape(len(chosen), sizes.kv_heads, group, -1)
            for head in range(sizes.kv_heads):
                scores = torch.einsum("qgc,kc->gqk", mine[:, head], k[head].float()) * scale
                hidden = torch.arange(keys, device=q.device)[None] > (chosen + keys - queries)[:, None]
                weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
                reference = torch.einsum("gqk,kc->qgc", weights, v[head].float())
                got = out[starts[row] + chosen].reshape(len(chosen), sizes.kv_heads, group, -1)[:, head]
                worst = max(worst, error_of(got, reference))
        return worst

    def _attention_by_torch(self, sequences: list[tuple[int, int]], scale: float) -> list[Callable[[], object]]:
        """scaled_dot_product_attention over keys that lie together: of one kind of sequence, or nothing."""
        sizes, (queries, keys) = self.bench.sizes, sequences[0]
        if len(set(sequences)) > 1 or not torch.cuda.is_available() or (1 < queries < keys):
            return []
        batch = len(sequences)

        def shaped(heads: int, length: int) -> torch.Tensor:
            return self.bench.normal(batch, heads, length, sizes.head_dim)

        q, k, v = shaped(sizes.heads, queries), shaped(sizes.kv_heads, keys), shaped(sizes.kv_heads, keys)
        attend = functional.scaled_dot_product_attention
        return [partial(attend, q, k, v, is_causal=queries > 1, scale=scale, enable_gqa=True)]


def _encoded(cache: torch.Tensor, code: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """A cache as codes, and the scale of each vector of it."""
    largest = 127.0 if code is torch.int8 else 448.0
    scales = cache.float().abs().amax(-1) / largest
    values = cache.float() / scales[..., None].clamp_min(1e-30)
    return (values.round() if code is torch.int8 else values).to(code), scales
