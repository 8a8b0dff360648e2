"""The matrices of a model that are quantised: which stored tensors they are, and their encoding in several threads."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from aethermind.checkpoint.remapped import matrices_of_stored
from aethermind.engine.loading.model_weights import with_full_model_names
from aethermind.graph.ir import ValueKind
from aethermind.hal.mapped import drop_mapped_pages
from aethermind.model.architecture import AdaptsWeights
from aethermind.ops.weight_format import QuantizedWeight

if TYPE_CHECKING:
    from aethermind.checkpoint.source import StoredTensors
    from aethermind.engine.loading.compiled_model import CompiledModel

__all__ = ["ModelMatrices", "dense_values", "encode_by_rows", "find_matrices"]

_HEAD_OPERATOR = "lm_head"
_WEIGHT = ".weight"
_ROUTER = re.compile(r"\.(?:mlp|block_sparse_moe|feed_forward)\.(?:gate|router|shared_expert_gate)\.weight$|\.router\.")
"""Routers of mixtures of experts: they are small, and a small error may change which experts are chosen."""


@dataclass(frozen=True, slots=True)
class ModelMatrices:
    """The matrices of a model by the names of its stored tensors.

    Attributes:
        linear: those of linear layers, with the parameter of the graph that each is, or is a part of.
        heads: the output projection, with its parameter; empty if it is tied to the embedding table.
        tables: embedding tables, whose rows are looked up.
    """

    linear: Mapping[str, str]
    heads: Mapping[str, str]
    tables: frozenset[str]


def find_matrices(compiled: CompiledModel, stored: StoredTensors) -> ModelMatrices:
    """Find the matrices that can be quantised among `stored`, the tensors of the model's source.

    Routers are left out, and matrices that the model transposes or changes otherwise when it reads them.
    """
    graph = compiled.graphs.build().finish()
    kinds: dict[str, set[str]] = {"linear": set(), "heads": set(), "tables": set()}
    for node in graph.nodes:
        operator = compiled.operators[node.operator]
        for spec, value in zip(operator.schema.inputs, node.inputs, strict=True):
            if value is None or value.kind is not ValueKind.PARAMETER or len(value.type.shape) != 2:
                continue
            if spec.name in operator.gathered:
                kinds["tables"].add(value.name)
            elif spec.name in operator.weight_inputs:
                kinds["heads" if node.operator == _HEAD_OPERATOR else "linear"].add(value.name)
    view = with_full_model_names(stored, [value.name for value in graph.parameters])
    if isinstance(compiled.model, AdaptsWeights):
        view = compiled.model.adapt(view)
    view_names = set(view.names)

    def by_stored_name(kind: str) -> dict[str, str]:
        names = sorted(kinds[kind] & view_names)
        return {stored_name: name for name in names for stored_name in matrices_of_stored(view, name, stored)}

    tables = by_stored_name("tables")
    linear = {
        name: parameter
        for name, parameter in by_stored_name("linear").items()
        if name.endswith(_WEIGHT)
        and not _ROUTER.search(name)
        and len(stored.info(name).shape) == 2
        and name not in tables
    }
    heads = {name: parameter for name, parameter in by_stored_name("heads").items() if name not in tables}
    return ModelMatrices(linear, heads, frozenset(tables))


Array = npt.NDArray[Any]

_VALUES_PER_PART = 1 << 20
"""Number of values that a thread encodes at a time."""


def encode_by_rows(
    pool: ThreadPoolExecutor, encode: Callable[[Array], Sequence[Array]], stored: Array | QuantizedWeight
) -> list[Array]:
    """Encode a matrix [N, K] in threads: call `encode` with parts of its rows, and concatenate the arrays it returns.

    A quantised matrix is dequantised part by part; the mapped pages of a dense one are dropped at the end.
    """
    rows, columns = stored.shape
    count = max(1, _VALUES_PER_PART // max(columns, 1))

    def encode_part(begin: int) -> Sequence[Array]:
        part = (
            stored.rows(begin, begin + count) if isinstance(stored, QuantizedWeight) else stored[begin : begin + count]
        )
        return encode(dense_values(part))

    parts = list(pool.map(encode_part, range(0, max(rows, 1), count)))
    if not isinstance(stored, QuantizedWeight):
        drop_mapped_pages(stored)
    return [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]


def dense_values(stored: Array | QuantizedWeight, dtype: npt.DTypeLike = np.float32) -> Array:
    """Return the values of a tensor; a quantised one is dequantised to `dtype`."""
    if isinstance(stored, QuantizedWeight):
        values: Array = stored.format.dequantize(stored, dtype)
        return values
    return stored
