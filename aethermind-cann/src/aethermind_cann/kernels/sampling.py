"""Token sampling and logprobs."""

from __future__ import annotations

import torch

from aethermind_cann.kernels._kernel import Attributes, Tensors, plain_kernel, put
from aethermind_cann.run_memo import host_decision

__all__ = ["KERNELS"]


def _sample_tokens(inputs: Tensors, outputs: Tensors, _: Attributes) -> None:
    logits, temperature, top_k, top_p, min_p, uniform = inputs
    greedy = logits.argmax(-1)
    is_greedy = temperature == 0
    if host_decision(temperature, _are_all_zero):
        put(outputs[0], greedy)
        return
    # A running sum over a large vocabulary loses the tail in float32; float64 is slow on the device but available.
    divisor = torch.where(is_greedy, 1.0, temperature).double()[:, None]
    random = uniform.double()[:, None]
    weights = _weights(logits.double(), divisor)
    chosen = _first_beyond(weights, random)
    is_truncated = (top_k > 0) | (top_p < 1) | (min_p > 0)
    if (
        host_decision(top_k, _is_any_positive)
        or host_decision(top_p, _is_any_below_1)
        or host_decision(min_p, _is_any_positive)
    ):
        truncated = _sample_truncated(
            logits, divisor, top_k[:, None], top_p.double()[:, None], min_p.double()[:, None], random
        )
        chosen = torch.where(is_truncated, truncated, chosen)
    put(outputs[0], torch.where(is_greedy, greedy, chosen))


def _are_all_zero(values: list[float]) -> bool:
    return not any(values)


def _is_any_positive(values: list[float]) -> bool:
    return any(value > 0 for value in values)


def _is_any_below_1(values: list[float]) -> bool:
    return any(value < 1 for value in values)


def _weights(logits: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    return ((logits - logits.amax(-1, keepdim=True)) / temperature).exp()


def _first_beyond(weights: torch.Tensor, random: torch.Tensor) -> torch.Tensor:
    """Return the first index of each row whose cumulative probability exceeds `random` [R, 1] in [0, 1)."""
    running_sum = weights.cumsum(-1)
    return (running_sum / running_sum[:, -1:] <= random).sum(-1)


def _sample_truncated(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    random: torch.Tensor,
) -> torch.Tensor:
    """Sample under top_k, top_p and min_p: each keeps a prefix of the tokens in descending order, ties by id."""
    ordered, tokens = logits.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(logits.shape[1], device=logits.device)
    weights = _weights(ordered.double(), temperature)
    weights = torch.where((top_k == 0) | (rank < top_k), weights, 0.0)
    running_sum = weights.cumsum(-1)
    num_kept = (running_sum < top_p * running_sum[:, -1:]).sum(-1, keepdim=True) + 1
    is_kept = (rank < num_kept) & (weights >= min_p * weights[:, :1])
    position = _first_beyond(torch.where(is_kept, weights, 0.0), random)
    return tokens.gather(1, position[:, None])[:, 0]


def _token_logprobs(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    logits, token_ids = inputs
    logprob, rank, top_ids, top_logprobs = outputs
    logprobs = logits - logits.logsumexp(-1, keepdim=True)
    chosen = token_ids.long()[:, None]
    put(logprob, logprobs.gather(1, chosen)[:, 0])
    put(rank, 1 + (logits > logits.gather(1, chosen)).sum(-1))
    num_found = min(attributes["k"], logits.shape[1])
    if num_found < attributes["k"]:
        top_ids.fill_(-1)
        top_logprobs.fill_(-torch.inf)
    if num_found:
        order = logits.sort(dim=-1, descending=True, stable=True)[1][:, :num_found]
        put(top_ids[:, :num_found], order)
        put(top_logprobs[:, :num_found], logprobs.gather(1, order))


KERNELS = [
    plain_kernel("sample_tokens", _sample_tokens),
    plain_kernel("token_logprobs", _token_logprobs),
]
