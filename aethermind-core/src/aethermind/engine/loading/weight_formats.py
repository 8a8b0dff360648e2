"""The choice of a weight format for each parameter of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING

from aethermind.graph.builder import stored_name
from aethermind.graph.ir import Graph, ValueKind
from aethermind.log import get_logger
from aethermind.ops.dims import resolve
from aethermind.ops.operator import OperatorRegistry
from aethermind.ops.weight_format import (
    DENSE,
    FP8,
    WeightFormat,
    WeightFormatRegistry,
    is_fp8_in_blocks,
    one_level_format,
    parse_format,
)

if TYPE_CHECKING:
    from aethermind.dispatch.dispatcher import Dispatcher
    from aethermind.engine.config import EngineConfig
    from aethermind.engine.loading.compiled_model import CompiledModel

__all__ = ["FormatUsage", "WeightFormats", "format_uses", "formats_on_device"]

logger = get_logger(__name__)

_HEAD_OPERATOR = "lm_head"
_HEAD_FORMAT = "int8"
"""The default of the output projection if other weights have fewer bits, since it loses the most accuracy by them."""

_MIN_BITS_OF_ROWS = 8


@dataclass(frozen=True, slots=True)
class WeightFormats:
    """The formats of a model's matrices and of its output projection (lm_head); None is dense.

    With `keeps_weights` or `keeps_lm_head`, the checkpoint's own format takes precedence.
    """

    weights: WeightFormat | None
    lm_head: WeightFormat | None
    keeps_weights: bool = False
    keeps_lm_head: bool = False

    @classmethod
    def of(cls, config: EngineConfig, registry: WeightFormatRegistry) -> WeightFormats:
        """The formats of a configuration; the output projection is dense if it has a dtype of its own."""
        lm_head = config.lm_head_quantization if config.lm_head_dtype is None else DENSE
        return cls.choose(registry, config.quantization, lm_head)

    @classmethod
    def choose(cls, registry: WeightFormatRegistry, quantization: str | None, lm_head: str | None) -> WeightFormats:
        """Choose formats by name. Without a name the checkpoint's own formats are kept.

        The output projection has the format of the other matrices by default, but int8 if that has fewer bits, or is
        fp8, whose values have four significant bits. InvalidArgumentError for unknown names.
        """
        keeps_weights = quantization is None
        weights = None if quantization is None else registry.get(quantization)
        if lm_head is not None:
            return cls(weights, registry.get(lm_head), keeps_weights)
        default = registry.get(_HEAD_FORMAT)
        assert default is not None, "the core registers its own formats"
        is_coarse = weights is not None and (weights.bits < default.bits or weights == FP8)
        return cls(weights, default if is_coarse else weights, keeps_weights, keeps_weights)

    def of_parameters(
        self, graph: Graph, operators: OperatorRegistry, stored: Mapping[str, WeightFormat] = MappingProxyType({})
    ) -> dict[str, WeightFormat]:
        """Return the formats of the parameters that are multiplied as matrices, by name; all others are dense.

        `stored` are the formats in the checkpoint. `of_rows` decides whether the rows of a tied embedding table are
        looked up in the same format.
        """
        formats: dict[str, WeightFormat] = {}
        heads: dict[str, WeightFormat | None] = {}
        for node in graph.nodes:
            operator = operators[node.operator]
            is_head = node.operator == _HEAD_OPERATOR
            wanted, is_kept = (self.lm_head, self.keeps_lm_head) if is_head else (self.weights, self.keeps_weights)
            for spec, value in zip(operator.schema.inputs, node.inputs, strict=True):
                if value is None or value.kind is not ValueKind.PARAMETER or spec.name not in operator.weight_inputs:
                    continue
                format = stored.get(stored_name(value.name), wanted) if is_kept else wanted
                if is_head:
                    heads[value.name] = format
                elif format is not None and len(value.type.shape) == 2:
                    formats[value.name] = format
        merged = {**formats, **heads}
        return {name: format for name, format in merged.items() if format is not None}

    @staticmethod
    def of_rows(
        formats: Mapping[str, WeightFormat], stored: Mapping[str, WeightFormat] = MappingProxyType({})
    ) -> dict[str, WeightFormat]:
        """Return the formats in which rows are also looked up, for a tied embedding table.

        Rows in the checkpoint's own format lose nothing, and rows of 8 bits lose little. For formats with fewer bits,
        rows are looked up in a dense table.
        """
        return {
            name: format
            for name, format in formats.items()
            if format == stored.get(name) or format.bits >= _MIN_BITS_OF_ROWS
        }


def formats_on_device(stored: Mapping[str, WeightFormat], dispatcher: Dispatcher) -> dict[str, WeightFormat]:
    """Return the formats in which a device keeps a checkpoint's quantised tensors.

    A format for which the device has no kernels is replaced: one with two levels of scales by one with a single level,
    and fp8 by int8. FP8 with a scale for each block always becomes FP8 with a scale for each row.
    """
    formats = {name: _format_on_device(format, dispatcher) for name, format in stored.items()}
    fp8 = [name for name, format in stored.items() if format == FP8 or is_fp8_in_blocks(format)]
    num_int8 = sum(formats[name].name == _HEAD_FORMAT for name in fp8)
    if num_int8:
        logger.warning("The device has no kernels for fp8; %d FP8 matrices are held as %s.", num_int8, _HEAD_FORMAT)
    num_requantized = sum(formats[name] == FP8 != stored[name] for name in fp8)
    if num_requantized:
        logger.warning(
            "%d FP8 matrices have a scale for each block of values; they are requantised with a scale for each row, "
            "with an error of up to 1/16 of a value. --quantization int8 is more accurate.",
            num_requantized,
        )
    return formats


def _format_on_device(format: WeightFormat, dispatcher: Dispatcher) -> WeightFormat:
    if is_fp8_in_blocks(format):
        return _format_on_device(FP8, dispatcher)
    if dispatcher.has_format(format.name):
        return format
    if format == FP8:
        int8 = parse_format(_HEAD_FORMAT)
        assert int8 is not None
        return int8
    return one_level_format(format) if format.super_block_size else format


@dataclass(frozen=True, slots=True)
class FormatUsage:
    """How much of a model is in one weight format; `nbytes` is the size of these parameters.

    `num_dequantized` of the parameters are kept as float32, because their kernels have no layout for the format.
    """

    name: str
    num_parameters: int
    num_dequantized: int
    num_values: int
    nbytes: int

    @property
    def bits_per_weight(self) -> float:
        """Bits of a weight, scales and zero points included."""
        return 8 * self.nbytes / self.num_values


def format_uses(compiled: CompiledModel) -> list[FormatUsage]:
    """Return the usage of each format other than dense, in the order of their first parameters."""
    types = compiled.parameter_types
    shapes: dict[WeightFormat, dict[str, tuple[int, ...]]] = {}
    for name, format in compiled.weight_formats.items():
        shapes.setdefault(format, {})[name] = resolve(types[name].shape, {})
    constants = compiled.step.plan.constants.values()
    dequantized = {
        constant.parameter for constant in constants if constant.weight_format is not None and constant.pack is None
    }
    return [
        FormatUsage(
            format.name,
            len(given),
            len(dequantized & given.keys()),
            sum(map(prod, given.values())),
            sum(map(format.nbytes, given.values())),
        )
        for format, given in shapes.items()
    ]
