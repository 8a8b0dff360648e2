"""Linear least squares for layers that read another layer's keys and values.

SwiftKV (Qiao et al. 2024, arXiv:2410.03960) trains the projections of such layers. Here a text is enough, because two
of them have a closed form:

- Each head's query becomes an affine function of the original one, so that its scores against the other layer's keys
  are nearest to those against its own. Errors are weighted by the head's attention to their tokens, about the mean of
  each row: to second order that is the Kullback-Leibler divergence between the two rows of attention.
- The output projection becomes the one that makes the layer's outputs most alike, given that attention.

Shapes: T tokens of a text, H heads, K key-value heads, C head_dim, D hidden size. Arrays are float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

__all__ = ["AttentionSample", "fit_outputs", "fit_queries"]

_RIDGE = 0.1
"""The ridge as a multiple of the mean square of the regressors: directions with little data keep their prior."""


@dataclass(frozen=True, slots=True)
class AttentionSample:
    """A layer's attention over a text, and the keys and values that it is to attend to instead.

    `queries` [T, H, C] and keys [T, K, C] are rotated, by the angles of `cos` and `sin` [T, C/2] in half-split pairs;
    `own_keys` and `own_values` [T, K, C] are the layer's, `keys` and `values` those of the other layer. Scores are
    multiplied by `scale`.
    """

    queries: Array
    own_keys: Array
    own_values: Array
    keys: Array
    values: Array
    cos: Array
    sin: Array
    scale: float

    def kv_head(self, head: int) -> int:
        """Return the KV head that a head attends to."""
        num_heads, num_kv_heads = int(self.queries.shape[1]), int(self.own_keys.shape[1])
        return head * num_kv_heads // num_heads

    def projected(self, head: int) -> Array:
        """Return a head's queries before their rotation, [T, C]."""
        norm = self.cos**2 + self.sin**2
        return _rotated_back(self.queries[:, head], self.cos / norm, self.sin / norm)

    def seen_keys(self, head: int) -> Array:
        """Return the other layer's keys relative to each query before its rotation, [T queries, T keys, C]."""
        return _rotated_back(self.keys[None, :, self.kv_head(head)], self.cos[:, None], self.sin[:, None])

    def weights(self, scores: Array) -> Array:
        """Return the causal softmax of scores [T, T]."""
        seen = np.where(np.tri(len(scores), dtype=bool), scores, -np.inf)
        powers = np.exp(seen - seen.max(axis=1, keepdims=True))
        weights: Array = powers / powers.sum(axis=1, keepdims=True)
        return weights

    def own_scores(self, head: int) -> Array:
        """Return a head's scores over the layer's own keys, [T, T]."""
        scores: Array = self.scale * self.queries[:, head] @ self.own_keys[:, self.kv_head(head)].T
        return scores


def fit_queries(texts: Sequence[AttentionSample], head: int, *, has_bias: bool) -> Array:
    """Fit the map [C (+ 1), C] from a head's projected queries (and a 1) to queries for the other layer's keys.

    It minimises, over all rows, the sum of p (s - s')² about its mean, with the scores s, the fitted scores s' and the
    row's attention p over the layer's own keys: KL(p ‖ p') to second order.
    """
    gram: Any = 0.0
    moment: Any = 0.0
    for text in texts:
        queries = text.projected(head)
        if has_bias:
            queries = np.hstack([queries, np.ones((len(queries), 1))])
        scores = text.own_scores(head)
        attention = text.weights(scores)
        scores = scores - (attention * scores).sum(axis=1, keepdims=True)
        keys = text.scale * text.seen_keys(head)
        keys = keys - np.einsum("tu,tuc->tc", attention, keys)[:, None]
        weighted = attention[:, :, None] * keys
        spread = np.einsum("tuc,tud->tcd", weighted, keys)
        rows, (width, depth) = len(queries), (queries.shape[1], keys.shape[2])
        outer = np.einsum("ti,tj->tij", queries, queries).reshape(rows, -1)
        gram = gram + (outer.T @ spread.reshape(rows, -1)).reshape(width, width, depth, depth)
        moment = moment + queries.T @ np.einsum("tu,tuc->tc", scores, weighted)
    matrix = gram.transpose(0, 2, 1, 3).reshape(moment.size, moment.size)
    found: Array = _solved(matrix, moment.reshape(-1, 1), np.eye(*moment.shape).reshape(-1, 1)).reshape(moment.shape)
    return found


def fit_outputs(texts: Sequence[AttentionSample], maps: Sequence[Array], o_weight: Array) -> Array:
    """Fit the output projection [D, H·C] for attention with mapped queries to the layer's original outputs."""
    gram: Any = 0.0
    moment: Any = 0.0
    for text in texts:
        original, mapped = [], []
        for head, fitted in enumerate(maps):
            kv_head = text.kv_head(head)
            original.append(text.weights(text.own_scores(head)) @ text.own_values[:, kv_head])
            queries = _affine(text.projected(head), fitted)
            scores = text.scale * np.einsum("tc,tuc->tu", queries, text.seen_keys(head))
            mapped.append(text.weights(scores) @ text.values[:, kv_head])
        mixed = np.hstack(mapped)
        gram = gram + mixed.T @ mixed
        moment = moment + mixed.T @ (np.hstack(original) @ o_weight.T)
    return _solved(gram, moment, o_weight.T).T


def _affine(queries: Array, fitted: Array) -> Array:
    depth = queries.shape[1]
    mapped: Array = queries @ fitted[:depth]
    return mapped if len(fitted) == depth else mapped + fitted[depth]


def _rotated_back(x: Array, cos: Array, sin: Array) -> Array:
    """Apply the transpose of the rotation."""
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([first * cos + second * sin, second * cos - first * sin], axis=-1)


def _solved(gram: Array, moment: Array, prior: Array) -> Array:
    """Solve ridge-regularised least squares with a prior."""
    ridge = _RIDGE * np.trace(gram) / len(gram) or 1.0
    found: Array = prior + np.linalg.solve(gram + ridge * np.eye(len(gram)), moment - gram @ prior)
    return found
