"""Attention over other keys and values, fitted to attention over a layer's own: two linear least-squares problems.

Shapes: T tokens of a text, H heads, K key-value heads, C head_dim, D hidden size. All arrays are float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

__all__ = ["SeenAttention", "fit_outputs", "fit_queries"]

_RIDGE = 0.1
"""Of the mean square of what is regressed on: what a text says little about stays as it was."""


@dataclass(frozen=True, slots=True)
class SeenAttention:
    """A layer's attention over a text, and what it is to attend to instead.

    `queries` [T, H, C] and keys [T, K, C] are rotated, by the angles of `cos` and `sin` [T, C/2] in half-split pairs;
    `own_keys` and `own_values` [T, K, C] are the layer's, `keys` and `values` those it is to read. Scores are
    multiplied by `scale`; `window` is how many tokens back a query sees, 0 for all.
    """

    queries: Array
    own_keys: Array
    own_values: Array
    keys: Array
    values: Array
    cos: Array
    sin: Array
    scale: float
    window: int = 0

    def kv_head(self, head: int) -> int:
        """Which keys and values a head attends to."""
        num_heads, num_kv_heads = int(self.queries.shape[1]), int(self.own_keys.shape[1])
        return head * num_kv_heads // num_heads

    def projected(self, head: int) -> Array:
        """A head's queries before their rotation, [T, C]."""
        norm = self.cos**2 + self.sin**2
        return _turned_back(self.queries[:, head], self.cos / norm, self.sin / norm)

    def seen_keys(self, head: int) -> Array:
        """The keys to read as each query sees them before its rotation, [T queries, T keys, C]."""
        return _turned_back(self.keys[None, :, self.kv_head(head)], self.cos[:, None], self.sin[:, None])

    def weights(self, scores: Array) -> Array:
        """Softmax of scores [T, T] over the tokens that each sees."""
        import numpy as np

        distance = np.arange(len(scores))[:, None] - np.arange(len(scores))
        is_seen = (distance >= 0) & ((distance < self.window) | (self.window == 0))
        seen = np.where(is_seen, scores, -np.inf)
        powers = np.exp(seen - seen.max(axis=1, keepdims=True))
        weights: Array = powers / powers.sum(axis=1, keepdims=True)
        return weights

    def own_scores(self, head: int) -> Array:
        """A head's scores over the layer's own keys, [T, T]."""
        scores: Array = self.scale * self.queries[:, head] @ self.own_keys[:, self.kv_head(head)].T
        return scores


def fit_queries(texts: Sequence[SeenAttention], head: int, *, has_bias: bool) -> Array:
    """The map [C (+ 1), C] that takes a head's projected queries (and a 1) to those for the keys to read.

    With it a row's scores s' are such that the sum of p (s - s')² about its mean is least over all rows, p being the
    row's attention over the layer's own keys: KL(p ‖ p') to second order.
    """
    import numpy as np

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


def fit_outputs(texts: Sequence[SeenAttention], maps: Sequence[Array], o_weight: Array) -> Array:
    """The output projection [D, H·C] for attention with mapped queries, nearest to what `o_weight` made of the own."""
    import numpy as np

    gram: Any = 0.0
    moment: Any = 0.0
    for text in texts:
        own, read = [], []
        for head, fitted in enumerate(maps):
            kv_head = text.kv_head(head)
            own.append(text.weights(text.own_scores(head)) @ text.own_values[:, kv_head])
            queries = _affine(text.projected(head), fitted)
            scores = text.scale * np.einsum("tc,tuc->tu", queries, text.seen_keys(head))
            read.append(text.weights(scores) @ text.values[:, kv_head])
        mixed = np.hstack(read)
        gram = gram + mixed.T @ mixed
        moment = moment + mixed.T @ (np.hstack(own) @ o_weight.T)
    return _solved(gram, moment, o_weight.T).T


def _affine(queries: Array, fitted: Array) -> Array:
    depth = queries.shape[1]
    mapped: Array = queries @ fitted[:depth]
    return mapped if len(fitted) == depth else mapped + fitted[depth]


def _turned_back(x: Array, cos: Array, sin: Array) -> Array:
    """The rotation's transpose."""
    import numpy as np

    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([first * cos + second * sin, second * cos - first * sin], axis=-1)


def _solved(gram: Array, moment: Array, prior: Array) -> Array:
    """Least squares near a prior."""
    import numpy as np

    ridge = _RIDGE * np.trace(gram) / len(gram) or 1.0
    found: Array = prior + np.linalg.solve(gram + ridge * np.eye(len(gram)), moment - gram @ prior)
    return found
