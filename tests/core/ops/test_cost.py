"""Costs: counted by hand where an operator matters, plausible everywhere, the same whole and in parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from aethermind.hal.dtype import DType
from aethermind.ops import catalog
from aethermind.ops.operator import Call, Cost, Operator, OperatorRegistry, Sample, cost_of, visible_pairs
from aethermind.ops.schema import TensorType

OPERATORS = OperatorRegistry(catalog.load())
SAMPLES = [(operator, sample) for operator in OPERATORS for sample in operator.samples(np.random.default_rng(0))]


def call_of(
    name: str,
    shapes: Sequence[tuple[int, ...] | None],
    attributes: Mapping[str, Any] | None = None,
    sequences: tuple[tuple[int, int], ...] = (),
) -> Call:
    """A call in bfloat16."""
    schema = OPERATORS[name].schema
    types = [
        None if shape is None else TensorType(spec.dtype(DType.BFLOAT16), shape)
        for spec, shape in zip(schema.inputs, shapes, strict=True)
    ]
    completed = schema.complete(attributes or {})
    outputs = schema.infer(types, completed)
    return Call(
        {spec.name: type for spec, type in zip(schema.inputs, types, strict=True) if type is not None},
        {spec.name: type for spec, type in zip(schema.outputs, outputs, strict=True)},
        completed,
        sequences,
    )


def cost(name: str, *args: Any, **options: Any) -> Cost:
    return cost_of(OPERATORS[name], call_of(name, *args, **options))


def test_products() -> None:
    assert cost("linear", [(3, 8), (5, 8), None]) == Cost(2 * (24 + 40), 2 * 15, 2 * 3 * 8 * 5)
    assert cost("lm_head", [(3, 8), (5, 8), None]) == Cost(2 * (24 + 40), 4 * 15, 2 * 3 * 8 * 5)
    assert cost("matmul", [(7, 3, 8), (7, 8, 5)]) == Cost(2 * 7 * (24 + 40), 2 * 7 * 15, 2 * 7 * 3 * 8 * 5)
    assert cost("gate_up_silu", [(3, 8), (5, 8), (5, 8)]).flops == 2 * 3 * 8 * 10
    assert cost("mlp_swiglu", [(3, 8), (5, 8), (5, 8), (8, 5)]).flops == 2 * 3 * 8 * 15


def test_elementwise_and_gathered() -> None:
    assert cost("add", [(3, 8), (3, 8)]) == Cost(96, 48, 24)
    assert cost("embedding", [(3,), (1000, 8)]) == Cost(12 + 48, 48, 0)
    assert cost("gather_rows", [(100, 8), (3,)]) == Cost(12 + 48, 48, 0)


@pytest.mark.parametrize(("num_tokens", "num_read"), [(0, 0), (1, 2), (3, 6), (100, 8)])
def test_a_mixture_reads_the_weights_of_chosen_experts_only(num_tokens: int, num_read: int) -> None:
    hidden, width, num_experts, num_chosen = 16, 4, 8, 2
    ids, stack = (num_tokens, num_chosen), (num_experts * width, hidden)
    down = (num_experts * hidden, width)
    expert = 3 * width * hidden
    attributes = {"num_experts": num_experts}
    whole = cost(
        "moe_swiglu", [(num_tokens, hidden), ids, ids, stack, stack, down, None, None, None], attributes=attributes
    )
    of_router = num_tokens * num_chosen * (4 + 4)
    assert whole.bytes_read == 2 * (num_tokens * hidden + num_read * expert) + of_router
    assert whole.bytes_written == 2 * num_tokens * hidden
    assert whole.flops == 2 * num_tokens * num_chosen * expert
    first = cost("moe_gate_up_silu", [(num_tokens, hidden), ids, stack, stack, None, None], attributes=attributes)
    second = cost("moe_linear", [(num_tokens, num_chosen, width), ids, down, None], attributes=attributes)
    assert first.flops + second.flops == whole.flops
    assert second.bytes_read == 2 * num_tokens * num_chosen * width + of_router // 2 + 2 * num_read * hidden * width
    logits = cost("router_logits", [(num_tokens, hidden), (num_experts, hidden), None])
    assert logits.flops == 2 * num_tokens * hidden * num_experts


def test_attention_sees_what_is_before_it() -> None:
    cache = (10, 2, 4, 8)
    shapes = [(6, 4, 8), cache, cache, (3,), (2,), (2, 5), None, None]
    found = cost("paged_attention", shapes, {"scale": 1.0}, sequences=((5, 5), (1, 9)))
    assert found.flops == 4 * 4 * 8 * (5 * 6 // 2 + 9)
    tables = 4 * (3 + 2 + 10)
    assert found.bytes_read == 2 * 6 * 4 * 8 + tables + (5 + 9) * 2 * 8 * 2 * 2
    assert found.bytes_written == 2 * 6 * 4 * 8
    windowed = cost("paged_attention", shapes, {"scale": 1.0, "window": 3}, sequences=((5, 5), (1, 9)))
    assert windowed.flops == 4 * 4 * 8 * (1 + 2 + 3 + 3 + 3 + 3)
    assert windowed.bytes_read == found.bytes_read - 6 * 2 * 8 * 2 * 2
    whole = cost("attention", [(2, 3, 4, 8), (2, 7, 2, 8), (2, 7, 2, 8)], {"scale": 1.0})
    assert whole.flops == 4 * 2 * 4 * 8 * (5 + 6 + 7)


def test_a_cache_is_written_where_tokens_go() -> None:
    cache = (10, 2, 4, 8)
    assert cost("kv_cache_write", [(3, 2, 8), (3, 2, 8), (3,), cache, cache]) == Cost(192 + 24, 192, 0)
    weights = [(32, 16), (16, 16), (16, 16), None, None, None, None, None]
    found = cost(
        "qkv_rope_cache_write",
        [(3, 16), *weights, (3, 8), (3,), cache, cache],
        {"num_heads": 4, "num_kv_heads": 2},
    )
    assert found == Cost(2 * (48 + 64 * 16) + 4 * 24 + 24, 2 * 3 * 32 + 192, 2 * 3 * 64 * 16)


@pytest.mark.parametrize(("num_queries", "num_keys", "window"), [(5, 5, 0), (1, 9, 0), (3, 9, 4), (9, 9, 1), (4, 6, 9)])
def test_pairs_are_those_of_the_mask(num_queries: int, num_keys: int, window: int) -> None:
    position, key = np.arange(num_keys - num_queries, num_keys)[:, None], np.arange(num_keys)
    mask = (key <= position) & ((window <= 0) | (key > position - window))
    assert visible_pairs(num_queries, num_keys, window) == mask.sum()


@pytest.mark.parametrize(("operator", "sample"), SAMPLES, ids=lambda x: getattr(x, "name", getattr(x, "label", "")))
def test_no_call_costs_less_than_nothing_or_reads_more_than_there_is(operator: Operator, sample: Sample) -> None:
    shapes = [None if array is None else array.shape for array in sample.inputs]
    call = call_of(operator.name, shapes, sample.attributes)
    found = cost_of(operator, call)
    assert min(found.bytes_read, found.bytes_written, found.flops) >= 0
    gathered = sum(call.bytes_out(name) for name in call.outputs)
    assert found.bytes_read <= call.bytes_in(*call.inputs) + gathered
    assert found.bytes_written <= gathered


def test_inputs_that_are_stored_in_fewer_bytes_count_those() -> None:
    call = call_of("linear", [(3, 64), (5, 64), None])
    whole = cost_of(OPERATORS["linear"], call)
    stored = cost_of(OPERATORS["linear"], replace(call, stored_bytes={"weight": 100}))
    assert stored == Cost(whole.bytes_read - 5 * 64 * 2 + 100, whole.bytes_written, whole.flops)
