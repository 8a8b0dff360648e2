"""Mixtures of experts at the sizes of published models: routers, products of chosen experts, and weighted sums."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from tests.cuda.check.bench import Bench, Case, Facts, Mixture, representable, within
from tests.cuda.check.gpu import error_of
from torch.nn import functional

from aethermind.ops.weight_format import DENSE

__all__ = ["Mixtures"]

_ROUNDED_TWICE = 6e-3
_CLAMPED = {"alpha": 1.702, "limit": 7.0, "up_offset": 1.0}
"""The activation of gpt-oss."""
_MOST_CHOICES_OF_EXPERTS = 16
"""How many sets of chosen experts take turns at most."""


@dataclass(frozen=True)
class _Stack:
    """The weights of all experts, float [E · N, K], twice in memory as kernels read them, and their biases [E · N]."""

    weight: torch.Tensor
    copies: tuple[torch.Tensor, torch.Tensor]
    bias: torch.Tensor | None

    def of(self, expert: int, num_experts: int, x: torch.Tensor) -> torch.Tensor:
        """The product of rows with one expert, in float32."""
        rows = len(self.weight) // num_experts
        mine = slice(expert * rows, (expert + 1) * rows)
        product = x.float() @ self.weight[mine].float().T
        return product if self.bias is None else product + self.bias[mine].float()


@dataclass(frozen=True)
class Mixtures:
    """Their cases; stacks are kept for the cases of a model and a format, which follow one another."""

    bench: Bench
    stacks: dict[tuple[Mixture, str, str], _Stack] = field(default_factory=dict)

    def mixture(self) -> Iterator[Case]:
        """Every operator by number of tokens, and the products by format."""
        for model in self.bench.sizes.mixtures:
            for tokens in self.bench.sizes.mixture_tokens:
                yield f"{model.name} router {tokens}", partial(self._router, model, tokens)
                yield f"{model.name} combine {tokens}", partial(self._combine, model, tokens)
            for format in self.bench.sizes.mixture_formats:
                for tokens in self.bench.sizes.mixture_tokens:
                    yield f"{model.name} {format} gate_up {tokens}", partial(self._gate_up, model, format, tokens)
                for tokens in self.bench.sizes.mixture_tokens:
                    yield f"{model.name} {format} down {tokens}", partial(self._down, model, format, tokens)

    def _router(self, model: Mixture, tokens: int, facts: Facts) -> None:
        gpu = self.bench.gpu
        logits = torch.randn(tokens, model.experts, device=gpu.device)
        ids = torch.full((tokens, model.chosen), -1, dtype=torch.int32, device=gpu.device)
        weights = self.bench.poisoned(tokens, model.chosen, dtype=torch.float32)
        call = gpu.bind("router_topk", (logits, None), (ids, weights), {"k": model.chosen, "renormalize": True})

        def by_torch() -> tuple[torch.Tensor, torch.Tensor]:
            values, chosen = logits.softmax(-1).topk(model.chosen)
            return values / values.sum(-1, keepdim=True), chosen

        gpu.run(call)
        expected, chosen = by_torch()
        facts["error"] = max(error_of(weights, expected), float((ids != chosen).float().mean()))
        self.bench.time(facts, [call], [by_torch])
        self.bench.rates(facts, 4 * tokens * (model.experts + 2 * model.chosen), 0)
        within(facts, 1e-5)

    def _combine(self, model: Mixture, tokens: int, facts: Facts) -> None:
        gpu = self.bench.gpu
        shape = tokens, model.chosen, model.hidden
        nbytes = 2 * tokens * (model.chosen + 1) * model.hidden
        rows = [self.bench.normal(*shape) for _ in range(self.bench.sets(nbytes))]
        weights, out = torch.rand(*shape[:2], device=gpu.device), self.bench.poisoned(tokens, model.hidden)
        calls = [gpu.bind("moe_combine", (one, weights), (out,)) for one in rows]
        gpu.run(calls[0])
        facts["error"] = error_of(out, torch.einsum("ta,tad->td", weights, rows[0].float()))
        by_torch = [partial(_weighted_sum, one, weights) for one in rows]
        self.bench.time(facts, calls, by_torch)
        self.bench.rates(facts, nbytes, 2 * tokens * model.chosen * model.hidden)
        within(facts, _ROUNDED_TWICE)

    def _gate_up(self, model: Mixture, format: str, tokens: int, facts: Facts) -> None:
        gate, up = (self._stack(model, format, which) for which in ("gate", "up"))
        x, out = self.bench.normal(tokens, model.hidden), self.bench.poisoned(tokens, model.chosen, model.inner)
        activation = _CLAMPED if model.is_clamped else {}
        attributes = {"num_experts": model.experts, **activation}

        def inputs(ids: torch.Tensor, turn: int) -> tuple[torch.Tensor | None, ...]:
            return x, ids, gate.copies[turn], up.copies[turn], gate.bias, up.bias

        def reference(expert: int, rows: torch.Tensor) -> torch.Tensor:
            return _gated(*(one.of(expert, model.experts, x[rows]) for one in (gate, up)), **activation)

        def by_torch(choices: _Choices) -> torch.Tensor:
            mine = x[choices.order // model.chosen]
            products = (choices.products(mine, one.weight, model.experts) for one in (gate, up))
            return functional.silu(next(products)) * next(products)

        self._measure("moe_gate_up_silu", model, format, inputs, attributes, out, reference, by_torch, facts)

    def _down(self, model: Mixture, format: str, tokens: int, facts: Facts) -> None:
        stack = self._stack(model, format, "down")
        x = self.bench.normal(tokens, model.chosen, model.inner)
        out = self.bench.poisoned(tokens, model.chosen, model.hidden)
        rows_of_choices = x.flatten(0, 1)

        def inputs(ids: torch.Tensor, turn: int) -> tuple[torch.Tensor | None, ...]:
            return x, ids, stack.copies[turn], stack.bias

        def by_torch(choices: _Choices) -> torch.Tensor:
            return choices.products(rows_of_choices[choices.order], stack.weight, model.experts)

        self._measure(
            "moe_linear", model, format, inputs, {"num_experts": model.experts}, out, None, by_torch, facts,
            lambda expert, choices: stack.of(expert, model.experts, rows_of_choices[choices]),
        )  # fmt: skip

    def _measure(
        self,
        operator: str,
        model: Mixture,
        format: str,
        inputs: Callable[[torch.Tensor, int], tuple[torch.Tensor | None, ...]],
        attributes: dict[str, Any],
        out: torch.Tensor,
        of_tokens: Callable[[int, torch.Tensor], torch.Tensor] | None,
        by_torch: Callable[[_Choices], torch.Tensor],
        facts: Facts,
        of_choices: Callable[[int, torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        """The error of a product and its time; its reference takes an expert and tokens, or an expert and choices."""
        gpu, tokens = self.bench.gpu, len(out)
        num_weights = 2 if operator == "moe_gate_up_silu" else 1
        chosen = self._chosen_experts(model, tokens)
        expert_bytes = num_weights * inputs(chosen[0], 0)[2].nbytes // model.experts  # type: ignore[union-attr]
        calls = [
            gpu.bind(operator, inputs(ids, turn % 2), (out,), attributes, format) for turn, ids in enumerate(chosen)
        ]
        gpu.run(calls[0])
        expected = torch.empty(out.shape, dtype=torch.float32, device=gpu.device)
        for expert in chosen[0].unique().tolist():
            choices = (chosen[0].flatten() == expert).nonzero().flatten()
            if of_tokens is not None:
                expected.view(-1, out.shape[2])[choices] = of_tokens(expert, choices // model.chosen)
            elif of_choices is not None:
                expected.view(-1, out.shape[2])[choices] = of_choices(expert, choices)
        facts["error"] = error_of(out, expected)
        del expected
        facts["experts"] = round(sum(len(ids.unique()) for ids in chosen) / len(chosen), 1)
        self.bench.time(facts, calls, [])
        if format == DENSE and self.bench.is_timed:
            self._time_torch(facts, model, chosen, by_torch)
        products = 2 * tokens * model.chosen * model.hidden * model.inner * num_weights
        self.bench.rates(facts, round(facts["experts"] * expert_bytes), products)
        within(facts, num_weights * _ROUNDED_TWICE)

    def _time_torch(
        self, facts: Facts, model: Mixture, chosen: list[torch.Tensor], by_torch: Callable[[_Choices], torch.Tensor]
    ) -> None:
        """Grouped products of choices that are sorted before, without biases; where torch has them."""
        sorted_choices = [_Choices.sort(ids, model.experts) for ids in chosen]
        try:
            seconds = self.bench.gpu.torch_seconds([partial(by_torch, one) for one in sorted_choices])
        except (AttributeError, RuntimeError) as error:
            facts["torch"] = str(error)[:80]
            return
        if seconds is not None:
            facts["torch_us"] = round(seconds * 1e6, 2)

    def _chosen_experts(self, model: Mixture, tokens: int) -> list[torch.Tensor]:
        """Experts of the tokens of some calls, int32 [T, A]: random ones, and of single tokens others in each call."""
        device = self.bench.gpu.device
        if tokens == 1:
            order = torch.randperm(model.experts, device=device).int()
            sets = order[: model.experts // model.chosen * model.chosen].split(model.chosen)
            return [ids[None].contiguous() for ids in sets[:_MOST_CHOICES_OF_EXPERTS]]
        return [
            torch.rand(tokens, model.experts, device=device).topk(model.chosen).indices.int()
            for _ in range(4 if tokens < 512 else 2)
        ]

    def _stack(self, model: Mixture, format: str, which: str) -> _Stack:
        """The weights of gate, up or down; those of another model or format are dropped."""
        key = model, format, which
        if key not in self.stacks:
            for stale in [one for one in self.stacks if one[:2] != key[:2]]:
                del self.stacks[stale]
            bench = self.bench
            outputs, inputs = (model.hidden, model.inner) if which == "down" else (model.inner, model.hidden)
            rows = model.experts * outputs
            if format == DENSE:
                weight = packed = bench.normal(rows, inputs, scale=inputs**-0.5)
            else:
                weight = representable(format, rows, inputs, bench.gpu.device)
                packed = bench.gpu.pack(format, weight, "moe_linear")
            bias = bench.normal(rows) if model.is_clamped else None
            self.stacks[key] = _Stack(weight, (packed, packed.clone()), bias)
        return self.stacks[key]


@dataclass(frozen=True)
class _Choices:
    """Choices by expert: their order, int64 [T · A], and the end of each expert's, int32 [E]."""

    order: torch.Tensor
    ends: torch.Tensor

    @classmethod
    def sort(cls, ids: torch.Tensor, num_experts: int) -> _Choices:
        """Of ids [T, A]."""
        counts = torch.bincount(ids.flatten(), minlength=num_experts)
        return cls(ids.flatten().argsort(), counts.cumsum(0).int())

    def products(self, rows: torch.Tensor, stack: torch.Tensor, num_experts: int) -> torch.Tensor:
        """torch's grouped product of sorted rows with their experts."""
        weights = stack.unflatten(0, (num_experts, -1)).transpose(1, 2)
        grouped: torch.Tensor = torch._grouped_mm(rows, weights, offs=self.ends)
        return grouped


def _gated(
    gate: torch.Tensor, up: torch.Tensor, *, alpha: float = 1.0, limit: float = 0.0, up_offset: float = 0.0
) -> torch.Tensor:
    if limit:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * torch.sigmoid(alpha * gate) * (up + up_offset)


def _weighted_sum(rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return torch.bmm(weights[:, None].to(rows.dtype), rows)
