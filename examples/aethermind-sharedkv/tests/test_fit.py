"""Attention over other keys, fitted: as it was where that can be had, and else what NumPy's own solver finds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from aethermind_sharedkv.fit import AttentionSample, fit_outputs, fit_queries

HEADS, KV_HEADS, HEAD_DIM, NUM_TOKENS = 4, 2, 6, 40
Array = np.ndarray[Any, Any]


def turned(x: Array, cos: Array, sin: Array) -> Array:
    """Half-split rotation of [T, heads, C], as complex numbers."""
    first, second = np.split(x, 2, axis=-1)
    product = (first + 1j * second) * (cos + 1j * sin)[:, None]
    return np.concatenate([product.real, product.imag], axis=-1)


def example(seed: int) -> AttentionSample:
    rng = np.random.default_rng(seed)
    angles = np.arange(NUM_TOKENS)[:, None] * [1.0, 0.1, 0.01]
    cos, sin = 1.2 * np.cos(angles), 1.2 * np.sin(angles)  # YaRN lengthens what it turns
    queries = turned(rng.normal(size=(NUM_TOKENS, HEADS, HEAD_DIM)), cos, sin)
    own, other = (turned(rng.normal(size=(NUM_TOKENS, KV_HEADS, HEAD_DIM)), cos, sin) for _ in range(2))
    values, others = rng.normal(size=(2, NUM_TOKENS, KV_HEADS, HEAD_DIM))
    return AttentionSample(queries, own, values, other, others, cos, sin, HEAD_DIM**-0.5)


def test_fits_to_the_layers_own_keys_change_nothing() -> None:
    texts = [replace(one, keys=one.own_keys, values=one.own_values) for one in (example(1), example(2))]
    maps = [fit_queries(texts, head, has_bias=False) for head in range(HEADS)]
    for fitted in maps:
        np.testing.assert_allclose(fitted, np.eye(HEAD_DIM), atol=1e-9)
    o_weight = np.random.default_rng(3).normal(size=(16, HEADS * HEAD_DIM))
    np.testing.assert_allclose(fit_outputs(texts, maps, o_weight), o_weight, atol=1e-9)


@pytest.mark.parametrize("has_bias", [False, True])
def test_queries_are_those_that_a_general_solver_finds(has_bias: bool) -> None:
    texts, head = [example(4), example(5)], 3
    width = HEAD_DIM + has_bias
    rows, wanted = [], []
    for text in texts:
        projected = turned(text.queries / 1.2**2, text.cos, -text.sin)[:, head]
        for t in range(NUM_TOKENS):
            seen = range(t + 1)
            scores = np.array([text.scale * text.queries[t, head] @ text.own_keys[u, 1] for u in seen])
            attention = np.exp(scores) / np.exp(scores).sum()
            query = np.append(projected[t], 1) if has_bias else projected[t]
            cos, sin = text.cos[t : t + 1], text.sin[t : t + 1]
            features = np.array([np.outer(query, turned(text.keys[u : u + 1], cos, -sin)[0, 1]).ravel() for u in seen])
            features *= text.scale
            rows.append(np.sqrt(attention)[:, None] * (features - attention @ features))
            wanted.append(np.sqrt(attention) * (scores - attention @ scores))
    design, target = np.vstack(rows), np.concatenate(wanted)
    size = design.shape[1]
    ridge = np.sqrt(0.1 * np.sum(design**2) / size) * np.eye(size)
    target = np.append(target, ridge @ np.eye(width, HEAD_DIM).ravel())
    expected = np.linalg.lstsq(np.vstack([design, ridge]), target, rcond=None)[0]
    found = fit_queries(texts, head, has_bias=has_bias)
    np.testing.assert_allclose(found, expected.reshape(width, HEAD_DIM), rtol=1e-7, atol=1e-9)
