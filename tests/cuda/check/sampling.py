"""Tokens, log probabilities and processors of logits as wide as Qwen2's vocabulary."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from tests.cuda.check.bench import Bench, Case, Facts, within
from tests.cuda.check.gpu import error_of

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
            "flat top_p": (4.0, 0, 0.9, 0.0),
            "flat min_p": (4.0, 0, 1.0, 0.01),
            "top_k 3000": (0.8, 3000, 1.0, 0.0),
            "min_p": (0.8, 0, 1.0, 0.05),
            "all": (0.7, 50, 0.9, 0.05),
            "peaked top_p": (1.0, 0, 0.9, 0.0),
            "peaked top_p 0.95": (1.0, 0, 0.95, 0.0),
            "peaked top_p 0.99": (1.0, 0, 0.99, 0.0),
            "peaked min_p": (1.0, 0, 1.0, 0.05),
        }
        for rows in self.bench.sizes.sampled_rows:
            for kind, parameters in kinds.items():
                yield f"{kind} {rows}", partial(self._sample, rows, parameters, kind.startswith("peaked"))
            for k in (0, 5):
                yield f"logprobs {k} {rows}", partial(self._logprobs, rows, k)
            yield f"penalty {rows}", partial(self._penalty, rows)
            yield f"mask {rows}", partial(self._mask, rows)

    def _sample(self, rows: int, parameters: tuple[float, int, float, float], is_peaked: bool, facts: Facts) -> None:
        gpu = self.bench.gpu
        logits = self._peaked_logits(rows) if is_peaked else self._logits(rows)
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

    def _logits(self, rows: int) -> torch.Tensor:
        return 3 * torch.randn(rows, self.bench.sizes.vocab, device=self.bench.gpu.device)

    def _peaked_logits(self, rows: int) -> torch.Tensor:
        """Logits whose 20 largest hold 96 % of the probability, the i-th 1/i of the first, as trained models' do."""
        logits = self._logits(rows) * (2 / 3)
        ids = torch.rand(logits.shape, device=logits.device).topk(20).indices
        share = 1 / torch.arange(1, 21, device=logits.device)
        others = torch.logsumexp(logits, -1, keepdim=True)
        return logits.scatter(1, ids, others + torch.log(24 * share / share.sum()))

    def _logprobs(self, rows: int, k: int, facts: Facts) -> None:
        gpu, logits = self.bench.gpu, self._logits(rows)
        ids = torch.randint(logits.shape[1], (rows,), device=gpu.device)
        ranks = [torch.full(shape, -1, dtype=torch.int32, device=gpu.device) for shape in ((rows,), (rows, k))]
        logprob, top = (self.bench.poisoned(*rank.shape, dtype=torch.float32) for rank in ranks)
        outputs = (logprob, ranks[0], ranks[1], top)
        call = gpu.bind("token_logprobs", (logits, ids.to(torch.int32)), outputs, {"k": k})
        gpu.run(call)
        expected = torch.log_softmax(logits, -1)
        chosen = expected.gather(1, ids[:, None])
        assert torch.equal(ranks[0].long(), 1 + (logits > logits.gather(1, ids[:, None])).sum(-1))
        facts["error"] = max(error_of(logprob, chosen[:, 0]), error_of(top, expected.topk(k).values) if k else 0.0)
        self.bench.time(facts, [call], [partial(torch.log_softmax, logits, -1)])
        self.bench.rates(facts, 4 * logits.numel(), 0)
        within(facts, 1e-5)

    def _penalty(self, rows: int, facts: Facts) -> None:
        """Each row's own tokens, an eighth of them at the most, as a long conversation has."""
        gpu, logits = self.bench.gpu, self._logits(rows)
        count = min(2048, logits.shape[1] // 8)
        ids = torch.rand(logits.shape, device=gpu.device).topk(count).indices.to(torch.int32)
        cuts = torch.arange(0, (rows + 1) * count, count, dtype=torch.int32, device=gpu.device)
        penalty = 1 + torch.rand(rows, device=gpu.device)
        out = torch.empty_like(logits).fill_(torch.nan)
        gpu.run(gpu.bind("repetition_penalty", (logits, ids.reshape(-1), cuts, penalty), (out,)))
        changed = logits.gather(1, ids.long())
        changed = torch.where(changed > 0, changed / penalty[:, None], changed * penalty[:, None])
        facts["error"] = error_of(out, logits.scatter(1, ids.long(), changed))
        # A plan changes its logits where they are.
        self.bench.time(facts, [gpu.bind("repetition_penalty", (out, ids.reshape(-1), cuts, penalty), (out,))], [])
        within(facts, 1e-6)

    def _mask(self, rows: int, facts: Facts) -> None:
        gpu, logits = self.bench.gpu, self._logits(rows)
        words = torch.randint(-(2**31), 2**31, (rows, -(-logits.shape[1] // 32)), device=gpu.device)
        allowed = (words[:, :, None] >> torch.arange(32, device=gpu.device) & 1).reshape(rows, -1) == 1
        out = torch.empty_like(logits).fill_(torch.nan)
        gpu.run(gpu.bind("mask_tokens", (logits, words.to(torch.int32)), (out,)))
        expected = torch.where(allowed[:, : logits.shape[1]], logits, -torch.inf)
        facts["error"] = float((out != expected).sum())
        self.bench.time(facts, [gpu.bind("mask_tokens", (out, words.to(torch.int32)), (out,))], [])
        within(facts, 0.0)
