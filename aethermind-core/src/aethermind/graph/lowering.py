"""Lowering: replaces every operator without a kernel by its decomposition.

Models use large (fused) operators; only those without a kernel are decomposed. So no fusion pass is needed: a backend
with a dozen simple kernels runs every model, and fused kernels make it faster without changes to models.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from aethermind.dispatch.dispatcher import Dispatcher, Fallback, Resolution
from aethermind.dispatch.kernel import Signature
from aethermind.errors import KernelNotFoundError, OperatorError
from aethermind.graph.builder import UniqueNames, decompose
from aethermind.graph.ir import Graph, Node, ValueKind
from aethermind.ops.operator import Operator, OperatorRegistry
from aethermind.ops.weight_format import DENSE, WeightFormat

__all__ = ["Lowered", "lower"]


@dataclass(frozen=True, slots=True)
class Lowered:
    """A graph whose nodes have kernels or are views, with one resolution per node (None for a view)."""

    graph: Graph
    resolutions: tuple[Resolution | None, ...]

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """The distinct names of operators that run as NumPy references because the device has no kernel."""
        found = (
            resolution.signature.operator for resolution in self.resolutions if resolution and resolution.is_fallback
        )
        return tuple(dict.fromkeys(found))


def lower(
    graph: Graph,
    operators: OperatorRegistry,
    dispatcher: Dispatcher,
    device_type: str,
    *,
    fallback: Fallback = Fallback.WARN,
    fuse: bool = True,
    weight_formats: Mapping[str, WeightFormat] | None = None,
    row_formats: Mapping[str, WeightFormat] | None = None,
    packed: Mapping[str, str] | None = None,
) -> Lowered:
    """Choose a kernel for each node, and decompose nodes whose operator has none.

    KernelNotFoundError names all operators that have neither a kernel nor a decomposition.

    `weight_formats` maps parameter names to formats; a fused operator whose weights have different formats is
    decomposed, because no kernel reads several formats.

    An operator that gathers rows of a parameter gets, if possible, a kernel that reads them from the layout into which
    the parameter is packed for another operator, so a tied embedding is in memory once. `row_formats` maps parameters
    to the formats in which rows may be read, `packed` to the layouts into which they are packed outside this graph.

    With `fuse=False` every operator that has a decomposition is decomposed if kernels can compute the result, so that
    all intermediate values exist.
    """
    names = UniqueNames({value.name for value in graph.values()})
    lowering = _Lowering(
        operators,
        dispatcher,
        device_type,
        fallback,
        fuse,
        names,
        weight_formats or {},
        row_formats or {},
        packed or {},
    )
    # Nodes that gather rows are lowered in a second pass, when the layouts of all packed parameters are known.
    first_pass = [
        None if _gathered_params(node, operators[node.operator]) else lowering.lower(node) for node in graph.nodes
    ]
    layouts = _packed_layouts(chain.from_iterable(filter(None, first_pass)), operators)
    second_pass = replace(lowering, packed={**lowering.packed, **layouts})
    lowered = [
        pair
        for node, pairs in zip(graph.nodes, first_pass, strict=True)
        for pair in (second_pass.lower(node) if pairs is None else pairs)
    ]
    if missing := [resolution for _, resolution in lowered if resolution is not None and resolution.chosen is None]:
        raise KernelNotFoundError(_missing_kernels_message(missing))
    nodes = tuple(node for node, _ in lowered)
    return Lowered(replace(graph, nodes=nodes), tuple(resolution for _, resolution in lowered))


def _gathered_params(node: Node, operator: Operator) -> dict[str, str]:
    """Map each input from which a node gathers rows to the name of its parameter."""
    return {
        spec.name: value.name
        for spec, value in zip(operator.schema.inputs, node.inputs, strict=True)
        if value is not None and value.kind is ValueKind.PARAMETER and spec.name in operator.gathered
    }


def _packed_layouts(lowered: Iterable[tuple[Node, Resolution | None]], operators: OperatorRegistry) -> dict[str, str]:
    """Map each packed parameter to the name of its layout."""
    return {
        value.name: resolution.chosen.packs[spec.name].name
        for node, resolution in lowered
        if resolution is not None and resolution.chosen is not None and resolution.chosen.packs
        for spec, value in zip(operators[node.operator].schema.inputs, node.inputs, strict=True)
        if value is not None and value.kind is ValueKind.PARAMETER and spec.name in resolution.chosen.packs
    }


@dataclass(frozen=True, slots=True)
class _Lowering:
    """Lowers one node after another; the fields are the arguments of `lower`, and the value names in use."""

    operators: OperatorRegistry
    dispatcher: Dispatcher
    device_type: str
    fallback: Fallback
    fuse: bool
    names: UniqueNames
    weight_formats: Mapping[str, WeightFormat]
    row_formats: Mapping[str, WeightFormat]
    packed: Mapping[str, str]
    resolved: dict[Hashable, Resolution] = field(default_factory=dict)
    """Resolutions by signature: most layers have the same signatures."""

    def lower(self, node: Node) -> Sequence[tuple[Node, Resolution | None]]:
        """Return nodes that replace `node`, each with a resolution (None for a view), which may have no kernel."""
        operator = self.operators[node.operator]
        if operator.schema.is_view:
            return [(node, None)]
        signature = self._signature(node, operator)
        resolution = self._resolve_packed(node, operator, signature) or self._resolve(signature)
        if resolution.chosen is None and (parts := self._without_additions(node, operator, signature)):
            return parts
        if operator.decompose is None:
            return [(node, resolution if resolution.chosen else self._fall_back(signature, resolution))]
        if resolution.chosen and self.fuse:
            return [(node, resolution)]
        parts = [pair for part in decompose(node, self.operators, self.names) for pair in self.lower(part)]
        if resolution.chosen and any(resolved is not None and resolved.chosen is None for _, resolved in parts):
            return [(node, resolution)]
        return parts

    def _without_additions(
        self, node: Node, operator: Operator, signature: Signature
    ) -> Sequence[tuple[Node, Resolution | None]]:
        """Return nodes that compute a call with additions by calls without (`Operator.without_additions`).

        The list is empty if the call uses no additions, or the operator cannot be replaced in this way.
        """
        if operator.without_additions is None or not any(signature.additions.values()):
            return []
        try:
            parts = decompose(node, self.operators, self.names, operator.without_additions)
        except OperatorError:  # the replacement needs sizes that are known only at run time
            return []
        return [pair for part in parts for pair in self.lower(part)]

    def _resolve(self, signature: Signature) -> Resolution:
        attributes, packed = tuple(signature.attributes.items()), tuple(signature.packed.items())
        key = (signature.operator, signature.dtype, signature.inputs, attributes, signature.weight_format, packed)
        if key not in self.resolved:
            self.resolved[key] = self.dispatcher.resolve(signature)
        return self.resolved[key]

    def _signature(self, node: Node, operator: Operator) -> Signature:
        types = tuple(value.type if value else None for value in node.inputs)
        float_type = operator.schema.float_type(types)
        weight_format = self._weight_format(node, operator)
        return Signature(
            node.operator,
            self.device_type,
            float_type,
            types,
            node.attributes,
            weight_format,
            additions=operator.used_additions(node.inputs, node.attributes),
            extension=operator.used_extension(types),
        )

    def _weight_format(self, node: Node, operator: Operator) -> str:
        inputs = zip(operator.schema.inputs, node.inputs, strict=True)
        formats = [self.weight_formats.get(value.name) for spec, value in inputs
                   if value is not None and spec.name in operator.weight_inputs]  # fmt: skip
        return "+".join(sorted({DENSE if format is None else format.name for format in formats})) or DENSE

    def _resolve_packed(self, node: Node, operator: Operator, signature: Signature) -> Resolution | None:
        """Return the kernel that gathers rows from the layout of a packed parameter; None if there is none."""
        gathered = _gathered_params(node, operator)
        formats = {self.row_formats[name].name for name in gathered.values() if name in self.row_formats}
        layouts = {input: self.packed[name] for input, name in gathered.items() if name in self.packed}
        if not formats and not layouts:
            return None
        weight_format = "+".join(sorted(formats)) or DENSE
        resolution = self._resolve(replace(signature, weight_format=weight_format, packed=layouts))
        return resolution if resolution.chosen else None

    def _fall_back(self, signature: Signature, resolution: Resolution) -> Resolution:
        if self.fallback is not Fallback.ERROR:
            reference = self.dispatcher.resolve_fallback(signature)
            if reference.chosen:
                return replace(reference, rejected=resolution.rejected)
        return resolution


def _missing_kernels_message(missing: Iterable[Resolution]) -> str:
    """Return the message of an error about all operators that a device cannot compute, each once."""
    found: dict[tuple[str, str], Resolution] = {}
    for resolution in missing:
        signature = resolution.signature
        is_dense = signature.weight_format == DENSE
        types = f"{signature.dtype}" if is_dense else f"{signature.dtype}, {signature.weight_format} weights"
        found.setdefault((signature.operator, types), resolution)
    is_dense = all(resolution.signature.weight_format == DENSE for resolution in found.values())
    options = "dtype or device" if is_dense else "quantization, dtype or device"
    (operator, types), resolution = next(iter(found.items()))
    device = resolution.signature.device_type
    if len(found) == 1:
        return (
            f"No kernel for operator {operator} on {device} ({types}). Considered: {_considered(resolution)}. "
            f"Choose another {options}, or install a backend that has it."
        )
    each = "; ".join(
        f"{name} ({types}; considered: {_considered(resolution)})" for (name, types), resolution in found.items()
    )
    return (
        f"No kernels for {len(found)} operators on {device}: {each}. Choose another {options}, or install a backend "
        "that has them; `aethermind explain` shows where they are used."
    )


def _considered(resolution: Resolution) -> str:
    return "; ".join(f"{kernel.name} ({reason})" for kernel, reason in resolution.rejected) or "none"
