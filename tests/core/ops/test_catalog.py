"""Every page of the catalog says what torch says, in float64, over its own samples."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from tests.core.ops import torch_mixture, torch_recurrent
from tests.core.ops.torch_cache import (
    kv_cache_write,
    kv_cache_write_quantized,
    latent_cache_write,
    mla_attention,
    paged_attention,
    paged_attention_quantized,
    rope,
    shift_keys,
    shift_keys_quantized,
)
from torch.nn import functional

from aethermind.dispatch.reference import evaluate, rounded_inputs
from aethermind.hal.dtype import DType
from aethermind.ops import catalog
from aethermind.ops.catalog.attention import alibi_slopes
from aethermind.ops.operator import Operator, OperatorRegistry, Sample
from aethermind.ops.schema import TensorType

OPERATORS = catalog.load()
REGISTRY = OperatorRegistry(OPERATORS)
CASES = [
    pytest.param(operator, sample, id=f"{operator.name}-{sample.label}")
    for operator in OPERATORS
    for sample in operator.samples(np.random.default_rng(7))
]

each_operator = pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.name)
each_case = pytest.mark.parametrize(("operator", "sample"), CASES)


def rope_table(positions, inv_freq, scale):
    rounded = torch.outer(positions.float(), inv_freq.float()).double()
    exact = torch.outer(positions.double(), inv_freq.float().double())
    angle = torch.where(positions.abs()[:, None] <= 2**24, rounded, exact)
    return torch.cat([torch.cos(angle), torch.sin(angle)], dim=1) * scale


def rms_norm(x, weight, eps, weight_offset):
    return functional.rms_norm(x, weight.shape, weight_offset + weight, eps)


def add_rms_norm(x, residual, weight, eps, weight_offset):
    return rms_norm(x + residual, weight, eps, weight_offset), x + residual


def mlp_swiglu(x, w_gate, w_up, w_down):
    return functional.linear(functional.silu(functional.linear(x, w_gate)) * functional.linear(x, w_up), w_down)


def qkv_rope_cache_write(
    x,
    w_q,
    w_k,
    w_v,
    b_q,
    b_k,
    b_v,
    q_norm,
    k_norm,
    table,
    slots,
    k_cache,
    v_cache,
    num_heads,
    num_kv_heads,
    eps,
    weight_offset,
):
    q = functional.linear(x, w_q, b_q).unflatten(1, (num_heads, -1))
    k = functional.linear(x, w_k, b_k).unflatten(1, (num_kv_heads, -1))
    v = functional.linear(x, w_v, b_v).unflatten(1, (num_kv_heads, -1))
    q = q if q_norm is None else rms_norm(q, q_norm, eps, weight_offset)
    k = k if k_norm is None else rms_norm(k, k_norm, eps, weight_offset)
    return rope(q, table), *kv_cache_write(rope(k, table), v, slots, k_cache, v_cache)


def qkv_rope_cache_write_quantized(*inputs, **attributes):
    *others, slots, k_cache, v_cache, k_scale, v_scale = inputs
    tokens = len(slots)
    block = torch.zeros(tokens, *k_cache.shape[1:2], 1, k_cache.shape[3], dtype=torch.float64)
    q, k, v = qkv_rope_cache_write(*others, torch.arange(tokens), block, block, **attributes)
    caches = (k_cache, v_cache, k_scale, v_scale)
    return q, *kv_cache_write_quantized(k[:, :, 0], v[:, :, 0], slots, *caches)


def add_low_rank(y, x, down, up, cu_ranks, adapters):
    ranks = [slice(begin, end) for begin, end in pairwise(cu_ranks.tolist())]
    rows = [
        row if adapter < 0 else row + up[ranks[adapter]].T @ (down[ranks[adapter]] @ value)
        for row, value, adapter in zip(y, x, adapters.tolist(), strict=True)
    ]
    return torch.stack(rows) if rows else y


def attention(q, k, v, scale, causal):
    num_queries, num_keys, num_groups = q.shape[-3], k.shape[-3], q.shape[-2] // k.shape[-2]
    q, k, v = (
        x.transpose(-3, -2) for x in (q, k.repeat_interleave(num_groups, -2), v.repeat_interleave(num_groups, -2))
    )
    visible = torch.ones(num_queries, num_keys, dtype=torch.bool)
    visible = visible.tril(num_keys - num_queries) if causal else visible
    out = functional.scaled_dot_product_attention(q, k, v, attn_mask=visible, scale=scale)
    return torch.where(visible.any(1)[:, None], out, 0).transpose(-3, -2)


def alibi(scores, slopes):
    num_queries, num_keys = scores.shape[-2:]
    behind = torch.tensor([[num_keys - num_queries + q - k for k in range(num_keys)] for q in range(num_queries)])
    return scores - torch.einsum("h,qk->hqk", slopes, behind.reshape(num_queries, num_keys).double())


def gelu(x, approximate):
    return functional.gelu(x, approximate="tanh" if approximate else "none")


def gate_up_gelu(x, w_gate, w_up, approximate):
    return gelu(functional.linear(x, w_gate), approximate) * functional.linear(x, w_up)


def mlp_geglu(x, w_gate, w_up, w_down, approximate):
    return functional.linear(gate_up_gelu(x, w_gate, w_up, approximate), w_down)


def ffn_relu(x, w_in, b_in, w_out, b_out):
    return functional.linear(functional.relu(functional.linear(x, w_in, b_in)), w_out, b_out)


def ffn_gelu(x, w_in, b_in, w_out, b_out, approximate):
    return functional.linear(gelu(functional.linear(x, w_in, b_in), approximate), w_out, b_out)


def suppress_tokens(logits, tokens, cu_tokens):
    rows = [
        row.index_fill(0, tokens[begin:end].long(), -torch.inf)
        for row, begin, end in zip(logits, cu_tokens[:-1], cu_tokens[1:], strict=True)
    ]
    return torch.stack(rows) if rows else logits


def repetition_penalty(logits, tokens, cu_tokens, penalty):
    out = logits.clone()
    for row in range(len(logits)):
        for token in tokens[cu_tokens[row] : cu_tokens[row + 1]].tolist():
            logit = logits[row, token]
            out[row, token] = logit / penalty[row] if logit > 0 else logit * penalty[row]
    return out


def bias_tokens(logits, tokens, cu_tokens, bias):
    rows = [
        row.index_add(0, tokens[begin:end].long(), bias[begin:end])
        for row, begin, end in zip(logits, cu_tokens[:-1], cu_tokens[1:], strict=True)
    ]
    return torch.stack(rows) if rows else logits


def mask_tokens(logits, mask):
    token_ids = torch.arange(logits.shape[1])
    is_allowed = (mask[:, token_ids // 32] >> (token_ids % 32)) & 1
    return logits.masked_fill(is_allowed == 0, -torch.inf)


def sample_tokens(logits, temperature, top_k, top_p, min_p, uniform):
    rows = zip(logits, *(row.tolist() for row in (temperature, top_k, top_p, min_p, uniform)), strict=True)
    return torch.tensor([sample_one_token(*row) for row in rows], dtype=torch.int32)


def sample_one_token(logits, temperature, top_k, top_p, min_p, uniform):
    if temperature == 0:
        return logits.tolist().index(max(logits.tolist()))
    probabilities = torch.softmax(logits / temperature, dim=0).tolist()
    kept = list(range(len(probabilities)))
    if (top_k, min(top_p, 1.0), max(min_p, 0.0)) != (0, 1.0, 0.0):
        kept.sort(key=lambda token: (-probabilities[token], token))
        kept = kept[: top_k or None]
        total, mass, nucleus = sum(probabilities[token] for token in kept), 0.0, []
        for token in kept:
            if nucleus and mass >= top_p * total:
                break
            nucleus.append(token)
            mass += probabilities[token]
        least = min_p * max(probabilities)
        kept = [token for token in nucleus if probabilities[token] >= least]
    total, mass = sum(probabilities[token] for token in kept), 0.0
    for token in kept:
        mass += probabilities[token]
        if mass / total > uniform:
            return token
    raise AssertionError("the running sum never reached uniform")


def token_logprobs(logits, token_ids, k):
    logprobs = functional.log_softmax(logits, dim=-1)
    logprob = logprobs.gather(1, token_ids.long()[:, None])
    rank = 1 + (logits > logits.gather(1, token_ids.long()[:, None])).sum(1)
    top = logprobs.sort(dim=-1, descending=True, stable=True)
    missing = (0, max(0, k - logits.shape[1]))
    top_ids = functional.pad(top.indices[:, :k], missing, value=-1)
    return logprob[:, 0], rank.int(), top_ids.int(), functional.pad(top.values[:, :k], missing, value=-torch.inf)


def first_largest(x, dim, keepdim):
    """torch promises no particular index on ties."""
    return (x.cummax(dim).values < x.amax(dim, keepdim=True)).sum(dim, keepdim=keepdim).int()


def product(x, dim, keepdim):
    """torch.prod takes one dim."""
    shape = x.sum(dim, keepdim=keepdim).shape
    for each in sorted({each % x.ndim for each in dim or range(x.ndim)}, reverse=True):
        x = x.prod(each)
    return x.reshape(shape)


TORCH: dict[str, Callable[..., Any]] = {
    "embedding": lambda token_ids, table: functional.embedding(token_ids, table),
    "position_embedding": lambda positions, table: functional.embedding(positions, table),
    "rope_table": rope_table,
    "rms_norm": rms_norm,
    "linear": functional.linear,
    "add_low_rank": add_low_rank,
    "split_heads": lambda x, num_heads: x.unflatten(1, (num_heads, x.shape[1] // num_heads)),
    "rope": rope,
    "kv_cache_write": kv_cache_write,
    "qkv_rope_cache_write": qkv_rope_cache_write,
    "paged_attention": paged_attention,
    "shift_keys": shift_keys,
    "shift_keys_quantized": shift_keys_quantized,
    "kv_cache_write_quantized": kv_cache_write_quantized,
    "qkv_rope_cache_write_quantized": qkv_rope_cache_write_quantized,
    "paged_attention_quantized": paged_attention_quantized,
    "merge_heads": lambda x: x.flatten(1),
    "add": torch.add,
    "add_rms_norm": add_rms_norm,
    "silu": functional.silu,
    "mul": torch.mul,
    "silu_mul": lambda gate, up: functional.silu(gate) * up,
    "gate_up_silu": lambda x, w_gate, w_up: functional.silu(functional.linear(x, w_gate)) * functional.linear(x, w_up),
    "mlp_swiglu": mlp_swiglu,
    "scatter_rows": lambda x, values, rows: x.index_copy(0, rows.long(), values),
    "gather_rows": lambda x, rows: x.index_select(0, rows),
    "lm_head": functional.linear,
    "suppress_tokens": suppress_tokens,
    "bias_tokens": bias_tokens,
    "mask_tokens": mask_tokens,
    "repetition_penalty": repetition_penalty,
    "sample_tokens": sample_tokens,
    "token_logprobs": token_logprobs,
    "layer_norm": lambda x, weight, bias, eps: functional.layer_norm(x, weight.shape, weight, bias, eps),
    "attention": attention,
    "alibi": alibi,
    "relu": functional.relu,
    "gelu": gelu,
    "clamp": lambda x, limit: torch.clamp(x, -limit, limit),
    "softcap": lambda x, cap: cap * torch.tanh(x / cap),
    "scale": lambda x, factor: x * factor,
    "gate_up_gelu": gate_up_gelu,
    "mlp_geglu": mlp_geglu,
    "ffn_relu": ffn_relu,
    "ffn_gelu": ffn_gelu,
    "sub": torch.sub,
    "div": torch.div,
    "exp": torch.exp,
    "log": torch.log,
    "cast": lambda x, dtype: x.to(getattr(torch, dtype.label)),
    "sum": torch.sum,
    "mean": torch.mean,
    "prod": product,
    "max": torch.amax,
    "min": torch.amin,
    "argmax": first_largest,
    "argmin": lambda x, dim, keepdim: first_largest(-x, dim, keepdim),
    "reshape": lambda x, shape: x.reshape(shape),
    "permute": lambda x, dims: x.permute(dims),
    "expand": lambda x, shape: x.expand(shape),
    "softmax": lambda x: torch.softmax(x, dim=-1),
    "matmul": torch.matmul,
    "transpose": lambda x: x.mT,
    "permute_heads": lambda x: x.movedim(-2, -3),
    "split_last": lambda x, count: x.unflatten(-1, (count, x.shape[-1] // count)),
    "merge_last": lambda x: x.flatten(-2),
    "select": lambda x, index: x.select(1, index),
    "concat": lambda a, b: torch.cat([a, b], dim=1),
    "slice_last": lambda x, begin, size: x.narrow(-1, begin, size),
    "concat_last": lambda a, b: torch.cat([a, b], dim=-1),
    "latent_cache_write": latent_cache_write,
    "mla_attention": mla_attention,
    "linear_per_head": lambda x, w, num_heads: torch.einsum("thk,hnk->thn", x, w.unflatten(0, (num_heads, -1))),
    "clamped_silu_mul": torch_mixture.clamped_silu_mul,
    "sigmoid_mul": lambda gate, x: torch.sigmoid(gate) * x,
    "router_logits": functional.linear,
    "router_topk": torch_mixture.router_topk,
    "moe_swiglu": torch_mixture.moe_swiglu,
    "moe_gate_up_silu": torch_mixture.moe_gate_up_silu,
    "moe_linear": torch_mixture.moe_linear,
    "moe_combine": torch_mixture.moe_combine,
    "take_experts": torch_mixture.take_experts,
    "gated_rms_norm": torch_recurrent.gated_rms_norm,
    "causal_conv1d": torch_recurrent.causal_conv1d,
    "gated_delta_rule": torch_recurrent.gated_delta_rule,
    "ssd_scan": torch_recurrent.ssd_scan,
}


def test_every_operator_has_a_torch_counterpart() -> None:
    assert set(TORCH) == {operator.name for operator in OPERATORS}
    assert len(OPERATORS) == 86


@pytest.mark.parametrize(
    ("num_heads", "slopes"),
    [
        (1, [2**-8]),
        (4, [2**-2, 2**-4, 2**-6, 2**-8]),
        (8, [2**-exponent for exponent in range(1, 9)]),
        (6, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]),
    ],
)
def test_slopes_of_alibi_are_the_papers(num_heads: int, slopes: list[float]) -> None:
    np.testing.assert_allclose(alibi_slopes(num_heads), slopes, rtol=1e-15)


@each_case
def test_reference_equals_torch_in_float64(operator: Operator, sample: Sample) -> None:
    attributes = operator.schema.complete(sample.attributes)
    outputs = evaluate(REGISTRY, operator, sample.inputs, attributes, np.float64)
    tensors = [None if array is None else as_tensor(array) for array in sample.inputs]
    expected = as_tuple(TORCH[operator.name](*tensors, **attributes))
    for output, tensor, magnitude in zip(outputs, expected, magnitudes(operator, sample, outputs), strict=True):
        is_defined = np.isfinite(magnitude)
        assert output.shape == tuple(tensor.shape)
        expected_numbers = tensor.double().numpy()[is_defined]
        np.testing.assert_allclose(as_numbers(output)[is_defined], expected_numbers, rtol=1e-11, atol=1e-11)


@each_case
def test_reference_returns_what_the_schema_infers(operator: Operator, sample: Sample) -> None:
    inputs = rounded_inputs(operator, sample, DType.FLOAT32)
    types = [None if array is None else TensorType(DType.of_numpy(array.dtype), array.shape) for array in inputs]
    attributes = operator.schema.complete(sample.attributes)
    outputs = evaluate(REGISTRY, operator, inputs, attributes, np.float32)
    found = tuple(TensorType(DType.of_numpy(array.dtype), array.shape) for array in outputs)
    assert found == operator.schema.infer(types, attributes)


@each_case
def test_reference_never_writes_to_its_inputs(operator: Operator, sample: Sample) -> None:
    before = [None if array is None else array.copy() for array in sample.inputs]
    evaluate(REGISTRY, operator, sample.inputs, sample.attributes, np.float64)
    for array, copy in zip(sample.inputs, before, strict=True):
        np.testing.assert_array_equal(array, copy)


@each_case
def test_magnitudes_of_terms_bound_the_result(operator: Operator, sample: Sample) -> None:
    outputs = evaluate(REGISTRY, operator, sample.inputs, sample.attributes, np.float64)
    for output, magnitude in zip(outputs, magnitudes(operator, sample, outputs), strict=True):
        assert output.shape == magnitude.shape
        is_float = output.dtype.kind == "f"
        is_copied = magnitude == 0
        is_bounded = np.abs(output) <= magnitude * (1 + 1e-12)
        assert np.all(~np.isfinite(output) | is_bounded | is_copied | (not is_float))


@each_operator
def test_samples_are_labelled_reproducible_and_reach_the_edges(operator: Operator) -> None:
    first, second = (list(operator.samples(np.random.default_rng(3))) for _ in range(2))
    labels = [sample.label for sample in first]
    assert len(labels) >= 4
    assert len(set(labels)) == len(labels)
    leading = {size for sample in first for array in sample.inputs if array is not None for size in array.shape[:1]}
    assert {0, 1} <= leading, "samples need one row, and none"
    for a, b in zip(first, second, strict=True):
        for left, right in zip(a.inputs, b.inputs, strict=True):
            np.testing.assert_array_equal(left, right)


WITH_BOTH = ("permute", "expand", "argmin")
"""Operators with a reference of their own beside a decomposition, which older backends without a kernel use."""


@each_operator
def test_page_is_complete(operator: Operator) -> None:
    assert operator.summary.endswith(".")
    has_one = (operator.reference is None) != (operator.decompose is None)
    assert has_one != (operator.name in WITH_BOTH)
    assert DType.FLOAT32 in operator.tolerances
    uses_float = any(spec.kind in "FW" for spec in (*operator.schema.inputs, *operator.schema.outputs))
    assert not uses_float or DType.BFLOAT16 in operator.tolerances
    assert operator.gathered <= {spec.name for spec in operator.schema.inputs}
    aliases = any(spec.alias for spec in operator.schema.outputs)
    needs_update = aliases and not operator.schema.is_view and operator.decompose is None
    assert (operator.update is not None) == needs_update


def magnitudes(operator: Operator, sample: Sample, outputs: tuple[Any, ...]) -> tuple[Any, ...]:
    if operator.term_magnitudes is None:
        return tuple(np.abs(np.nan_to_num(as_numbers(output), posinf=0, neginf=0)) for output in outputs)
    return as_tuple(operator.term_magnitudes(*sample.inputs, **operator.schema.complete(sample.attributes)))


def as_tensor(array: Any) -> torch.Tensor:
    """A copy; torch takes no float8 from NumPy but as bytes."""
    if DType.of_numpy(array.dtype) is DType.FLOAT8_E4M3FN:
        return torch.from_numpy(array.view(np.uint8).copy()).view(torch.float8_e4m3fn)
    return torch.from_numpy(np.array(array))


def as_numbers(array: Any) -> Any:
    """float64, in which every element type here is exact."""
    return array.astype(np.float64)


def as_tuple(outputs: Any) -> tuple[Any, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)
