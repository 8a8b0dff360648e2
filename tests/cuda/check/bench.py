"""What the cases of `shapes` share: sizes, inputs, times, and the bar of an error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from tests.cuda.check.gpu import Enqueue, Gpu

__all__ = ["Bench", "Case", "Facts", "Heads", "Mixture", "Recurrence", "SMALL", "Sizes", "representable", "within"]

Facts = dict[str, Any]
Case = tuple[str, Callable[[Facts], None]]
"""Its name, and what measures it and says what it found."""

_MISS_L2_BYTES = 192 << 20
_MAX_SETS = 96


class Recurrence(NamedTuple):
    """A recurrent layer of a model: groups of heads, heads, and the rows and columns of a head's state."""

    model: str
    operator: str
    num_groups: int
    num_heads: int
    depth: int
    width: int

    @property
    def row_size(self) -> int:
        """Elements of a token: queries, keys and values."""
        return 2 * self.num_groups * self.depth + self.num_heads * self.width


@dataclass(frozen=True)
class Heads:
    """Heads of attention, and what is done to their scores."""

    name: str
    heads: int
    kv_heads: int
    head_dim: int
    window: int = 0
    softcap: float = 0.0
    has_sinks: bool = False
    has_slopes: bool = False


@dataclass(frozen=True)
class Mixture:
    """The experts of a layer; clamped ones are those of gpt-oss, with biases."""

    name: str
    hidden: int
    inner: int
    experts: int
    chosen: int
    is_clamped: bool = False


@dataclass(frozen=True)
class Sizes:
    """Those of Qwen2-7B unless said otherwise."""

    hidden: int = 3584
    inner: int = 18944
    heads: int = 28
    kv_heads: int = 4
    head_dim: int = 128
    vocab: int = 152064
    tokens: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 33, 64, 128, 256, 2048)
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
    adapted_tokens: tuple[int, ...] = (1, 64, 256, 1024)
    formats: tuple[str, ...] = ("int4", "int4_g128", "int8", "fp8")
    recurrences: tuple[Recurrence, ...] = (
        Recurrence("qwen3_next", "gated_delta_rule", 16, 32, 128, 128),
        Recurrence("mamba2", "ssd_scan", 1, 80, 128, 64),
        Recurrence("falcon_h1", "ssd_scan", 1, 24, 256, 128),
    )
    recurrent_decodes: tuple[int, ...] = (1, 64, 256)
    recurrent_prompt: int = 2048
    scored_heads: tuple[Heads, ...] = (
        Heads("gemma2-9b capped", 16, 8, 256, softcap=50.0),
        Heads("gemma2-27b capped", 32, 16, 128, softcap=50.0),
        Heads("gpt-oss sinks", 64, 8, 64, has_sinks=True),
        Heads("gpt-oss sinks window", 64, 8, 64, window=128, has_sinks=True),
        Heads("bloom-7b slopes", 32, 32, 128, has_slopes=True),
    )
    scored_batches: tuple[tuple[tuple[int, int], ...], ...] = (((1, 4096),), ((1, 4096),) * 64, ((2048, 2048),))
    mixtures: tuple[Mixture, ...] = (
        Mixture("qwen3-30b-a3b", 2048, 768, 128, 8),
        Mixture("gpt-oss-20b", 2880, 2880, 32, 4, is_clamped=True),
    )
    mixture_tokens: tuple[int, ...] = (1, 8, 64, 512, 2048)
    mixture_formats: tuple[str, ...] = ("dense", "int4")


