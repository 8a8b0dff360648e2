"""Kernels over logits by torch, written out plainly so that each line can be broken."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from tests.conformance.planted.subject.arrays import Array, Attributes, Inputs, put, tensor

__all__ = ["INVARIANT", "OTHERS"]

KEPT: Any = {}
"""Nothing; what bugs keep between calls."""


def token_rows(inputs: Inputs) -> list[tuple[int, torch.Tensor, slice]]:
    tokens, bounds = tensor(inputs[1]).long(), inputs[2].tolist()
    parts = [slice(begin, end) for begin, end in pairwise(bounds)]
    return [(row, tokens[part], part) for row, part in enumerate(parts)]


def repetition_penalty(inputs: Inputs, outputs: Inputs, _: Attributes) -> None:
    out, penalty = tensor(inputs[0]).clone(), inputs[3].tolist()
    for row, tokens, _part in token_rows(inputs):
        seen = out[row, tokens]
        out[row, tokens] = torch.where(seen > 0, seen / penalty[row], seen * penalty[row])
    put(outputs[0], out)


def bias_tokens(inputs: Inputs, outputs: Inputs, _: Attributes) -> None:
    out, bias = tensor(inputs[0]).clone(), tensor(inputs[3])
    for row, tokens, part in token_rows(inputs):
        out[row, tokens] += bias[part]
    put(outputs[0], out)


def suppress_tokens(inputs: Inputs, outputs: Inputs, _: Attributes) -> None:
    out = tensor(inputs[0]).clone()
    for row, tokens, _part in token_rows(inputs):
        out[row, tokens] = -math.inf
    put(outputs[0], out)


def mask_tokens(inputs: Inputs, outputs: Inputs, _: Attributes) -> None:
    logits, mask = map(tensor, inputs)
    token = torch.arange(logits.shape[1])
    is_allowed = (mask[:, token // 32] >> (token % 32)) & 1
    put(outputs[0], logits.masked_fill(is_allowed == 0, -math.inf))


def token_logprobs(inputs: Inputs, outputs: Inputs, attributes: Attributes) -> None:
    logits, ids, k = tensor(inputs[0]), tensor(inputs[1]).long(), attributes["k"]
    largest = logits.amax(-1, keepdim=True)
    logprobs = logits - (largest + torch.log(torch.exp(logits - largest).sum(-1, keepdim=True)))
    chosen = logits.gather(1, ids[:, None])
    found = min(k, logits.shape[1])
    top = torch.sort(-logits, dim=-1, stable=True).indices[:, :found]
    put(outputs[0], logprobs.gather(1, ids[:, None])[:, 0])
    put(outputs[1], 1 + (logits > chosen).sum(-1))
    tensor(outputs[2]).fill_(-1)
    tensor(outputs[3]).fill_(-math.inf)
    tensor(outputs[2])[:, :found] = top.int()
    tensor(outputs[3])[:, :found] = logprobs.gather(1, top)


def sample_tokens(inputs: Inputs, outputs: Inputs, _: Attributes) -> None:
    for row, (logits, *cuts) in enumerate(zip(*inputs, strict=True)):
        outputs[0][row] = sampled(logits, *(float(cut) for cut in cuts))


def sampled(logits: Array, temperature: float, top_k: float, top_p: float, min_p: float, uniform: float) -> int:
    if temperature == 0 or not np.isfinite(logits.max()):
        return int(np.argmax(logits))
    wide = logits.astype(np.float64)
    weights = np.exp((wide - wide.max()) / temperature)
    if top_k == 0 and top_p >= 1 and min_p <= 0:
        order = np.arange(len(weights))
    else:
        order = np.argsort(-wide, kind="stable")
        if top_k > 0:
            order = order[: int(top_k)]
        reached = np.cumsum(weights[order])
        order = order[: int(np.sum(reached[:-1] < top_p * reached[-1])) + 1]
        order = order[weights[order] >= min_p * weights[order[0]]]
    reached = np.cumsum(weights[order])
    return int(order[np.searchsorted(reached / reached[-1], uniform, side="right")])


INVARIANT: Mapping[str, Callable[[Inputs, Inputs, Attributes], None]] = {
    "repetition_penalty": repetition_penalty,
    "bias_tokens": bias_tokens,
    "suppress_tokens": suppress_tokens,
    "mask_tokens": mask_tokens,
    "sample_tokens": sample_tokens,
}
OTHERS: Mapping[str, Callable[[Inputs, Inputs, Attributes], None]] = {"token_logprobs": token_logprobs}
