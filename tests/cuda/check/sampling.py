"""Tokens of logits as wide as Qwen2's vocabulary."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from tests.cuda.check.bench import Bench, Case, Facts, within

from aethermind.ops.catalog.sampling import SAMPLE_TOKENS

__all__ = ["Sampling"]


@dataclass(frozen=True)
class Sampling:
    """Its cases."""

    bench: Bench

    def sampling(self) -> Iterator[Case]:
        """Tokens of logits."""
        kinds = {
            "greedy": (0.0, 0, 1.0, 0.0),
            "plain": (1.0, 0, 1.0, 0.0),
            "top_k": (0.8, 40, 1.0, 0.0),
            "top_p": (0.8, 0, 0.9, 0.0),
            "all": (0.7, 50, 0.9, 0.05),
        }
        for rows in self.bench.sizes.sampled_rows:
            for kind, parameters in kinds.items():
                yield f"{kind} {rows}", partial(self._sample, rows, parameters)

    def _sample(self, rows: int, parameters: tuple[float, int, float, float], facts: Facts) -> None:
        gpu = self.bench.gpu
        logits = 3 * torch.randn(rows, self.bench.sizes.vocab, device=gpu.device)
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
        self.bench.time(facts, [call], [partial(torch.argmax, logits, -1)])
        self.bench.rates(facts, 4 * rows * self.bench.sizes.vocab, 0)
        within(facts, 0.0)
