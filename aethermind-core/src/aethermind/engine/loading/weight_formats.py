"""Which parameters of a model are stored in which weight format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING

from aethermind.graph.ir import Graph, ValueKind
from aethermind.ops.dims import resolve
from aethermind.ops.operator import OperatorRegistry
from aethermind.ops.weight_format import WeightFormat, WeightFormatRegistry, one_level_format

if TYPE_CHECKING:
    from aethermind.dispatch.dispatcher import Dispatcher
    from aethermind.engine.loading.planned_model import PlannedModel

__all__ = ["FormatUse", "WeightFormats", "format_uses", "held_formats"]

_HEAD_OPERATOR = "lm_head"
_HEAD_FORMAT = "int8"
"""The head's default where the other weights have fewer bits: it decides between tokens, and loses most by them."""

_FEWEST_BITS_OF_ROWS = 8


@dataclass(frozen=True, slots=True)
class WeightFormats:
    """The formats of a model's matrices and of the one that makes logits; None is dense.

    What is kept has the format that it has in the checkpoint, if that is one.
    """

    weights: WeightFormat | None
    lm_head: WeightFormat | None
    keeps_weights: bool = False
    keeps_lm_head: bool = False

    @classmethod
    def choose(cls, registry: WeightFormatRegistry, quantization: str | None, lm_head: str | None) -> WeightFormats:
        """By name; a head that is not named has the format of the others, and no fewer bits than int8 has. Without a
        name the checkpoint's own formats are kept.

        InvalidArgumentError for unknown names.
        """
        keeps_weights = quantization is None
        weights = None if quantization is None else registry.get(quantization)
        if lm_head is not None:
            return cls(weights, registry.get(lm_head), keeps_weights)
        default = registry.get(_HEAD_FORMAT)
        assert default is not None, "the core registers its own formats"
        return cls(weights, default if weights is not None and weights.bits < default.bits else weights,
                   keeps_weights, keeps_weights)  # fmt: skip

    def of_parameters(
        self, graph: Graph, operators: OperatorRegistry, stored: Mapping[str, WeightFormat] = MappingProxyType({})
    ) -> dict[str, WeightFormat]:
        """By name, the parameters that operators read whole as matrices; the rest is dense. `stored` are the formats in
        the checkpoint.

        How rows of a table are looked up that is the head as well, is said by `of_rows`.
        """
        found: dict[str, WeightFormat] = {}
        heads: dict[str, WeightFormat | None] = {}
        for node in graph.nodes:
            operator = operators[node.operator]
            is_head = node.operator == _HEAD_OPERATOR
            wanted, is_kept = (self.lm_head, self.keeps_lm_head) if is_head else (self.weights, self.keeps_weights)
            for spec, value in zip(operator.schema.inputs, node.inputs, strict=True):
                if value is None or value.kind is not ValueKind.PARAMETER or spec.name not in operator.weight_inputs:
                    continue
                format = stored.get(value.name, wanted) if is_kept else wanted
                if is_head:
                    heads[value.name] = format
                elif format is not None and len(value.type.shape) == 2:
                    found[value.name] = format
        merged = {**found, **heads}
        return {name: format for name, format in merged.items() if format is not None}

    @staticmethod
    def of_rows(
        formats: Mapping[str, WeightFormat], stored: Mapping[str, WeightFormat] = MappingProxyType({})
    ) -> dict[str, WeightFormat]:
        """Of the formats of parameters, those in which rows are looked up, too: a table of embeddings that is the head.

        Codes that the checkpoint holds are as good as what they stand for, and those of 8 bits cost less than the
        others of the head do. Of formats with fewer bits rows are read dense.
        """
        return {
            name: format
            for name, format in formats.items()
            if format == stored.get(name) or format.bits >= _FEWEST_BITS_OF_ROWS
        }


def held_formats(stored: Mapping[str, WeightFormat], dispatcher: Dispatcher) -> dict[str, WeightFormat]:
    """In which formats a device keeps tensors that a checkpoint holds in these: where it has no kernels for scales in
    two levels, in one."""
    return {
        name: format if not format.super_block or dispatcher.has_format(format.name) else one_level_format(format)
        for name, format in stored.items()
    }


@dataclass(frozen=True, slots=True)
class FormatUse:
    """How much of a model one format holds. `nbytes` is what the format takes.

    `num_dequantized` of the parameters are held as float32, because their kernels have no layout for the format.
    """

    name: str
    num_parameters: int
    num_dequantized: int
    num_values: int
    nbytes: int

    @property
    def bits_per_weight(self) -> float:
        """Scales and zero points included."""
        return 8 * self.nbytes / self.num_values


def format_uses(planned: PlannedModel) -> list[FormatUse]:
    """The formats other than dense, in the order in which the model meets them."""
    types = planned.parameter_types
    shapes: dict[WeightFormat, dict[str, tuple[int, ...]]] = {}
    for name, format in planned.weight_formats.items():
        shapes.setdefault(format, {})[name] = resolve(types[name].shape, {})
    constants = planned.compiled.plan.constants.values()
    dequantized = {one.parameter for one in constants if one.weight_format is not None and one.pack is None}
    return [
        FormatUse(
            format.name,
            len(given),
            len(dequantized & given.keys()),
            sum(map(prod, given.values())),
            sum(map(format.nbytes, given.values())),
        )
        for format, given in shapes.items()
    ]