SMALL = Sizes(
    *(256, 512, 4, 2, 64, 1024),
    tokens=(1, 33),
    quantized_tokens=(1, 33),
    logit_rows=(1, 33),
    decodes=((1, 64), (3, 40)),
    prefills=(((33, 33),), ((1, 20), (40, 90))),
    sampled_rows=(1, 5),
    adapted_tokens=(1, 9),
    formats=("int4", "int8", "fp8"),
    recurrences=(Recurrence("delta", "gated_delta_rule", 1, 2, 16, 32), Recurrence("scan", "ssd_scan", 1, 2, 16, 24)),
    recurrent_decodes=(1, 3),
    recurrent_prompt=20,
    scored_heads=(
        Heads("capped", 4, 2, 256, softcap=50.0),
        Heads("sinks window", 4, 2, 64, window=16, has_sinks=True),
        Heads("slopes", 4, 4, 64, has_slopes=True),
    ),
    scored_batches=(((1, 64),), ((33, 33),)),
    mixtures=(Mixture("plain", 64, 48, 8, 2), Mixture("clamped", 64, 48, 4, 2, is_clamped=True)),
    mixture_tokens=(1, 33),
)
"""For a rehearsal."""


@dataclass(frozen=True)
class Bench:
    """A GPU, and the sizes of what is tried on it; `is_timed` False runs everything once, for a profiler."""

    gpu: Gpu
    sizes: Sizes
    is_timed: bool = True

    def time(self, facts: Facts, calls: Sequence[Enqueue], by_torch: Sequence[Callable[[], object]]) -> None:
        """Note the microseconds of a call, ours and torch's."""
        if not self.is_timed:
            return
        facts["us"] = round(self.gpu.seconds(calls) * 1e6, 2)
        seconds = self.gpu.torch_seconds(by_torch) if by_torch else None
        if seconds is not None:
            facts["torch_us"] = round(seconds * 1e6, 2)

    @staticmethod
    def rates(facts: Facts, nbytes: int, flops: int) -> None:
        """Note what these bytes and operations come to in the time that was noted."""
        if "us" in facts:
            facts["GB/s"] = round(nbytes / facts["us"] / 1e3, 1)
            facts["TFLOP/s"] = round(flops / facts["us"] / 1e6, 2)

    def normal(self, *shape: int, scale: float = 1.0) -> torch.Tensor:
        """Normal numbers in bfloat16."""
        return (torch.randn(*shape, device=self.gpu.device, dtype=torch.float32) * scale).to(torch.bfloat16)

    def adjacent(self, *rows: int, inputs: int) -> list[torch.Tensor]:
        """Weights one behind the other, as a plan has those of a step."""
        return [*self.normal(sum(rows), inputs, scale=inputs**-0.5).split(rows)]

    def poisoned(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        """Memory that shows what was not written."""
        return torch.full(shape, torch.nan, dtype=dtype, device=self.gpu.device)

    @staticmethod
    def sets(nbytes: int) -> int:
        """How many weights of so many bytes take turns, so that the L2 cache does not hold them."""
        return max(1, min(_MAX_SETS, -(-_MISS_L2_BYTES // max(1, nbytes))))


def within(facts: Facts, bar: float) -> None:
    """AssertionError for a relative error above the bar; that of no number is."""
    if not facts["error"] <= bar:
        raise AssertionError(f"relative error {facts['error']:.3g}, above {bar:g}")


def representable(format: str, outputs: int, inputs: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """A weight in bfloat16 that the format holds exactly: codes, each row's times a power of two."""
    if format == "fp8":
        values = (torch.randn(outputs, inputs, device=device) * 100).clamp(-448, 448).to(torch.float8_e4m3fn).float()
        values[:, 0] = 448
        return (values * torch.exp2(-torch.randint(0, 3, (outputs, 1), device=device).float() - 14)).to(torch.bfloat16)
    bits = 8 if format.startswith("int8") else 4
    top = 2 ** (bits - 1) - 1
    codes = torch.randint(-top, top + 1, (outputs, inputs), dtype=torch.int8, device=device)
    codes[:, ::32] = -top - 1 if bits == 4 else top
    exponents = -torch.randint(0, 3, (outputs, 1), device=device).float() - (bits + 2)
    return (codes.float() * torch.exp2(exponents)).to(torch.bfloat16)
