"""LoRA adapters of rank 16 on projections of Qwen2-7B."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from tests.cuda.check.bench import Bench, Case, Facts, within
from tests.cuda.check.gpu import error_of

__all__ = ["Adapters"]

_NUM_ADAPTERS = 8
_RANK = 16
_ROUNDED_TWICE = 6e-3


@dataclass(frozen=True)
class Adapters:
    """Their cases."""

    bench: Bench

    def adapters(self) -> Iterator[Case]:
        """q and down, where rows of a batch have different adapters, and a prompt has one."""
        hidden, inner = self.bench.sizes.hidden, self.bench.sizes.inner
        for name, outputs, inputs in (("q", hidden, hidden), ("down", hidden, inner)):
            for tokens in self.bench.sizes.adapted_tokens:
                yield f"{name} {tokens}", partial(self._add, tokens, outputs, inputs)

    def _add(self, tokens: int, outputs: int, inputs: int, facts: Facts) -> None:
        bench, gpu = self.bench, self.bench.gpu
        y, x = bench.normal(tokens, outputs), bench.normal(tokens, inputs)
        down = bench.normal(_NUM_ADAPTERS * _RANK, inputs, scale=inputs**-0.5)
        up = bench.normal(_NUM_ADAPTERS * _RANK, outputs, scale=_RANK**-0.5)
        cuts = torch.arange(0, (_NUM_ADAPTERS + 1) * _RANK, _RANK, dtype=torch.int32, device=gpu.device)
        rows = torch.arange(tokens, dtype=torch.int32, device=gpu.device)
        chosen = rows % _NUM_ADAPTERS if tokens <= 256 else torch.ones_like(rows)
        out = bench.poisoned(tokens, outputs)
        call = gpu.bind("add_low_rank", (y, x, down, up, cuts, chosen), (out,))
        gpu.run(call)
        ranks = (x.float() @ down.float().T).reshape(tokens, _NUM_ADAPTERS, _RANK)
        own = ranks[torch.arange(tokens, device=gpu.device), chosen.long()]
        added = torch.einsum("tr,trn->tn", own, up.float().reshape(_NUM_ADAPTERS, _RANK, outputs)[chosen.long()])
        facts["error"] = error_of(out, y.float() + added)
        bench.time(facts, [call], [])
        used = min(tokens, _NUM_ADAPTERS) * _RANK * (inputs + outputs) if tokens <= 256 else _RANK * (inputs + outputs)
        bench.rates(facts, 2 * (tokens * (inputs + 2 * outputs) + used), 2 * tokens * _RANK * (inputs + outputs))
        within(facts, _ROUNDED_TWICE)
