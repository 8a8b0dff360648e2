"""Projections of Qwen2-7B: dense and quantised weights, by number of tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from tests.cuda.check.bench import Bench, Case, Facts, representable, within
from tests.cuda.check.gpu import error_of
from torch.nn import functional

from aethermind.ops.weight_format import DENSE

__all__ = ["Projections"]

_BF16 = torch.bfloat16
_ONE_ROUNDING = 4e-3
"""Of a result rounded to bfloat16: uniform in a step of at most 2⁻⁸ it is 2e-3 in the mean."""
_ROUNDED_TWICE = 6e-3
_ROUNDED_INPUTS = 4e-2
"""Of inputs rounded to fp8, by up to 1/16 of their values: 2.5e-2 in the mean."""
_MAX_FEW_TOKENS = 128
"""Most tokens of the projections of attention."""
_MAX_FP8_EXACT_TOKENS = 8
"""Most tokens whose inputs are not quantised."""


@dataclass(frozen=True)
class Projections:
    """Their cases by group."""

    bench: Bench
    packed: dict[tuple[str, int, int, int], tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)

    def linear(self) -> Iterator[Case]:
        """Every projection, by number of tokens."""
        hidden, inner, kv = (
            self.bench.sizes.hidden,
            self.bench.sizes.inner,
            self.bench.sizes.kv_heads * self.bench.sizes.head_dim,
        )
        for name, outputs, inputs in (("q", hidden, hidden), ("k", kv, hidden), ("down", hidden, inner)):
            for tokens in self.bench.sizes.tokens:
                yield f"{name} {tokens}", partial(self._linear, "linear", tokens, outputs, inputs, name != "down")
        for rows in self.bench.sizes.logit_rows:
            yield f"lm_head {rows}", partial(self._linear, "lm_head", rows, self.bench.sizes.vocab, hidden, False)

    def gate_up(self) -> Iterator[Case]:
        """Gate, up and SwiGLU."""
        for tokens in self.bench.sizes.tokens:
            yield f"gate_up {tokens}", partial(self._gate_up, tokens)

    def qkv(self) -> Iterator[Case]:
        """Three projections, rotation, and what goes to the cache."""
        for tokens in self.bench.sizes.tokens:
            yield f"qkv {tokens}", partial(self._qkv, DENSE, tokens)

    def quantized(self) -> Iterator[Case]:
        """Projections of quantised weights."""
        hidden, inner = self.bench.sizes.hidden, self.bench.sizes.inner
        for format in self.bench.sizes.formats:
            for tokens in self.bench.sizes.quantized_tokens:
                yield f"{format} down {tokens}", partial(self._quantized, format, tokens, hidden, inner)
            few = [tokens for tokens in self.bench.sizes.quantized_tokens if tokens <= _MAX_FEW_TOKENS]
            for tokens in few if format in ("int4", "int8") else few[:1]:
                yield f"{format} q {tokens}", partial(self._quantized, format, tokens, hidden, hidden)
                if format.startswith("int"):
                    yield f"{format} qkv {tokens}", partial(self._qkv, format, tokens)
            for tokens in self.bench.sizes.quantized_tokens:
                yield f"{format} gate_up {tokens}", partial(self._quantized_gate_up, format, tokens)

    def _linear(self, operator: str, tokens: int, outputs: int, inputs: int, has_bias: bool, facts: Facts) -> None:
        gpu = self.bench.gpu
        x, bias = self.bench.normal(tokens, inputs), self.bench.normal(outputs) if has_bias else None
        weights = [
            self.bench.normal(outputs, inputs, scale=inputs**-0.5) for _ in range(self.bench.sets(2 * outputs * inputs))
        ]
        out = self.bench.poisoned(tokens, outputs, dtype=torch.float32 if operator == "lm_head" else _BF16)
        more = (bias,) if operator == "linear" else ()
        calls = [gpu.bind(operator, (x, weight, *more), (out,)) for weight in weights]
        gpu.run(calls[0])
        reference = x.float() @ weights[0].float().T + (0 if bias is None else bias.float())
        facts["error"] = error_of(out, reference)
        del reference
        self.bench.time(facts, calls, [partial(functional.linear, x, weight, bias) for weight in weights])
        self.bench.rates(facts, 2 * outputs * inputs, 2 * tokens * outputs * inputs)
        within(facts, _ONE_ROUNDING)

    def _gate_up(self, tokens: int, facts: Facts) -> None:
        gpu, hidden, inner = self.bench.gpu, self.bench.sizes.hidden, self.bench.sizes.inner
        x, out = self.bench.normal(tokens, hidden), self.bench.poisoned(tokens, inner)
        sets = self.bench.sets(4 * hidden * inner)
        pairs = [self.bench.adjacent(inner, inner, inputs=hidden) for _ in range(sets)]
        calls = [gpu.bind("gate_up_silu", (x, *pair), (out,)) for pair in pairs]
        gpu.run(calls[0])
        gate, up = (x.float() @ weight.float().T for weight in pairs[0])
        facts["error"] = error_of(out, functional.silu(gate) * up)
        del gate, up

        def by_torch(pair: list[torch.Tensor]) -> torch.Tensor:
            return functional.silu(x @ pair[0].T) * (x @ pair[1].T)

        self.bench.time(facts, calls, [partial(by_torch, pair) for pair in pairs])
        self.bench.rates(facts, 4 * hidden * inner, 4 * tokens * hidden * inner)
        within(facts, 2 * _ROUNDED_TWICE)

    def _qkv(self, format: str, tokens: int, facts: Facts) -> None:
        gpu, sizes = self.bench.gpu, self.bench.sizes
        hidden, width, kv = sizes.hidden, sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
        x = self.bench.normal(tokens, hidden)
        rows = width, kv, kv
        if format == DENSE:
            sets = self.bench.sets(2 * hidden * sum(rows))
            weights = [self.bench.adjacent(*rows, inputs=hidden) for _ in range(sets)]
            exact: Sequence[torch.Tensor] = weights[0]
        else:
            exact, packed = zip(*(self._packed(format, one, hidden, i) for i, one in enumerate(rows)), strict=True)
            sets = self.bench.sets(sum(one.numel() for one in packed))
            weights = [[*packed], *([one.clone() for one in packed] for _ in range(sets - 1))]
        nbytes = sum(one.nbytes for one in weights[0])
        biases = [*self.bench.normal(width + 2 * kv).split([width, kv, kv])]
        # A table of cosines and sines of angle 0 leaves everything as it is.
        table = torch.zeros(tokens, sizes.head_dim, device=gpu.device)
        table[:, : sizes.head_dim // 2] = 1
        blocks = -(-tokens // 16) + 1
        slots = torch.arange(tokens, device=gpu.device) + 3
        caches = [self.bench.poisoned(blocks, sizes.kv_heads, 16, sizes.head_dim) for _ in range(2)]
        out = self.bench.poisoned(tokens, sizes.heads, sizes.head_dim)
        attributes = {"num_heads": sizes.heads, "num_kv_heads": sizes.kv_heads, "eps": 1e-6}
        calls = [
            gpu.bind(
                "qkv_rope_cache_write",
                (x, *three, *biases, None, None, table, slots, *caches),
                (out, *caches),
                attributes,
                format,
            )
            for three in weights
        ]
        gpu.run(calls[0])
        q, k, v = (x.float() @ w.float().T + b.float() for w, b in zip(exact, biases, strict=True))
        written = [
            cache.transpose(1, 2).reshape(-1, sizes.kv_heads, sizes.head_dim)[slots].reshape(tokens, kv)
            for cache in caches
        ]
        facts["error"] = max(
            error_of(a, b) for a, b in ((out.reshape(tokens, width), q), *zip(written, (k, v), strict=True))
        )
        by_torch = [partial(functional.linear, x, torch.cat(three)) for three in weights if format == DENSE]
        self.bench.time(facts, calls, by_torch)
        self.bench.rates(facts, nbytes, 2 * tokens * hidden * sum(rows))
        within(facts, _ROUNDED_TWICE)

    def _quantized(self, format: str, tokens: int, outputs: int, inputs: int, facts: Facts) -> None:
        gpu = self.bench.gpu
        x, out = self.bench.normal(tokens, inputs), self.bench.poisoned(tokens, outputs)
        weight, packed = self._packed(format, outputs, inputs)
        sets = self.bench.sets(packed.numel())
        copies = [packed, *(packed.clone() for _ in range(sets - 1))]
        calls = [gpu.bind("linear", (x, one, None), (out,), format=format) for one in copies]
        gpu.run(calls[0])
        facts["error"] = error_of(out, x.float() @ weight.float().T)
        self.bench.time(facts, calls, self._by_torch(format, x, [weight], sets))
        self.bench.rates(facts, packed.numel(), 2 * tokens * outputs * inputs)
        within(facts, self._bar(format, tokens))

    def _quantized_gate_up(self, format: str, tokens: int, facts: Facts) -> None:
        gpu, hidden, inner = self.bench.gpu, self.bench.sizes.hidden, self.bench.sizes.inner
        x, out = self.bench.normal(tokens, hidden), self.bench.poisoned(tokens, inner)
        weights, packed = zip(*(self._packed(format, inner, hidden, which) for which in range(2)), strict=True)
        sets = self.bench.sets(2 * packed[0].numel())
        pairs = [torch.cat(packed).split(packed[0].numel()) for _ in range(sets)]  # adjacent, as a plan has them
        calls = [gpu.bind("gate_up_silu", (x, *pair), (out,), format=format) for pair in pairs]
        gpu.run(calls[0])
        gate, up = (x.float() @ weight.float().T for weight in weights)
        facts["error"] = error_of(out, functional.silu(gate) * up)
        self.bench.time(facts, calls, self._by_torch(format, x, list(weights), sets))
        self.bench.rates(facts, 2 * packed[0].numel(), 4 * tokens * hidden * inner)
        within(facts, 2 * self._bar(format, tokens))

    @staticmethod
    def _bar(format: str, tokens: int) -> float:
        return _ROUNDED_INPUTS if format == "fp8" and tokens > _MAX_FP8_EXACT_TOKENS else _ROUNDED_TWICE

    @staticmethod
    def _by_torch(format: str, x: torch.Tensor, weights: list[torch.Tensor], sets: int) -> list[Callable[[], object]]:
        """torch's products of fp8 with a scale for each row, of inputs that are quantised already; none of others."""
        if format != "fp8" or not x.is_cuda:
            return []
        (codes, scales), *coded = (_float8(matrix) for matrix in (x, *weights))

        def multiply(copies: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
            for weight, of_weight in copies:
                torch._scaled_mm(codes, weight.T, scales, of_weight.T, out_dtype=_BF16)

        return [partial(multiply, [(one.clone(), of_one) for one, of_one in coded]) for _ in range(sets)]

    def _packed(self, format: str, outputs: int, inputs: int, which: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """A weight on the device, and packed; the same one for the cases of a format that follow one another."""
        key = format, outputs, inputs, which
        if key not in self.packed:
            for stale in [one for one in self.packed if one[0] != format]:
                del self.packed[stale]
            weight = representable(format, outputs, inputs)
            self.packed[key] = weight.to(self.bench.gpu.device), self.bench.gpu.pack(format, weight)
        return self.packed[key]


def _float8(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of a matrix [R, K] and scales [R, 1]."""
    scales = matrix.float().abs().amax(1, keepdim=True) / 448
    return (matrix.float() / scales).to(torch.float8_e4m3fn), scales
