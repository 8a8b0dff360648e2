"""Latent attention at the sizes of DeepSeek-V2-Lite (16 heads) and V3 (128 heads), and experts in mxfp4 at those of
gpt-oss-20b: against torch in float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from tests.cuda.check.bench import Bench, Case, Facts, within
from tests.cuda.check.gpu import error_of
from torch.nn import functional

from aethermind.ops.weight_format import MXFP4, QuantizedWeight
from aethermind_cuda.quantized_weights import QuantizedLayout, quantized_pack

__all__ = ["Latent"]

_RANK, _KEY_DIM = 512, 576
_NOPE = 128
"""Elements of a head of queries and values outside the latent space."""
_ROUNDED_WEIGHTS = 8e-3
"""The bar: softmax weights are rounded to bfloat16, and so is the result."""
_ROUNDED_TWICE = 6e-3
_BLOCK = 16
_CLAMPED = {"alpha": 1.702, "limit": 7.0, "up_offset": 1.0}
"""The activation of gpt-oss."""
_DISTINCT_EXPERTS = 8


@dataclass(frozen=True)
class Latent:
    """Their cases; `stacks` are experts' weights and packed weights, made for the first case that needs them."""

    bench: Bench
    stacks: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)

    @property
    def _is_small(self) -> bool:
        return self.bench.sizes.hidden < 1024

    def latent(self) -> Iterator[Case]:
        """Attention by heads and batch, the products of heads, the cache, and experts."""
        keys, prompt = (40, 33) if self._is_small else (4096, 2048)
        for heads in (16, 128):
            for batch in (1, 8, 64):
                yield f"mla {heads} decode {batch} x {keys}", partial(self._attention, heads, [(1, keys)] * batch)
            yield f"mla {heads} prefill {prompt}", partial(self._attention, heads, [(prompt, prompt)])
            yield f"mla {heads} chunk {prompt // 8} of {keys}", partial(self._attention, heads, [(prompt // 8, keys)])
            mixed = [(1, keys)] * 16 + [(prompt // 8, prompt)]
            yield f"mla {heads} 16 decodes, {prompt // 8} of {prompt}", partial(self._attention, heads, mixed)
            for tokens in (1, 8, 64, prompt):
                for name, outputs, inputs in (("k_b", _RANK, _NOPE), ("v_b", _NOPE, _RANK)):
                    yield f"{name} {heads} {tokens}", partial(self._per_head, heads, tokens, outputs, inputs)
        yield f"latent_cache_write {prompt}", partial(self._write, prompt)
        for tokens in (1, 8, 64, 512, 2048)[: 2 if self._is_small else None]:
            yield f"mxfp4 gate_up {tokens}", partial(self._experts, "moe_gate_up_silu", tokens)
            yield f"mxfp4 down {tokens}", partial(self._experts, "moe_linear", tokens)

    def _attention(self, heads: int, sequences: list[tuple[int, int]], facts: Facts) -> None:
        gpu, device = self.bench.gpu, self.bench.gpu.device
        queries, keys = zip(*sequences, strict=True)
        num_tokens, scale = sum(queries), 192**-0.5
        counts = [-(-count // _BLOCK) for count in keys]
        places = (torch.randperm(sum(counts), device=device) + 1).int()
        tables = torch.zeros(len(counts), max(counts), dtype=torch.int32, device=device)
        for row, mine in enumerate(places.split(counts)):
            tables[row, : len(mine)] = mine
        cu = torch.tensor([0, *queries], device=device).cumsum(0).int()
        lengths = torch.tensor(keys, dtype=torch.int32, device=device)
        shape = sum(counts) + 1, 1, _BLOCK, _KEY_DIM
        caches = [self.bench.normal(*shape) for _ in range(self.bench.sets(2 * shape[0] * _BLOCK * _KEY_DIM))]
        q, out = self.bench.normal(num_tokens, heads, _KEY_DIM), self.bench.poisoned(num_tokens, heads, _RANK)
        attributes = {"value_dim": _RANK, "scale": scale}
        calls = [gpu.bind("mla_attention", (q, cache, cu, lengths, tables), (out,), attributes) for cache in caches]
        gpu.run(calls[0])
        facts["error"] = max(self._errors(out, q, caches[0], tables, sequences, cu.tolist(), scale))
        self.bench.time(facts, calls, [])
        pairs = sum(count * length - count * (count - 1) // 2 for count, length in sequences)
        self.bench.rates(facts, 2 * _KEY_DIM * sum(keys), 2 * heads * (_KEY_DIM + _RANK) * pairs)
        within(facts, _ROUNDED_WEIGHTS)

    @staticmethod
    def _errors(
        out: Any, q: Any, cache: Any, tables: Any, sequences: list[tuple[int, int]], starts: list[int], scale: float
    ) -> Iterator[float]:
        """Of the first, a middle and the last sequence, and of a prompt's first, some and last queries."""
        for row in sorted({0, len(sequences) // 2, len(sequences) - 1}):
            count, length = sequences[row]
            cached = cache[tables[row, : -(-length // _BLOCK)].long()].reshape(-1, _KEY_DIM)[:length].float()
            chosen = torch.arange(count, device=q.device)
            if count > 192:
                chosen = torch.cat([chosen[:64], chosen[count // 2 : count // 2 + 64], chosen[-64:]])
            scores = torch.einsum("qhc,kc->qhk", q[starts[row] + chosen].float(), cached) * scale
            hidden = torch.arange(length, device=q.device) > (chosen + length - count)[:, None]
            weights = scores.masked_fill(hidden[:, None], -torch.inf).softmax(-1)
            yield error_of(out[starts[row] + chosen], weights @ cached[:, :_RANK])

    def _per_head(self, heads: int, tokens: int, outputs: int, inputs: int, facts: Facts) -> None:
        gpu, nbytes = self.bench.gpu, 2 * heads * outputs * inputs
        x, out = self.bench.normal(tokens, heads, inputs), self.bench.poisoned(tokens, heads, outputs)
        weights = [
            self.bench.normal(heads * outputs, inputs, scale=inputs**-0.5) for _ in range(self.bench.sets(nbytes))
        ]
        calls = [gpu.bind("linear_per_head", (x, weight), (out,), {"num_heads": heads}) for weight in weights]
        gpu.run(calls[0])
        stacks = [weight.view(heads, outputs, inputs) for weight in weights]
        facts["error"] = error_of(out, torch.einsum("thi,hoi->tho", x.float(), stacks[0].float()))
        by_torch = [partial(torch.bmm, x.transpose(0, 1), stack.transpose(1, 2)) for stack in stacks]
        self.bench.time(facts, calls, by_torch)
        self.bench.rates(facts, nbytes, 2 * tokens * heads * outputs * inputs)
        within(facts, _ROUNDED_TWICE)

    def _write(self, tokens: int, facts: Facts) -> None:
        gpu = self.bench.gpu
        k, cache = self.bench.normal(tokens, 1, _KEY_DIM), self.bench.poisoned(tokens, 1, _BLOCK, _KEY_DIM)
        slots = torch.randperm(tokens * _BLOCK, device=gpu.device)[:tokens]
        call = gpu.bind("latent_cache_write", (k, slots, cache), (cache,))
        gpu.run(call)
        facts["error"] = error_of(cache.view(-1, 1, _KEY_DIM)[slots], k)
        self.bench.time(facts, [call], [])
        self.bench.rates(facts, 4 * tokens * _KEY_DIM, 0)
        within(facts, 0.0)

    def _experts(self, operator: str, tokens: int, facts: Facts) -> None:
        """The products of 4 of 32 experts, with biases."""
        gpu, device = self.bench.gpu, self.bench.gpu.device
        experts, chosen, width = (4, 2, 64) if self._is_small else (32, 4, 2880)
        num_weights = 2 if operator == "moe_gate_up_silu" else 1
        for _ in range(num_weights - len(self.stacks)):
            self.stacks.append(_in_mxfp4(experts, width, device))
        weights, packed = zip(*self.stacks[:num_weights], strict=True)
        biases = [self.bench.normal(experts * width) for _ in range(num_weights)]
        ids = torch.stack([torch.randperm(experts, device=device)[:chosen] for _ in range(tokens)]).int()
        rows = (tokens, width) if num_weights == 2 else (tokens, chosen, width)
        x, out = self.bench.normal(*rows), self.bench.poisoned(tokens, chosen, width)
        attributes = {"num_experts": experts, **(_CLAMPED if num_weights == 2 else {})}
        turns = [packed, *([one.clone() for one in packed] for _ in range(2))]
        calls = [gpu.bind(operator, (x, ids, *turn, *biases), (out,), attributes, "mxfp4") for turn in turns]
        gpu.run(calls[0])
        expected = torch.empty(out.shape, dtype=torch.float32, device=device)
        for expert in range(experts):
            token, place = (ids == expert).nonzero(as_tuple=True)
            mine = x[token].float() if num_weights == 2 else x[token, place].float()
            of_expert = slice(expert * width, (expert + 1) * width)
            products = [
                mine @ w[of_expert].float().T + b[of_expert].float() for w, b in zip(weights, biases, strict=True)
            ]
            if num_weights == 2:
                gate, up = products[0].clamp(max=7.0), products[1].clamp(-7.0, 7.0)
                products = [functional.silu(1.702 * gate) / 1.702 * (up + 1)]
            expected[token, place] = products[0]
        facts["error"] = error_of(out, expected)
        self.bench.time(facts, calls, [])
        read = len(ids.unique()) * packed[0].numel() // experts * num_weights
        self.bench.rates(facts, read, 2 * tokens * chosen * width * width * num_weights)
        within(facts, num_weights * _ROUNDED_TWICE)


def _in_mxfp4(experts: int, width: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Random elements with random scales: the weights of experts in bfloat16, which holds them exactly, and packed.

    Some experts are different, and repeated: packing on the host takes seconds. Their rows are whole tiles.
    """
    distinct = min(experts, _DISTINCT_EXPERTS)
    rows, copies = distinct * width, experts // distinct
    layout, pack = QuantizedLayout(MXFP4, (rows, width)), quantized_pack(MXFP4)
    codes = torch.randint(0, 16, (rows, width), dtype=torch.uint8)
    scales = torch.randint(118, 121, (rows, width // 32), dtype=torch.uint8)
    packed = torch.empty(layout.nbytes, dtype=torch.uint8)
    pack.pack(QuantizedWeight(MXFP4, codes.numpy(), scales.numpy()), packed.data_ptr())
    parts = packed.to(device).split([layout.code_bytes, layout.nbytes - layout.code_bytes])
    magnitudes = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], device=device)
    values = torch.cat([magnitudes, -magnitudes])[codes.to(device).long()]
    values *= torch.exp2(scales.to(device).float() - 127).repeat_interleave(32, dim=1)
    return values.to(torch.bfloat16).repeat(copies, 1), torch.cat([part.repeat(copies) for part in parts])
