"""Kernels with one planted bug each, around references."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["Bug", "GENERATIONS"]

Array = Any
Compute = Callable[[Sequence[Array], Sequence[Array], Mapping[str, Any]], None]
Bug = Callable[[Compute, Sequence[Array], Sequence[Array], Mapping[str, Any]], None]


def wrong_eps(compute: Compute, inputs: Any, outputs: Any, attributes: Any) -> None:
    compute(inputs, outputs, {**attributes, "eps": attributes["eps"] * 30})


def last_column_forgotten(compute: Compute, inputs: Any, outputs: Any, attributes: Any) -> None:
    compute(inputs, outputs, attributes)
    if outputs[0].shape[-1] % 8 == 1:
        outputs[0][..., -1] = 0


def last_row_forgotten(compute: Compute, inputs: Any, outputs: Any, attributes: Any) -> None:
    compute(inputs, outputs, attributes)
    if len(outputs[0]) % 2:
        outputs[0][-1:] = 0


def input_overwritten(compute: Compute, inputs: Any, outputs: Any, attributes: Any) -> None:
    compute(inputs, outputs, attributes)
    inputs[0][...] = outputs[0]


def rounded_toward_zero(compute: Compute, inputs: Any, outputs: Any, attributes: Any) -> None:
    exact = [np.empty(output.shape, np.float32) for output in outputs]
    compute(inputs, exact, attributes)
    for output, values in zip(outputs, exact, strict=True):
        shift = 8 * (4 - output.itemsize)
        output[...] = (values.view(np.uint32) >> shift << shift).view(np.float32).astype(output.dtype)


def bias_forgotten(compute: Compute, inputs: Any, outputs: Any, attributes: Any) -> None:
    compute([*inputs[:2], None], outputs, attributes)


def scale_forgotten(compute: Compute, inputs: Any, outputs: Any, attributes: Any) -> None:
    compute(inputs, outputs, {**attributes, "scale": 1.0})


def window_forgotten(compute: Compute, inputs: Any, outputs: Any, attributes: Any) -> None:
    compute(inputs, outputs, {**attributes, "window": 0})


def window_of_one_more(compute: Compute, inputs: Any, outputs: Any, attributes: Any) -> None:
    window = attributes["window"]
    compute(inputs, outputs, {**attributes, "window": window + 1 if window else 0})


def heads_dealt_in_turn(compute: Compute, inputs: Any, outputs: Any, attributes: Any) -> None:
    """Query head h uses kv head h % K instead of h // (H / K)."""
    q, num_kv_heads = inputs[0], inputs[1].shape[1]
    order = np.argsort(np.arange(q.shape[1]) % num_kv_heads, kind="stable")
    result = np.empty_like(outputs[0])
    compute([q[:, order], *inputs[1:]], [result], attributes)
    outputs[0][:, order] = result


def tables_one_block_off(compute: Compute, inputs: Any, outputs: Any, attributes: Any) -> None:
    tables = np.roll(inputs[5], 1, axis=1) if inputs[5].shape[1:] > (1,) else inputs[5]
    compute([*inputs[:5], tables], outputs, attributes)


def last_token_not_cached(compute: Compute, inputs: Any, outputs: Any, attributes: Any) -> None:
    k, v, slots, *caches = inputs
    compute([k[:-1], v[:-1], slots[:-1], *caches] if len(k) > 1 else inputs, outputs, attributes)


def negative_slots_wrap(compute: Compute, inputs: Any, outputs: Any, attributes: Any) -> None:
    k, v, slots, *caches = inputs
    num_slots = caches[0].shape[0] * caches[0].shape[2]
    compute([k, v, slots % num_slots, *caches], outputs, attributes)


def always_half_split(compute: Compute, inputs: Any, outputs: Any, attributes: Any) -> None:
    compute(inputs, outputs, {**attributes, "interleaved": False})


def ties_to_the_last(compute: Compute, inputs: Any, outputs: Any, attributes: Any) -> None:
    compute(inputs, outputs, attributes)
    logits, temperature = inputs[0], inputs[1]
    for row in np.flatnonzero(temperature == 0):
        outputs[0][row] = len(logits[row]) - 1 - int(np.argmax(logits[row][::-1]))


def nucleus_one_short(compute: Compute, inputs: Any, outputs: Any, attributes: Any) -> None:
    logits, temperature, top_k, top_p, *rest = inputs
    compute([logits, temperature, np.where(top_k > 1, top_k - 1, top_k), top_p, *rest], outputs, attributes)


def overflowing_softmax(_: Compute, inputs: Any, outputs: Any, __: Any) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        exponents = np.exp(inputs[0].astype(np.float32))
        outputs[0][...] = exponents / exponents.sum(axis=-1, keepdims=True)


def sample_variance(compute: Compute, inputs: Any, outputs: Any, attributes: Any) -> None:
    """n - 1 instead of n."""
    x, weight, bias = inputs
    if x.shape[-1] < 2:
        return compute(inputs, outputs, attributes)
    wide = x.astype(np.float32)
    deviation = np.sqrt(wide.var(axis=-1, keepdims=True, ddof=1) + attributes["eps"])
    result = (wide - wide.mean(axis=-1, keepdims=True)) / deviation * weight
    outputs[0][...] = result if bias is None else result + bias


def summed_in_half_precision(compute: Compute, inputs: Any, outputs: Any, attributes: Any) -> None:
    narrow = [None if array is None else array.astype(np.float16).astype(array.dtype) for array in inputs]
    compute(narrow, outputs, attributes)


def tanh_for_erf(compute: Compute, inputs: Any, outputs: Any, attributes: Any) -> None:
    compute(inputs, outputs, {**attributes, "approximate": True})


KERNEL_BUGS: Mapping[str, tuple[str, Bug]] = {
    "eps": ("rms_norm", wrong_eps),
    "tail": ("silu", last_column_forgotten),
    "rows": ("add", last_row_forgotten),
    "aliasing": ("mul", input_overwritten),
    "rounding": ("linear", rounded_toward_zero),
    "bias": ("linear", bias_forgotten),
    "half-sums": ("matmul", summed_in_half_precision),
    "scale": ("paged_attention", scale_forgotten),
    "window": ("paged_attention", window_forgotten),
    "mask": ("paged_attention", window_of_one_more),
    "heads": ("paged_attention", heads_dealt_in_turn),
    "tables": ("paged_attention", tables_one_block_off),
    "stale": ("kv_cache_write", last_token_not_cached),
    "slots": ("kv_cache_write", negative_slots_wrap),
    "rotation": ("rope", always_half_split),
    "ties": ("sample_tokens", ties_to_the_last),
    "nucleus": ("sample_tokens", nucleus_one_short),
    "overflow": ("softmax", overflowing_softmax),
    "variance": ("layer_norm", sample_variance),
    "gelu": ("gelu", tanh_for_erf),
}


def _in_generations() -> list[dict[str, Bug]]:
    """The bugs by operator, as many at a time as leaves no operator with two: cases of others know nothing of them."""
    generations: list[dict[str, Bug]] = []
    for operator, bug in KERNEL_BUGS.values():
        free = next((one for one in generations if operator not in one), None)
        if free is None:
            generations.append(free := {})
        free[operator] = bug
    return generations


GENERATIONS = _in_generations()
