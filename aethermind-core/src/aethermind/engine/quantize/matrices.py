"""Which stored tensors of a model are matrices of linear layers, by the model's graph."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aethermind.checkpoint.remapped import matrices_of_stored
from aethermind.engine.loading.model_weights import with_whole_names
from aethermind.graph.ir import ValueKind
from aethermind.model.architecture import AdaptsWeights

if TYPE_CHECKING:
    from aethermind.checkpoint.source import StoredTensors
    from aethermind.engine.loading.compiled_model import CompiledModel

__all__ = ["ModelMatrices", "find_matrices"]

_HEAD_OPERATOR = "lm_head"
_WEIGHT = ".weight"
_ROUTER = re.compile(r"\.(?:mlp|block_sparse_moe|feed_forward)\.(?:gate|router|shared_expert_gate)\.weight$|\.router\.")
"""Routers of mixtures of experts: small, and a changed choice of experts changes everything behind it."""


@dataclass(frozen=True, slots=True)
class ModelMatrices:
    """The matrices of a model by the names of its stored tensors.

    Attributes:
        linear: those of linear layers, with the parameter of the graph that each is, or is a part of.
        heads: the output projection, likewise; none if it is the embedding table.
        tables: tables whose rows are looked up.
    """

    linear: Mapping[str, str]
    heads: Mapping[str, str]
    tables: frozenset[str]


def find_matrices(compiled: CompiledModel, stored: StoredTensors) -> ModelMatrices:
    """Find the matrices that can be quantised among `stored`, the tensors of the model's source.

    Left out are routers, and matrices that the graph reads transposed or changed otherwise.
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
    view = with_whole_names(stored, [value.name for value in graph.parameters])
    if isinstance(compiled.model, AdaptsWeights):
        view = compiled.model.adapt(view)
    there = set(view.names)

    def by_stored_name(kind: str) -> dict[str, str]:
        names = sorted(kinds[kind] & there)
        return {one: name for name in names for one in matrices_of_stored(view, name, stored)}

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
