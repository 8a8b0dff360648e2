"""The graph of one rank: the nodes of the model over shards of weights, heads and caches, with collectives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate

from aethermind.errors import ConfigError
from aethermind.graph.ir import Graph, Node, Value, ValueKind
from aethermind.graph.tensor_parallel.collectives import COLLECTIVES, OWN_HEADS
from aethermind.graph.tensor_parallel.rules import ADD_LOW_RANK, HEADS, RULES, SCANS, Collective, Partial, Rule
from aethermind.graph.tensor_parallel.share import Segments, Share, StateShards, WeightPart
from aethermind.ops.operator import OperatorRegistry
from aethermind.ops.schema import TensorType

__all__ = ["SplitGraph", "split_graph", "without_results"]


@dataclass(frozen=True, slots=True)
class SplitGraph:
    """The graph of a rank.

    `parts` are the shards that its parameters are, by name, and `state_shards` those of its states; others are whole.
    """

    graph: Graph
    parts: Mapping[str, WeightPart]
    state_shards: Mapping[str, StateShards]


def split_graph(graph: Graph, operators: OperatorRegistry, share: Share) -> SplitGraph:
    """Shard a model's graph for one rank (see `rules`). Values keep their names; whole ones are equal on all ranks.

    A weight is sharded for each way in which it is read, so a tied embedding becomes two parameters. ConfigError where
    heads cannot be divided, or an operator has no rule for sharded inputs.
    """
    return _Splitter(graph, operators, share).run()


def without_results(graph: Graph) -> Graph:
    """Return the graph of a rank whose outputs are not read: collectives, state updates and what they depend on."""
    wanted = set(graph.states)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if node.operator in COLLECTIVES or not wanted.isdisjoint((*node.inputs, *node.outputs)):
            kept.append(node)
            wanted.update(value for value in node.inputs if value is not None)
    inputs = tuple(value for value in graph.inputs if value in wanted)
    return replace(graph, inputs=inputs, nodes=tuple(reversed(kept)), outputs={})


class _Splitter:
    def __init__(self, graph: Graph, operators: OperatorRegistry, share: Share) -> None:
        self._graph = graph
        self._operators = operators
        self._share = share
        self._ranks = [Share(rank, share.size) for rank in range(share.size)]
        self._new: dict[Value, Value] = {value: value for value in graph.inputs}
        self._axes: dict[Value, int | Partial] = {}
        """How computed values are sharded, if they are."""
        self._states: dict[Value, int | None] = {}
        """The axes along which states are split, None for whole ones, as far as they were read."""
        self._state_shards: dict[str, StateShards] = {}
        self._parameters: dict[str, Value] = {}
        self._parts: dict[str, WeightPart] = {}
        self._nodes: list[Node] = []
        self._own: dict[Value, Value] = {}
        """This rank's heads of values that all ranks have whole."""
        self._readers: dict[Value, list[Node]] = {}
        for node in graph.nodes:
            for value in node.inputs:
                if value is not None:
                    self._readers.setdefault(value, []).append(node)

    def run(self) -> SplitGraph:
        for node in self._graph.nodes:
            self._split(node, self._rule(node))
        states = tuple(self._new.get(value, value) for value in self._graph.states)
        outputs = {name: self._new[value] for name, value in self._graph.outputs.items()}
        graph = replace(
            self._graph,
            parameters=tuple(self._parameters.values()),
            states=states,
            nodes=tuple(self._nodes),
            outputs=outputs,
        )
        return SplitGraph(graph, self._parts, self._state_shards)

    def _rule(self, node: Node) -> Rule | None:
        """Return the rule that fits how the inputs are sharded; None where all are whole and may remain so."""
        names = [spec.name for spec in self._operators[node.operator].schema.inputs]
        axes = {
            name: self._axes.get(value)
            for name, value in zip(names, node.inputs, strict=True)
            if value is not None and value.kind is ValueKind.COMPUTED
        }
        is_any_split = any(axis is not None for axis in axes.values())
        for may_split in (False, True) if is_any_split else (False,):
            for rule in RULES.get(node.operator, ()):
                fits = all(_fits(rule.inputs.get(name), axis, may_split) for name, axis in axes.items())
                if fits and self._applies(rule, node):
                    return rule
        if is_any_split:
            raise ConfigError(
                f"This model cannot be divided among several ranks: {node.operator} ({node.outputs[0].name}) cannot go "
                "on from parts of its inputs. Leave tensor_parallel_size out."
            )
        return None

    def _applies(self, rule: Rule, node: Node) -> bool:
        """Whether what a rule says of the readers of a node's output, and of attributes, is true."""
        if rule.before is not None and not self._is_before(node.outputs[0], rule.before):
            return False
        if rule.beside is not None:
            (reader,) = self._readers_of(node.outputs[0])
            names = [spec.name for spec in self._operators[reader.operator].schema.inputs]
            if reader.inputs[names.index(rule.beside)] not in self._axes:
                return False
        if rule.multiple is not None and self._attribute(node, rule.multiple) % self._share.size:
            return False
        return not rule.segments or self._scan_behind(node) is not None

    def _scan_behind(self, node: Node) -> Node | None:
        """Return the recurrence whose operands a convolution, or a node before it, computes; None if there is none."""
        while node.operator not in SCANS:
            readers = list(self._readers_of(node.outputs[0]))
            if len(readers) != 1:
                return None
            (node,) = readers
        return node

    def _segments(self, node: Node) -> tuple[Segments, ...]:
        """Return begin and end of each rank's channels of each operand of the recurrence behind a node."""
        scan = self._scan_behind(node)
        assert scan is not None, "the rule applies"
        names = [spec.name for spec in self._operators[scan.operator].schema.inputs]
        channels, state = scan.inputs[0], scan.inputs[names.index("state")]
        assert channels is not None, "it is required"
        assert state is not None, "it is required"
        num_heads, depth, width = (_length(state, axis) for axis in (-3, -2, -1))
        num_groups = (_length(channels, -1) - num_heads * width) // (2 * depth)
        self._divided("The number of heads of the state", num_heads)
        self._shared("The number of groups of heads of the state", num_groups)
        value, other = (num_heads, width), (num_groups, depth)
        operands = (value, other, other) if SCANS[scan.operator] else (other, other, value)
        offsets = [0, *accumulate(count * size for count, size in operands)]
        return tuple(
            tuple(
                (offset + begin * size, offset + end * size)
                for offset, (count, size) in zip(offsets, operands, strict=False)
                for begin, end in [share.heads(count)]
            )
            for share in self._ranks
        )

    def _is_before(self, value: Value, operator: str) -> bool:
        """Whether an operator is the only reader of a value, LoRA in between skipped."""
        if operator == ADD_LOW_RANK:
            return any(_adds_to(reader, value) for reader in self._readers.get(value, ()))
        return {reader.operator for reader in self._readers_of(value)} == {operator}

    def _readers_of(self, value: Value) -> Iterator[Node]:
        """Yield the nodes that read a value, its multiple, or the sum of it and LoRA; LoRA itself is skipped."""
        for reader in self._readers.get(value, ()):
            if _adds_to(reader, value) or reader.operator == "scale":
                yield from self._readers_of(reader.outputs[0])
            elif reader.operator != ADD_LOW_RANK:
                yield reader

    def _split(self, node: Node, rule: Rule | None) -> None:
        rule = rule or Rule({}, {})
        schema = self._operators[node.operator].schema
        attributes = dict(node.attributes)
        for name in rule.shared:
            begin, end = self._shared(name, int(attributes[name]))
            attributes[name] = end - begin
        for name in rule.divided:
            attributes[name] = self._divided(name, int(attributes[name]))
        segments = self._segments(node) if rule.segments else None
        for spec, value in zip(schema.inputs, node.inputs, strict=True):
            if value is not None and spec.name in rule.even:
                self._divided("num_heads", _length(value, HEADS))
        inputs = tuple(
            None
            if value is None or (self._share.rank and spec.name in rule.once)
            else self._input(
                value,
                rule.inputs.get(spec.name),
                self._num_heads(node, rule.heads.get(spec.name)),
                int(attributes[rule.stacks[spec.name]]) if spec.name in rule.stacks else 1,
                segments if spec.name in rule.segments else None,
            )
            for spec, value in zip(schema.inputs, node.inputs, strict=True)
        )
        types = [None if value is None else value.type for value in inputs]
        float_type = schema.float_type([None if value is None else value.type for value in node.inputs])
        outputs, rest = [], []
        for spec, old, type in zip(
            schema.outputs, node.outputs, schema.infer(types, attributes, float_type), strict=True
        ):
            how = rule.outputs.get(spec.name)
            new = Value(f"{old.name}/part" if isinstance(how, Collective) else old.name, type, old.kind)
            outputs.append(new)
            if isinstance(how, Collective):
                rest.append(_collective(how, new, old))
                new = old
            elif how is not None:
                self._axes[old] = how
            self._new[old] = new
        self._nodes += [Node(node.operator, inputs, tuple(outputs), attributes), *rest]

    def _num_heads(self, node: Node, name: str | None) -> int | None:
        """Return the number of heads of a weight: the attribute `name` of its operator or of its result's reader."""
        return None if name is None else self._attribute(node, name)

    def _attribute(self, node: Node, name: str) -> int:
        """Return an attribute of an operator or of its result's reader."""
        nodes = (node, *self._readers_of(node.outputs[0]))
        return int(next(each for each in nodes if name in each.attributes).attributes[name])

    def _input(
        self,
        value: Value,
        axis: int | Partial | None,
        num_heads: int | None,
        num_stacked: int,
        segments: tuple[Segments, ...] | None,
    ) -> Value:
        if isinstance(axis, Partial):
            return self._new[value]
        if value.kind is ValueKind.PARAMETER:
            return self._parameter(value, axis, num_heads, num_stacked, segments)
        if value.kind is ValueKind.STATE:
            return self._state(value, axis, segments)
        if axis is not None and value.kind is ValueKind.COMPUTED and value not in self._axes:
            return self._own_heads(value)
        return self._new[value]

    def _own_heads(self, whole: Value) -> Value:
        if whole not in self._own:
            begin, end = self._shared("num_heads", _length(whole, HEADS))
            own = Value(f"{whole.name}/own", _with_dim(whole.type, HEADS, end - begin), whole.kind)
            self._nodes.append(
                Node(OWN_HEADS.name, (self._new[whole],), (own,), {"begin": begin, "count": end - begin})
            )
            self._own[whole] = own
        return self._own[whole]

    def _parameter(
        self,
        whole: Value,
        axis: int | None,
        num_heads: int | None,
        num_stacked: int,
        segments: tuple[Segments, ...] | None,
    ) -> Value:
        if axis is None:
            return self._parameters.setdefault(whole.name, whole)
        name = f"{whole.name}/{'columns' if len(whole.type.shape) == 2 and axis == -1 else 'rows'}"
        if name not in self._parameters:
            begin, end = self._share.part(_length(whole, axis) // num_stacked)
            if num_heads is not None:
                head_dim = _length(whole, axis) // num_heads
                begin, end = (head_dim * bound for bound in self._shared("num_heads", num_heads))
            own = () if segments is None else segments[self._share.rank]
            if own:
                begin, end = 0, _length_of(own)
            self._parts[name] = WeightPart(whole.name, whole.type, axis, begin, end, num_stacked, own)
            type = _with_dim(whole.type, axis, num_stacked * (end - begin))
            self._parameters[name] = replace(whole, name=name, type=type)
        return self._parameters[name]

    def _state(self, whole: Value, axis: int | None, segments: tuple[Segments, ...] | None) -> Value:
        if self._states.setdefault(whole, axis) != axis:
            raise ConfigError(
                f"This model cannot be divided among several ranks: it uses parts of {whole.name} and all of it. "
                "Leave tensor_parallel_size out."
            )
        if axis is None:
            return self._new.setdefault(whole, whole)
        length = _length(whole, axis)
        self._shared("num_kv_heads", length)
        shards = StateShards(axis, segments or tuple((share.heads(length),) for share in self._ranks))
        self._state_shards[whole.name] = shards
        own = _length_of(shards.segments[self._share.rank])
        return self._new.setdefault(whole, replace(whole, type=_with_dim(whole.type, axis, own)))

    def _shared(self, name: str, number: int) -> tuple[int, int]:
        """Return begin and end of this rank's heads, which ranks may share; ConfigError where they would be uneven."""
        if number % self._share.size and self._share.size % number:
            raise ConfigError(
                f"{name} is {number}, which {self._share.size} ranks cannot share evenly. Choose a "
                f"tensor_parallel_size that divides {number} or is a multiple of it."
            )
        return self._share.heads(number)

    def _divided(self, name: str, number: int) -> int:
        if number % self._share.size:
            raise ConfigError(
                f"{name} is {number}, which {self._share.size} ranks cannot share evenly. Choose a "
                f"tensor_parallel_size that divides {number}."
            )
        return number // self._share.size


def _collective(how: Collective, part: Value, whole: Value) -> Node:
    attributes = {"width": whole.type.shape[-1]} if how is Collective.ALL_GATHER else {}
    return Node(how.value, (part,), (whole,), attributes)


def _length_of(segments: Segments) -> int:
    return sum(end - begin for begin, end in segments)


def _adds_to(reader: Node, value: Value) -> bool:
    """Whether a node adds LoRA to a value."""
    return reader.operator == ADD_LOW_RANK and reader.inputs[0] == value


def _fits(wanted: int | Partial | None, axis: int | Partial | None, may_split: bool) -> bool:
    """Whether a rule accepts an input as it is sharded, or a whole one of which a rank takes its own heads."""
    return wanted == axis or (may_split and axis is None and wanted == HEADS)


def _length(value: Value, axis: int) -> int:
    length = value.type.shape[axis]
    assert isinstance(length, int), "the length of a split axis is not a symbol"
    return length


def _with_dim(type: TensorType, axis: int, length: int) -> TensorType:
    shape = list(type.shape)
    shape[axis] = length
    return TensorType(type.dtype, tuple(shape))
