"""Attention over a paged cache: decodes, prompts, chunks, and both at once; and scores that are changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from tests.cuda.check.bench import Bench, Case, Facts, Heads, within
from tests.cuda.check.gpu import error_of
from torch.nn import functional

__all__ = ["Attention"]

_ROUNDED_WEIGHTS = 8e-3
"""The bar: softmax weights are rounded to bfloat16, and so is the result."""


@dataclass(frozen=True)
class _Scoring:
    """What is done to the scores of some heads; `sinks` and `slopes` are float32 [heads] or absent."""

    heads: Heads
    sinks: torch.Tensor | None
    slopes: torch.Tensor | None

    @classmethod
    def random(cls, heads: Heads, device: torch.device) -> _Scoring:
        """Sinks around the largest scores, and the slopes of ALiBi."""
        sinks = 2 + torch.randn(heads.heads, device=device) if heads.has_sinks else None
        slopes = torch.exp2(-8 * torch.arange(1, heads.heads + 1, device=device) / heads.heads)
        return cls(heads, sinks, slopes if heads.has_slopes else None)

    @property
    def scale(self) -> float:
        return float(self.heads.head_dim**-0.5)

    @property
    def inputs(self) -> tuple[torch.Tensor | None, ...]:
        """The last inputs of the operator."""
        return self.sinks, self.slopes

    def weights(self, scores: torch.Tensor, positions: torch.Tensor, first: int) -> torch.Tensor:
        """Softmax weights of scores [G, Q, K] of the heads from `first` on, for queries at these positions."""
        mine = slice(first, first + len(scores))
        distances = positions[:, None] - torch.arange(scores.shape[2], device=scores.device)[None]
        if self.heads.softcap:
            scores = self.heads.softcap * torch.tanh(scores / self.heads.softcap)
        if self.slopes is not None:
            scores = scores - self.slopes[mine, None, None] * distances
        hidden = distances < 0
        if self.heads.window:
            hidden |= distances >= self.heads.window
        scores = scores.masked_fill(hidden, -torch.inf)
        if self.sinks is not None:
            sinks = self.sinks[mine, None, None].expand(*scores.shape[:2], 1)
            return torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]
        return scores.softmax(-1)


@dataclass(frozen=True)
class Attention:
    """Its cases by group."""

    bench: Bench

    def decode(self) -> Iterator[Case]:
        """Attention of a query each over caches of elements."""
        for batch, keys in self.bench.sizes.decodes:
            yield f"decode {batch} x {keys}", partial(self._attention, [(1, keys)] * batch, None, self._plain)
        for code in (torch.int8, torch.float8_e4m3fn):
            batch, keys = self.bench.sizes.decodes[-1]
            name = f"decode {batch} x {keys} {str(code)[6:]}"
            yield name, partial(self._attention, [(1, keys)] * batch, code, self._plain)

    def prefill(self) -> Iterator[Case]:
        """Attention of prompts, of chunks behind others, of speculated tokens, and mixed with decodes."""
        for sequences in self.bench.sizes.prefills:
            first = ", ".join(f"{queries} of {keys}" for queries, keys in dict.fromkeys(sequences))
            yield f"prefill {first}", partial(self._attention, list(sequences), None, self._plain)

    def scored(self) -> Iterator[Case]:
        """Decodes and prompts with soft caps, sinks, slopes and windows."""
        for heads in self.bench.sizes.scored_heads:
            for sequences in self.bench.sizes.scored_batches:
                queries, keys = sequences[0]
                name = f"{heads.name} {len(sequences)} x {queries} of {keys}"
                yield name, partial(self._attention, list(sequences), None, heads)

    @property
    def _plain(self) -> Heads:
        sizes = self.bench.sizes
        return Heads("plain", sizes.heads, sizes.kv_heads, sizes.head_dim)

    def _attention(
        self, sequences: list[tuple[int, int]], code: torch.dtype | None, heads: Heads, facts: Facts
    ) -> None:
        gpu = self.bench.gpu
        num_queries = sum(queries for queries, _ in sequences)
        q = self.bench.normal(num_queries, heads.heads, heads.head_dim)
        out = self.bench.poisoned(*q.shape)
        counts = [-(-keys // 16) for _, keys in sequences]
        shape = (sum(counts) + 1, heads.kv_heads, 16, heads.head_dim)
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
        bytes_of_cache = 2 * shape[0] * heads.kv_heads * 16 * heads.head_dim * (2 if code is None else 1)
        caches = [[self.bench.normal(*shape) for _ in range(2)] for _ in range(self.bench.sets(bytes_of_cache))]
        scoring = _Scoring.random(heads, gpu.device)
        arguments, values, operator = [], [], "paged_attention"
        for pair in caches:
            if code is None:
                arguments.append((q, *pair, cu, lengths, tables, *scoring.inputs))
                values.append(pair)
            else:
                operator = "paged_attention_quantized"
                quantized, scales = zip(*(_encoded(cache, code) for cache in pair), strict=True)
                arguments.append((q, *quantized, cu, lengths, tables, *scales, *scoring.inputs))
                values.append([c.float() * s[..., None] for c, s in zip(quantized, scales, strict=True)])
        attributes = {"scale": scoring.scale, "window": heads.window, "softcap": heads.softcap}
        calls = [gpu.bind(operator, inputs, (out,), attributes) for inputs in arguments]
        gpu.run(calls[0])
        facts["error"] = self._attention_error(out, q, values[0], tables, sequences, starts, scoring)
        by_torch = self._attention_by_torch(sequences, scoring.scale) if heads == self._plain else []
        self.bench.time(facts, calls, by_torch)
        seen = sum(min(keys, queries + heads.window - 1) if heads.window else keys for queries, keys in sequences)
        pairs = sum(_num_pairs(queries, keys, heads.window) for queries, keys in sequences)
        nbytes = 2 * seen * heads.kv_heads * heads.head_dim * (2 if code is None else 1)
        self.bench.rates(facts, nbytes, 4 * heads.heads * heads.head_dim * pairs)
        within(facts, _ROUNDED_WEIGHTS)

    def _attention_error(
        self, out: Any, q: Any, cache: Any, tables: Any, sequences: Any, starts: list[int], scoring: _Scoring
    ) -> float:
        """Of at most four sequences, and of a long prompt's first and last queries."""
        heads, worst = scoring.heads, 0.0
        group = heads.heads // heads.kv_heads
        for row in {0, 1, len(sequences) // 2, len(sequences) - 1} & set(range(len(sequences))):
            queries, keys = sequences[row]
            blocks = tables[row, : -(-keys // 16)].long()
            k, v = (
                part[blocks].transpose(0, 1).reshape(heads.kv_heads, -1, heads.head_dim)[:, :keys] for part in cache
            )
            chosen = torch.arange(queries, device=q.device)
            if queries > 1024:
                chosen = torch.cat([chosen[:512], chosen[queries // 2 : queries // 2 + 128], chosen[-512:]])
            mine = q[starts[row] + chosen].float().reshape(len(chosen), heads.kv_heads, group, -1)
            positions = chosen + keys - queries
            for head in range(heads.kv_heads):
                scores = torch.einsum("qgc,kc->gqk", mine[:, head], k[head].float()) * scoring.scale
                weights = scoring.weights(scores, positions, head * group)
                reference = torch.einsum("gqk,kc->qgc", weights, v[head].float())
                got = out[starts[row] + chosen].reshape(len(chosen), heads.kv_heads, group, -1)[:, head]
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


def _num_pairs(queries: int, keys: int, window: int) -> int:
    """Pairs of a query and a key that it sees."""
    if not window:
        return queries * keys - queries * (queries - 1) // 2
    return sum(min(window, keys - behind) for behind in range(queries))


def _encoded(cache: torch.Tensor, code: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """A cache as codes, and the scale of each vector of it."""
    largest = 127.0 if code is torch.int8 else 448.0
    scales = cache.float().abs().amax(-1) / largest
    values = cache.float() / scales[..., None].clamp_min(1e-30)
    return (values.round() if code is torch.int8 else values).to(code), scales
