"""Operators of recurrent layers at the sizes of Qwen3-Next-80B-A3B, Mamba-2 2.7B and Falcon-H1-7B.

A step of decoding has to read and write the states at least: torch's time is that of multiplying them in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from tests.cuda.check.bench import Bench, Case, Facts, Recurrence, within
from tests.cuda.check.gpu import error_of
from torch import Tensor
from torch.nn import functional

__all__ = ["Recurrent"]

_ROUNDED = 6e-3
"""The bar: results are rounded to bfloat16 once."""
_STATES = 1e-4
"""The bar of states, which are float32; the order of sums differs."""


@dataclass(frozen=True)
class Recurrent:
    """Its cases."""

    bench: Bench

    def recurrent(self) -> Iterator[Case]:
        """Decodes and one prompt of each recurrence, and of what goes with it."""
        sizes = self.bench.sizes
        for layer in sizes.recurrences:
            name = layer.model
            for batch in sizes.recurrent_decodes:
                yield f"{name} decode {batch}", partial(self._recurrence, layer, [(1, 9)] * batch)
            prompt = sizes.recurrent_prompt
            yield f"{name} prefill {prompt}", partial(self._recurrence, layer, [(prompt, prompt)])
            yield (
                f"{name} chunk {prompt // 2} and decodes",
                partial(self._recurrence, layer, [(prompt // 2, prompt), *[(1, 9)] * 32]),
            )
            for sequences in ([(1, 9)] * sizes.recurrent_decodes[-1], [(prompt, prompt)]):
                rows = sum(tokens for tokens, _ in sequences)
                yield f"{name} convolution {rows}", partial(self._convolution, layer.row_size, sequences)
                yield f"{name} norm {rows}", partial(self._norm, layer, rows)

    def _tables(self, sequences: Sequence[tuple[int, int]]) -> list[Tensor]:
        """cu_seqlens_q, seqlens_k and state_slots, of sequences of (tokens in the step, tokens in all)."""
        cuts = [0]
        for tokens, _ in sequences:
            cuts.append(cuts[-1] + tokens)
        lengths = [length for _, length in sequences]
        slots = torch.randperm(len(sequences)).tolist()
        device = self.bench.gpu.device
        return [torch.tensor(values, dtype=torch.int32, device=device) for values in (cuts, lengths, slots)]

    def _float32(self, *shape: int) -> Tensor:
        return torch.randn(*shape, device=self.bench.gpu.device)

    def _recurrence(self, layer: Recurrence, sequences: Sequence[tuple[int, int]], facts: Facts) -> None:
        gpu, num_tokens = self.bench.gpu, sum(tokens for tokens, _ in sequences)
        is_delta = layer.operator == "gated_delta_rule"
        rows = self.bench.normal(num_tokens, layer.row_size)
        scalars = [self.bench.normal(num_tokens, layer.num_heads) for _ in range(2 if is_delta else 1)]
        scalars += [self._float32(layer.num_heads) for _ in range(2 if is_delta else 3)]
        attributes = {"scale": layer.depth**-0.5} if is_delta else {}
        shape = len(sequences), layer.num_heads, layer.depth, layer.width
        tables = self._tables(sequences)
        out = self.bench.poisoned(num_tokens, layer.num_heads, layer.width)

        def call(state: Tensor) -> Callable[[int], None]:
            return gpu.bind(layer.operator, (rows, *scalars, state, *tables), (out, state), attributes)

        state = self._float32(*shape)
        before = state.clone()
        gpu.run(call(state))
        reference, after = _by_torch(layer, rows, scalars, before, tables)
        facts["error"], facts["state error"] = error_of(out, reference), error_of(state, after)
        nbytes = state.numel() * 4
        states = [state, *(self._float32(*shape) for _ in range(self.bench.sets(nbytes) - 1))]
        is_decode = num_tokens == len(sequences)
        by_torch: list[Callable[[], object]] = [partial(each.mul_, 0.999) for each in states] if is_decode else []
        self.bench.time(facts, [call(each) for each in states], by_torch)
        num_read = sum(length > tokens for tokens, length in sequences)
        moved = nbytes * (len(sequences) + num_read) // len(sequences) + 2 * (rows.numel() + out.numel())
        flops = (7 if is_delta else 5) * num_tokens * layer.num_heads * layer.depth * layer.width
        self.bench.rates(facts, moved, flops)
        within({"error": facts["state error"]}, _STATES)
        within(facts, _ROUNDED)

    def _convolution(self, num_channels: int, sequences: Sequence[tuple[int, int]], facts: Facts) -> None:
        gpu, num_tokens = self.bench.gpu, sum(tokens for tokens, _ in sequences)
        tables = self._tables(sequences)
        xs = [self.bench.normal(num_tokens, num_channels)]
        xs += [self.bench.normal(num_tokens, num_channels) for _ in range(self.bench.sets(4 * xs[0].numel()) - 1)]
        w, bias = self.bench.normal(4, num_channels), self.bench.normal(num_channels)
        out, state = self.bench.poisoned(*xs[0].shape), self._float32(len(sequences), 3, num_channels)
        before = state.clone()
        calls = [gpu.bind("causal_conv1d", (x, w, bias, state, *tables), (out, state), {"silu": True}) for x in xs]
        gpu.run(calls[0])
        windows = [
            torch.cat([before[slot] * (length > tokens), xs[0][begin : begin + tokens].float()])
            for (tokens, length), begin, slot in zip(sequences, tables[0].tolist(), tables[2].tolist(), strict=False)
        ]
        sums = [
            sum(w[j].float() * window[j : len(window) - 3 + j] for j in range(4)) + bias.float() for window in windows
        ]
        after = torch.stack([windows[i][-3:] for i in tables[2].argsort().tolist()])
        facts["error"] = max(error_of(out, functional.silu(torch.cat(sums))), error_of(state, after))
        self.bench.time(facts, calls, [])
        num_read = sum(length > tokens for tokens, length in sequences)
        self.bench.rates(facts, 4 * xs[0].numel() + 12 * num_channels * (len(sequences) + num_read), 0)
        within(facts, _ROUNDED)

    def _norm(self, layer: Recurrence, num_rows: int, facts: Facts) -> None:
        """One head at a time and before the gate, as in a delta net; rows of all heads behind it, as in Mamba 2."""
        is_delta = layer.operator == "gated_delta_rule"
        shape = (num_rows, layer.num_heads, layer.width) if is_delta else (num_rows, layer.num_heads * layer.width)
        weight = self.bench.normal(shape[-1])
        x, gate, out = self.bench.normal(*shape), self.bench.normal(*shape), self.bench.poisoned(*shape)
        pairs = [(x, gate)]
        for _ in range(self.bench.sets(4 * x.numel()) - 1):
            pairs.append((self.bench.normal(*shape), self.bench.normal(*shape)))
        attributes = {"eps": 1e-6, "norm_before_gate": is_delta}
        calls = [self.bench.gpu.bind("gated_rms_norm", (*pair, weight), (out,), attributes) for pair in pairs]
        self.bench.gpu.run(calls[0])
        factor = functional.silu(gate.float())
        normed = x.float() if is_delta else x.float() * factor
        normed = functional.rms_norm(normed, shape[-1:], weight.float(), 1e-6)
        facts["error"] = error_of(out, normed * factor if is_delta else normed)
        self.bench.time(facts, calls, [])
        self.bench.rates(facts, 6 * x.numel(), 0)
        within(facts, _ROUNDED)


def _by_torch(
    layer: Recurrence, rows: Tensor, scalars: Sequence[Tensor], states: Tensor, tables: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Results and states after a step, in float32: a loop over the tokens that sequences have at the same place."""
    groups, heads, depth, width = layer[2:]
    is_delta = layer.operator == "gated_delta_rule"
    keys = groups * depth
    parts = [keys, keys, heads * width] if is_delta else [heads * width, keys, keys]
    first, k, last = rows.float().split(parts, dim=1)
    q, v = (first, last) if is_delta else (last, first)
    q, k = (x.unflatten(1, (groups, depth)).repeat_interleave(heads // groups, dim=1) for x in (q, k))
    v = v.unflatten(1, (heads, width))
    steps = scalars[0].float()
    if is_delta:
        gates, a_log, dt_bias = scalars[1].float().sigmoid(), scalars[2], scalars[3]
        q, k = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in (q, k))
        q = q * depth**-0.5
    else:
        a_log, dt_bias = scalars[1], scalars[2]
    steps = functional.softplus(steps + dt_bias)
    decays = (-a_log.exp() * steps).exp()
    out = torch.zeros_like(v)
    cuts, lengths, slots = (table.long() for table in tables)
    counts = cuts.diff()
    states = states.clone()
    states[slots[lengths == counts]] = 0
    for position in range(int(counts.max())):
        chosen = counts > position
        tokens, own = cuts[:-1][chosen] + position, slots[chosen]
        state = states[own] * decays[tokens][..., None, None]
        if is_delta:
            update = gates[tokens][..., None] * (v[tokens] - torch.einsum("thde,thd->the", state, k[tokens]))
        else:
            update = steps[tokens][..., None] * v[tokens]
        states[own] = state = state + k[tokens][..., None] * update[:, :, None]
        out[tokens] = torch.einsum("thde,thd->the", state, q[tokens])
    return (out if is_delta else out + scalars[3][:, None] * v), states
