"""The operators of a Qwen2-7B at its own sizes: right against torch in float32, and how fast beside torch in bfloat16.

    python -m tests.cuda.check.shapes GROUP     GROUP is a key of GROUPS

A case fails where its relative error is above its bar. Times are those of the device over calls in one graph, which
take turns in enough weights to miss the L2 cache; each is beside its rate in GB/s and TFLOP/s, and beside torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from tests.cuda.check.gpu import Gpu, error_of
from tests.cuda.check.records import CaseLog
from torch.nn import functional

__all__ = ["GROUPS", "SMALL", "Sizes"]

_BF16 = torch.bfloat16
_ONE_ROUNDING = 4e-3
"""Of a result rounded to bfloat16: uniform in a step of at most 2⁻⁸ it is 2e-3 in the mean."""
_ROUNDED_TWICE = 6e-3
_ROUNDED_WEIGHTS = 8e-3
"""Of attention, whose softmax weights are rounded too."""
_MISS_L2_BYTES = 192 << 20
_MOST_SETS = 96


@dataclass(frozen=True)
class Sizes:
    """Those of Qwen2-7B unless said otherwise."""

    hidden: int = 3584
    inner: int = 18944
    heads: int = 28
    kv_heads: int = 4
    head_dim: int = 128
    vocab: int = 152064
    tokens: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 33, 64, 256, 2048)
    quantized_tokens: tuple[int, ...] = (1, 8, 16, 32, 64, 128, 256, 2048)
    logit_rows: tuple[int, ...] = (1, 8, 64, 256)
    decodes: tuple[tuple[int, int], ...] = (
        (1, 1024),
        (1, 16384),
        (8, 1024),
        (64, 1024),
        (64, 16384),
        (256, 256),
        (64, 1023),
    )
    prefills: tuple[tuple[tuple[int, int], ...], ...] = (
        ((512, 512),),
        ((2048, 2048),),
        ((16384, 16384),),
        ((5, 16384),),
        ((64, 8192),),
        ((512, 16384),),
        (*[(1, 1024)] * 32, (512, 512)),
    )
    sampled_rows: tuple[int, ...] = (1, 64, 256)
    formats: tuple[str, ...] = ("int4", "int4_g128", "int8")


SMALL = Sizes(
    *(256, 512, 4, 2, 64, 1024),
    tokens=(1, 33),
    quantized_tokens=(1, 33),
    logit_rows=(1, 33),
    decodes=((1, 64), (3, 40)),
    prefills=(((33, 33),), ((1, 20), (40, 90))),
    sampled_rows=(1, 5),
    formats=("int4", "int8"),
)
"""For a rehearsal."""

Case = tuple[str, Callable[[dict[str, Any]], None]]


@dataclass(frozen=True)
class Shapes:
    """The cases of each group, at `sizes`."""

    gpu: Gpu
    sizes: Sizes
    is_timed: bool = True
    packed: dict[tuple[str, int, int, int], tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)

    def profiled(self) -> Iterator[Case]:
        """One case of each kind of kernel, for a profiler."""
        hidden, inner = self.sizes.hidden, self.sizes.inner
        yield "down 1", partial(self._linear, "linear", 1, hidden, inner, False)
        yield "q 1", partial(self._linear, "linear", 1, hidden, hidden, True)
        yield "lm_head 1", partial(self._linear, "lm_head", 1, self.sizes.vocab, hidden, False)
        for tokens in (1, 32):
            yield f"gate_up {tokens}", partial(self._gate_up, tokens)
            yield (
                f"{self.sizes.formats[0]} gate_up {tokens}",
                partial(self._quantized_gate_up, self.sizes.formats[0], tokens),
            )
        yield "qkv 1", partial(self._qkv, 1)
        for batch, keys in self.sizes.decodes[1:4]:
            yield f"decode {batch} x {keys}", partial(self._attention, [(1, keys)] * batch, None)
        for sequences in self.sizes.prefills[1:2]:
            yield "prefill", partial(self._attention, list(sequences), None)
        yield "top_p", partial(self._sample, self.sizes.sampled_rows[-1], (0.8, 0, 0.9, 0.0))

    def linear(self) -> Iterator[Case]:
        """Every projection, by number of tokens."""
        hidden, inner, kv = self.sizes.hidden, self.sizes.inner, self.sizes.kv_heads * self.sizes.head_dim
        for name, outputs, inputs in (("q", hidden, hidden), ("k", kv, hidden), ("down", hidden, inner)):
            for tokens in self.sizes.tokens:
                yield f"{name} {tokens}", partial(self._linear, "linear", tokens, outputs, inputs, name != "down")
        for rows in self.sizes.logit_rows:
            yield f"lm_head {rows}", partial(self._linear, "lm_head", rows, self.sizes.vocab, hidden, False)

    def gate_up(self) -> Iterator[Case]:
        """Gate, up and SwiGLU."""
        for tokens in self.sizes.tokens:
            yield f"gate_up {tokens}", partial(self._gate_up, tokens)

    def qkv(self) -> Iterator[Case]:
        """Three projections, rotation, and what goes to the cache."""
        for tokens in self.sizes.tokens:
            yield f"qkv {tokens}", partial(self._qkv, tokens)

    def decode(self) -> Iterator[Case]:
        """Attention of a query each over caches of elements."""
        for batch, keys in self.sizes.decodes:
            yield f"decode {batch} x {keys}", partial(self._attention, [(1, keys)] * batch, None)
        for code in (torch.int8, torch.float8_e4m3fn):
            batch, keys = self.sizes.decodes[-1]
            yield f"decode {batch} x {keys} {str(code)[6:]}", partial(self._attention, [(1, keys)] * batch, code)

    def prefill(self) -> Iterator[Case]:
        """Attention of prompts, of chunks behind others, of speculated tokens, and mixed with decodes."""
        for sequences in self.sizes.prefills:
            first = ", ".join(f"{queries} of {keys}" for queries, keys in dict.fromkeys(sequences))
            yield f"prefill {first}", partial(self._attention, list(sequences), None)

    def quantized(self) -> Iterator[Case]:
        """Projections of quantised weights."""
        hidden, inner = self.sizes.hidden, self.sizes.inner
        for format in self.sizes.formats:
            for tokens in self.sizes.quantized_tokens:
                yield f"{format} down {tokens}", partial(self._quantized, format, tokens, hidden, inner)
            for tokens in self.sizes.quantized_tokens[:1]:
                yield f"{format} q {tokens}", partial(self._quantized, format, tokens, hidden, hidden)
            for tokens in self.sizes.quantized_tokens:
                yield f"{format} gate_up {tokens}", partial(self._quantized_gate_up, format, tokens)

    def sampling(self) -> Iterator[Case]:
        """Tokens of logits."""
        kinds = {
            "greedy": (0.0, 0, 1.0, 0.0),
            "plain": (1.0, 0, 1.0, 0.0),
            "top_k": (0.8, 40, 1.0, 0.0),
            "top_p": (0.8, 0, 0.9, 0.0),
            "all": (0.7, 50, 0.9, 0.05),
        }
        for rows in self.sizes.sampled_rows:
            for kind, parameters in kinds.items():
                yield f"{kind} {rows}", partial(self._sample, rows, parameters)

    def _linear(self, operator: str, tokens: int, outputs: int, inputs: int, has_bias: bool, facts: Any) -> None:
        gpu = self.gpu
        x, bias = self._normal(tokens, inputs), self._normal(outputs) if has_bias else None
        weights = [self._normal(outputs, inputs, scale=inputs**-0.5) for _ in range(self._sets(2 * outputs * inputs))]
        out = self._poisoned(tokens, outputs, dtype=torch.float32 if operator == "lm_head" else _BF16)
        more = (bias,) if operator == "linear" else ()
        calls = [gpu.bind(operator, (x, weight, *more), (out,)) for weight in weights]
        gpu.run(calls[0])
        reference = x.float() @ weights[0].float().T + (0 if bias is None else bias.float())
        facts["error"] = error_of(out, reference)
        del reference
        self._time(facts, calls, [partial(functional.linear, x, weight, bias) for weight in weights])
        self._rates(facts, 2 * outputs * inputs, 2 * tokens * outputs * inputs)
        _within(facts, _ONE_ROUNDING)

    def _gate_up(self, tokens: int, facts: Any) -> None:
        gpu, hidden, inner = self.gpu, self.sizes.hidden, self.sizes.inner
        x, out = self._normal(tokens, hidden), self._poisoned(tokens, inner)
        sets = self._sets(4 * hidden * inner)
        pairs = [[self._normal(inner, hidden, scale=hidden**-0.5) for _ in range(2)] for _ in range(sets)]
        calls = [gpu.bind("gate_up_silu", (x, *pair), (out,)) for pair in pairs]
        gpu.run(calls[0])
        gate, up = (x.float() @ weight.float().T for weight in pairs[0])
        facts["error"] = error_of(out, functional.silu(gate) * up)
        del gate, up

        def by_torch(pair: list[torch.Tensor]) -> torch.Tensor:
            return functional.silu(x @ pair[0].T) * (x @ pair[1].T)

        self._time(facts, calls, [partial(by_torch, pair) for pair in pairs])
        self._rates(facts, 4 * hidden * inner, 4 * tokens * hidden * inner)
        _within(facts, 2 * _ROUNDED_TWICE)

    def _qkv(self, tokens: int, facts: Any) -> None:
        gpu, sizes = self.gpu, self.sizes
        hidden, width, kv = sizes.hidden, sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
        x = self._normal(tokens, hidden)
        sets = self._sets(2 * hidden * (width + 2 * kv))
        weights = [[self._normal(rows, hidden, scale=hidden**-0.5) for rows in (width, kv, kv)] for _ in range(sets)]
        biases = [self._normal(rows) for rows in (width, kv, kv)]
        # A table of cosines and sines of angle 0 leaves everything as it is.
        table = torch.zeros(tokens, sizes.head_dim, device=gpu.device)
        table[:, : sizes.head_dim // 2] = 1
        blocks = -(-tokens // 16) + 1
        slots = torch.arange(tokens, device=gpu.device) + 3
        caches = [self._poisoned(blocks, sizes.kv_heads, 16, sizes.head_dim) for _ in range(2)]
        out = self._poisoned(tokens, sizes.heads, sizes.head_dim)
        attributes = {"num_heads": sizes.heads, "num_kv_heads": sizes.kv_heads, "eps": 1e-6}
        calls = [
            gpu.bind(
                "qkv_rope_cache_write",
                (x, *three, *biases, None, None, table, slots, *caches),
                (out, *caches),
                attributes,
            )
            for three in weights
        ]
        gpu.run(calls[0])
        q, k, v = (x.float() @ w.float().T + b.float() for w, b in zip(weights[0], biases, strict=True))
        written = [
            cache.transpose(1, 2).reshape(-1, sizes.kv_heads, sizes.head_dim)[slots].reshape(tokens, kv)
            for cache in caches
        ]
        facts["error"] = max(
            error_of(a, b) for a, b in ((out.reshape(tokens, width), q), *zip(written, (k, v), strict=True))
        )
        by_torch = [partial(functional.linear, x, torch.cat(three)) for three in weights]
        self._time(facts, calls, by_torch)
        self._rates(facts, 2 * hidden * (width + 2 * kv), 2 * tokens * hidden * (width + 2 * kv))
        _within(facts, _ROUNDED_TWICE)

    def _attention(self, sequences: list[tuple[int, int]], code: torch.dtype | None, facts: Any) -> None:
        gpu, sizes = self.gpu, self.sizes
        num_queries, scale = sum(queries for queries, _ in sequences), sizes.head_dim**-0.5
        q = self._normal(num_queries, sizes.heads, sizes.head_dim)
        out = self._poisoned(*q.shape)
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
        caches = [[self._normal(*shape) for _ in range(2)] for _ in range(self._sets(bytes_of_cache))]
        arguments, values, operator = [], [], "paged_attention"
        for pair in caches:
            if code is None:
                arguments.append((q, *pair, cu, lengths, tables))
                values.append(pair)
            else:
                operator = "paged_attention_quantized"
                coded, scales = zip(*(_encoded(cache, code) for cache in pair), strict=True)
                arguments.append((q, *coded, cu, lengths, tables, *scales))
                values.append([c.float() * s[..., None] for c, s in zip(coded, scales, strict=True)])
        attributes = {"scale": scale, "window": 0}
        calls = [gpu.bind(operator, inputs, (out,), attributes) for inputs in arguments]
        gpu.run(calls[0])
        facts["error"] = self._attention_error(out, q, values[0], tables, sequences, starts, scale)
        self._time(facts, calls, self._attention_by_torch(sequences, scale))
        seen = sum(keys for _, keys in sequences) * 2 * sizes.kv_heads * sizes.head_dim * (2 if code is None else 1)
        pairs = sum(queries * keys - queries * (queries - 1) // 2 for queries, keys in sequences)
        self._rates(facts, seen, 4 * sizes.heads * sizes.head_dim * pairs)
        _within(facts, _ROUNDED_WEIGHTS)

    def _attention_error(
        self, out: Any, q: Any, cache: Any, tables: Any, sequences: Any, starts: list[int], scale: float
    ) -> float:
        """Of at most four sequences, and of a long prompt's first and last queries."""
        sizes, worst = self.sizes, 0.0
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
        sizes, (queries, keys) = self.sizes, sequences[0]
        if len(set(sequences)) > 1 or not torch.cuda.is_available() or (1 < queries < keys):
            return []
        batch = len(sequences)

        def shaped(heads: int, length: int) -> torch.Tensor:
            return self._normal(batch, heads, length, sizes.head_dim)

        q, k, v = shaped(sizes.heads, queries), shaped(sizes.kv_heads, keys), shaped(sizes.kv_heads, keys)
        attend = functional.scaled_dot_product_attention
        return [partial(attend, q, k, v, is_causal=queries > 1, scale=scale, enable_gqa=True)]

    def _quantized(self, format: str, tokens: int, outputs: int, inputs: int, facts: Any) -> None:
        gpu = self.gpu
        x, out = self._normal(tokens, inputs), self._poisoned(tokens, outputs)
        weight, packed = self._packed(format, outputs, inputs)
        sets = self._sets(packed.numel())
        copies = [packed, *(packed.clone() for _ in range(sets - 1))]
        calls = [gpu.bind("linear", (x, one, None), (out,), format=format) for one in copies]
        gpu.run(calls[0])
        facts["error"] = error_of(out, x.float() @ weight.float().T)
        self._time(facts, calls, [])
        self._rates(facts, packed.numel(), 2 * tokens * outputs * inputs)
        _within(facts, _ROUNDED_TWICE)

    def _quantized_gate_up(self, format: str, tokens: int, facts: Any) -> None:
        gpu, hidden, inner = self.gpu, self.sizes.hidden, self.sizes.inner
        x, out = self._normal(tokens, hidden), self._poisoned(tokens, inner)
        weights, packed = zip(*(self._packed(format, inner, hidden, which) for which in range(2)), strict=True)
        sets = self._sets(2 * packed[0].numel())
        pairs = [packed, *([one.clone() for one in packed] for _ in range(sets - 1))]
        calls = [gpu.bind("gate_up_silu", (x, *pair), (out,), format=format) for pair in pairs]
        gpu.run(calls[0])
        gate, up = (x.float() @ weight.float().T for weight in weights)
        facts["error"] = error_of(out, functional.silu(gate) * up)
        self._time(facts, calls, [])
        self._rates(facts, 2 * packed[0].numel(), 4 * tokens * hidden * inner)
        _within(facts, 2 * _ROUNDED_TWICE)

    def _packed(self, format: str, outputs: int, inputs: int, which: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """A weight on the device, and packed; the same one for the cases of a format that follow one another."""
        key = format, outputs, inputs, which
        if key not in self.packed:
            for stale in [one for one in self.packed if one[0] != format]:
                del self.packed[stale]
            weight = self._exact(format, outputs, inputs)
            self.packed[key] = weight.to(self.gpu.device), self.gpu.pack(format, weight)
        return self.packed[key]

    @staticmethod
    def _exact(format: str, outputs: int, inputs: int) -> torch.Tensor:
        """A weight on the host that the format holds exactly: whole numbers, each row's times a power of two."""
        bits = 8 if format.startswith("int8") else 4
        top = 2 ** (bits - 1) - 1
        codes = torch.randint(-top, top + 1, (outputs, inputs), dtype=torch.int8)
        codes[:, ::32] = -top - 1 if bits == 4 else top
        exponents = -torch.randint(0, 3, (outputs, 1)).float() - (bits + 2)
        return (codes.float() * torch.exp2(exponents)).to(_BF16)

    def _sample(self, rows: int, parameters: tuple[float, int, float, float], facts: Any) -> None:
        from aethermind.ops.catalog.sample_tokens import SAMPLE_TOKENS

        gpu = self.gpu
        logits = 3 * torch.randn(rows, self.sizes.vocab, device=gpu.device)
        temperature, top_k, top_p, min_p = parameters
        columns = [
            torch.full((rows,), value, dtype=dtype, device=gpu.device)
            for value, dtype in (
                (temperature, torch.float32),
                (top_k, torch.int32),
                (top_p, torch.float32),
                (min_p, torch.float32),
            )
        ]
        uniform = torch.rand(rows, device=gpu.device)
        out = torch.full((rows,), -1, dtype=torch.int32, device=gpu.device)
        call = gpu.bind("sample_tokens", (logits, *columns, uniform), (out,))
        gpu.run(call)
        tried = min(rows, 6)
        given = [tensor[:tried].cpu().numpy() for tensor in (logits, *columns, uniform)]
        reference = SAMPLE_TOKENS.reference(*given)
        wrong = int((out[:tried].cpu().numpy() != reference).sum())
        facts["error"] = wrong / tried
        self._time(facts, [call], [partial(torch.argmax, logits, -1)])
        self._rates(facts, 4 * rows * self.sizes.vocab, 0)
        _within(facts, 0.0)

    def _time(self, facts: Any, calls: list[Any], by_torch: list[Any]) -> None:
        if not self.is_timed:
            return
        facts["us"] = round(self.gpu.seconds(calls) * 1e6, 2)
        seconds = self.gpu.torch_seconds(by_torch) if by_torch else None
        if seconds is not None:
            facts["torch_us"] = round(seconds * 1e6, 2)

    @staticmethod
    def _rates(facts: Any, nbytes: int, flops: int) -> None:
        if "us" not in facts:
            return
        facts["GB/s"] = round(nbytes / facts["us"] / 1e3, 1)
        facts["TFLOP/s"] = round(flops / facts["us"] / 1e6, 2)

    def _normal(self, *shape: int, scale: float = 1.0) -> torch.Tensor:
        return (torch.randn(*shape, device=self.gpu.device, dtype=torch.float32) * scale).to(_BF16)

    def _poisoned(self, *shape: int, dtype: torch.dtype = _BF16) -> torch.Tensor:
        return torch.full(shape, torch.nan, dtype=dtype, device=self.gpu.device)

    @staticmethod
    def _sets(nbytes: int) -> int:
        """How many weights of so many bytes take turns."""
        return max(1, min(_MOST_SETS, -(-_MISS_L2_BYTES // max(1, nbytes))))


GROUPS = ("linear", "gate_up", "qkv", "decode", "prefill", "quantized", "sampling", "profiled")


def _encoded(cache: torch.Tensor, code: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """A cache as codes, and the scale of each vector of it."""
    largest = 127.0 if code is torch.int8 else 448.0
    scales = cache.float().abs().amax(-1) / largest
    values = cache.float() / scales[..., None].clamp_min(1e-30)
    return (values.round() if code is torch.int8 else values).to(code), scales


def _within(facts: dict[str, Any], bar: float) -> None:
    if not facts["error"] <= bar:
        raise AssertionError(f"relative error {facts['error']:.3g}, above {bar:g}")


def main() -> int:
    """Run the cases of a group that did not begin before."""
    group, sizes = sys.argv[1], SMALL if "--small" in sys.argv else Sizes()
    is_timed = "--once" not in sys.argv
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    log = CaseLog.of_environment(group)
    begun = log.begun()
    cases = [case for case in getattr(Shapes(Gpu.open(), sizes, is_timed), group)() if case[0] not in begun]
    for name, run in cases:
        with log.case(name) as facts, torch.inference_mode():
            run(facts)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
