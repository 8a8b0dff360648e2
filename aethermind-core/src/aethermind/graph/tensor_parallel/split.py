"""The graph of one rank: the model's nodes on shards of weights, activations and states, joined by collectives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate

from aethermind.errors import ConfigError
from aethermind.graph.ir import Graph, Node, Value, ValueKind
from aethermind.graph.tensor_parallel.collectives import COLLECTIVES, OWN_HEADS
from aethermind.graph.tensor_parallel.rules import ADD_LOW_RANK, HEADS, RECURRENCES, RULES, Collective, Partial, Rule
from aethermind.graph.tensor_parallel.share import Segments, Share, StateShards, WeightShard
from aethermind.ops.operator import OperatorRegistry
from aethermind.ops.schema import TensorType

__all__ = ["SplitGraph", "split_graph", "without_outputs"]


@dataclass(frozen=True, slots=True)
class SplitGraph:
    """The graph of a rank.

    `weight_shards` are those of its parameters that are shards, by their names in it, and `state_shards` those of its
    states; other parameters and states are whole.
    """

    graph: Graph
    weight_shards: Mapping[str, WeightShard]
    state_shards: Mapping[str, StateShards]


def split_graph(graph: Graph, operators: OperatorRegistry, share: Share) -> SplitGraph:
    """Shard a model's graph for one rank (see `rules`). Values keep their names; whole ones are equal on all ranks.

    A weight that is read along two axes, such as a tied embedding, becomes two parameters. ConfigError if heads cannot
    be divided, or if an operator has no rule for sharded inputs.
    """
    return _Splitter(graph, operators, share).run()


def without_outputs(graph: Graph) -> Graph:
    """Return a rank's graph without outputs: it has collectives, writes to states, and nodes that these depend on."""
    wanted = set(graph.states)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if node.operator in COLLECTIVES or not wanted.isdisjoint((*node.inputs, *node.outputs)):
            kept.append(node)
            wanted.update(value for value in node.inputs if value is not None)
    inputs = tuple(value for value in graph.inputs if value in wanted)
    return replace(graph, inputs=inputs, nodes=tuple(reversed(kept)), outputs={})


class _Splitter:
    """The state of `split_graph`: what the nodes so far have become in the rank's graph."""

    def __init__(self, graph: Graph, operators: OperatorRegistry, share: Share) -> None:
        self._graph = graph
        self._operators = operators
        self._share = share
        self._ranks = [Share(rank, share.size) for rank in range(share.size)]
        self._rank_values: dict[Value, Value] = {value: value for value in graph.inputs}
        """The values of the rank's graph, by those of the model's."""
        self._axes: dict[Value, int | Partial] = {}
        """How computed values are sharded: the axis, or as partial sums. Whole values are absent."""
        self._state_axes: dict[Value, int | None] = {}
        """The axis along which each state that was read so far is split, None for a whole one."""
        self._state_shards: dict[str, StateShards] = {}
        self._parameters: dict[str, Value] = {}
        self._weight_shards: dict[str, WeightShard] = {}
        self._nodes: list[Node] = []
        self._local_heads: dict[Value, Value] = {}
        """This rank's heads of values that all ranks have whole."""
        self._readers: dict[Value, list[Node]] = {}
        for node in graph.nodes:
            for value in node.inputs:
                if value is not None:
                    self._readers.setdefault(value, []).append(node)

    def run(self) -> SplitGraph:
        for node in self._graph.nodes:
            self._split(node, self._rule(node))
        states = tuple(self._rank_values.get(value, value) for value in self._graph.states)
        outputs = {name: self._rank_values[value] for name, value in self._graph.outputs.items()}
        graph = replace(
            self._graph,
            parameters=tuple(self._parameters.values()),
            states=states,
            nodes=tuple(self._nodes),
            outputs=outputs,
        )
        return SplitGraph(graph, self._weight_shards, self._state_shards)

    def _rule(self, node: Node) -> Rule | None:
        """Return the first rule that applies; None if no input is sharded and no rule splits the node."""
        names = [spec.name for spec in self._operators[node.operator].schema.inputs]
        axes = {
            name: self._axes.get(value)
            for name, value in zip(names, node.inputs, strict=True)
            if value is not None and value.kind is ValueKind.COMPUTED
        }
        has_sharded_input = any(axis is not None for axis in axes.values())
        for may_take_heads in (False, True) if has_sharded_input else (False,):
            for rule in RULES.get(node.operator, ()):
                fits = all(_fits(rule.inputs.get(name), axis, may_take_heads) for name, axis in axes.items())
                if fits and self._applies(rule, node):
                    return rule
        if has_sharded_input:
            raise ConfigError(
                f"This model cannot be divided among several ranks: {node.operator} ({node.outputs[0].name}) cannot go "
                "on from parts of its inputs. Leave tensor_parallel_size out."
            )
        return None

    def _applies(self, rule: Rule, node: Node) -> bool:
        """Whether a node fulfils the conditions of a rule about the readers of its output and about attributes."""
        if rule.reader is not None and not self._is_read_only_by(node.outputs[0], rule.reader):
            return False
        if rule.sharded_reader_input is not None:
            (reader,) = self._readers_beyond_lora(node.outputs[0])
            names = [spec.name for spec in self._operators[reader.operator].schema.inputs]
            if reader.inputs[names.index(rule.sharded_reader_input)] not in self._axes:
                return False
        if rule.divisible is not None and self._attribute(node, rule.divisible) % self._share.size:
            return False
        return not rule.segments or self._recurrence_after(node) is not None

    def _recurrence_after(self, node: Node) -> Node | None:
        """Return the recurrence that reads the output of a node, directly or through a chain of nodes, or None."""
        while node.operator not in RECURRENCES:
            readers = list(self._readers_beyond_lora(node.outputs[0]))
            if len(readers) != 1:
                return None
            (node,) = readers
        return node

    def _segments(self, node: Node) -> tuple[Segments, ...]:
        """Return the range of each rank's channels of each operand of the recurrence that follows a node.

        The recurrence's first input has the channels [H·E] of the values and [G·D] of each of the two other operands;
        its state is [..., H, D, E].
        """
        recurrence = self._recurrence_after(node)
        assert recurrence is not None, "the rule applies"
        names = [spec.name for spec in self._operators[recurrence.operator].schema.inputs]
        channels, state = recurrence.inputs[0], recurrence.inputs[names.index("state")]
        assert channels is not None, "the first input is required"
        assert state is not None, "the state is required"
        num_heads, key_dim, value_dim = (_length(state, axis) for axis in (-3, -2, -1))
        num_groups = (_length(channels, -1) - num_heads * value_dim) // (2 * key_dim)
        self._checked_quotient("The number of heads of the state", num_heads)
        self._head_range("The number of groups of heads of the state", num_groups)
        values, other = (num_heads, value_dim), (num_groups, key_dim)
        operands = (values, other, other) if RECURRENCES[recurrence.operator] else (other, other, values)
        offsets = [0, *accumulate(count * size for count, size in operands)]
        return tuple(
            tuple(
                (offset + begin * size, offset + end * size)
                for offset, (count, size) in zip(offsets, operands, strict=False)
                for begin, end in [share.heads(count)]
            )
            for share in self._ranks
        )

    def _is_read_only_by(self, value: Value, operator: str) -> bool:
        """Whether an operator is the only reader of a value, apart from LoRA (unless the operator is LoRA)."""
        if operator == ADD_LOW_RANK:
            return any(_adds_to(reader, value) for reader in self._readers.get(value, ()))
        return {reader.operator for reader in self._readers_beyond_lora(value)} == {operator}

    def _readers_beyond_lora(self, value: Value) -> Iterator[Node]:
        """Yield the nodes that read a value. An `add_low_rank` or `scale` is replaced by the readers of its output."""
        for reader in self._readers.get(value, ()):
            if _adds_to(reader, value) or reader.operator == "scale":
                yield from self._readers_beyond_lora(reader.outputs[0])
            elif reader.operator != ADD_LOW_RANK:
                yield reader

    def _split(self, node: Node, rule: Rule | None) -> None:
        """Append the node of this rank that a rule makes of a node, and a collective if the rule has one."""
        rule = rule or Rule({}, {})
        schema = self._operators[node.operator].schema
        attributes = dict(node.attributes)
        for name in rule.shared:
            begin, end = self._head_range(name, int(attributes[name]))
            attributes[name] = end - begin
        for name in rule.divided:
            attributes[name] = self._checked_quotient(name, int(attributes[name]))
        segments = self._segments(node) if rule.segments else None
        for spec, value in zip(schema.inputs, node.inputs, strict=True):
            if value is not None and spec.name in rule.unshared_heads:
                self._checked_quotient("num_heads", _length(value, HEADS))
        inputs = tuple(
            None
            if value is None or (self._share.rank and spec.name in rule.rank_0_only)
            else self._input(
                value,
                rule.inputs.get(spec.name),
                self._num_heads(node, rule.head_counts.get(spec.name)),
                int(attributes[rule.stack_counts[spec.name]]) if spec.name in rule.stack_counts else 1,
                segments if spec.name in rule.segments else None,
            )
            for spec, value in zip(schema.inputs, node.inputs, strict=True)
        )
        types = [None if value is None else value.type for value in inputs]
        float_type = schema.float_type([None if value is None else value.type for value in node.inputs])
        outputs, collectives = [], []
        for spec, old, type in zip(
            schema.outputs, node.outputs, schema.infer(types, attributes, float_type), strict=True
        ):
            sharding = rule.outputs.get(spec.name)
            new = Value(f"{old.name}/part" if isinstance(sharding, Collective) else old.name, type, old.kind)
            outputs.append(new)
            if isinstance(sharding, Collective):
                collectives.append(_collective(sharding, new, old))
                new = old
            elif sharding is not None:
                self._axes[old] = sharding
            self._rank_values[old] = new
        self._nodes += [Node(node.operator, inputs, tuple(outputs), attributes), *collectives]

    def _num_heads(self, node: Node, name: str | None) -> int | None:
        """Return the number of heads of a weight, the attribute `name` of its node or of the output's reader."""
        return None if name is None else self._attribute(node, name)

    def _attribute(self, node: Node, name: str) -> int:
        """Return an attribute of a node, or of the reader of its output if the node has none of that name."""
        nodes = (node, *self._readers_beyond_lora(node.outputs[0]))
        return int(next(each for each in nodes if name in each.attributes).attributes[name])

    def _input(
        self,
        value: Value,
        axis: int | Partial | None,
        num_heads: int | None,
        num_stacked: int,
        segments: tuple[Segments, ...] | None,
    ) -> Value:
        """Return the rank's value that replaces an input, sharded along `axis` (None: whole)."""
        if isinstance(axis, Partial):
            return self._rank_values[value]
        if value.kind is ValueKind.PARAMETER:
            return self._parameter(value, axis, num_heads, num_stacked, segments)
        if value.kind is ValueKind.STATE:
            return self._state(value, axis, segments)
        if axis is not None and value.kind is ValueKind.COMPUTED and value not in self._axes:
            return self._rank_heads(value)
        return self._rank_values[value]

    def _rank_heads(self, whole: Value) -> Value:
        """Return this rank's heads of a value that all ranks have whole, selected by `own_heads`."""
        if whole not in self._local_heads:
            begin, end = self._head_range("num_heads", _length(whole, HEADS))
            own = Value(f"{whole.name}/own", _with_dim(whole.type, HEADS, end - begin), whole.kind)
            self._nodes.append(
                Node(OWN_HEADS.name, (self._rank_values[whole],), (own,), {"begin": begin, "count": end - begin})
            )
            self._local_heads[whole] = own
        return self._local_heads[whole]

    def _parameter(
        self,
        whole: Value,
        axis: int | None,
        num_heads: int | None,
        num_stacked: int,
        segments: tuple[Segments, ...] | None,
    ) -> Value:
        """Return the parameter of the rank's graph that is this rank's shard of a parameter."""
        if axis is None:
            return self._parameters.setdefault(whole.name, whole)
        name = f"{whole.name}/{'columns' if len(whole.type.shape) == 2 and axis == -1 else 'rows'}"
        if name not in self._parameters:
            begin, end = self._share.part(_length(whole, axis) // num_stacked)
            if num_heads is not None:
                head_dim = _length(whole, axis) // num_heads
                begin, end = (head_dim * bound for bound in self._head_range("num_heads", num_heads))
            own = () if segments is None else segments[self._share.rank]
            if own:
                begin, end = 0, _total_length(own)
            self._weight_shards[name] = WeightShard(whole.name, whole.type, axis, begin, end, num_stacked, own)
            type = _with_dim(whole.type, axis, num_stacked * (end - begin))
            self._parameters[name] = replace(whole, name=name, type=type)
        return self._parameters[name]

    def _state(self, whole: Value, axis: int | None, segments: tuple[Segments, ...] | None) -> Value:
        """Return the state of the rank's graph that is this rank's shard of a state."""
        if self._state_axes.setdefault(whole, axis) != axis:
            raise ConfigError(
                f"This model cannot be divided among several ranks: it uses parts of {whole.name} and all of it. "
                "Leave tensor_parallel_size out."
            )
        if axis is None:
            return self._rank_values.setdefault(whole, whole)
        length = _length(whole, axis)
        self._head_range("num_kv_heads", length)
        shards = StateShards(axis, segments or tuple((share.heads(length),) for share in self._ranks))
        self._state_shards[whole.name] = shards
        own = _total_length(shards.segments[self._share.rank])
        return self._rank_values.setdefault(whole, replace(whole, type=_with_dim(whole.type, axis, own)))

    def _head_range(self, name: str, number: int) -> tuple[int, int]:
        """Return begin and end of this rank's heads, which it may share with others; ConfigError if uneven."""
        if number % self._share.size and self._share.size % number:
            raise ConfigError(
                f"{name} is {number}, which {self._share.size} ranks cannot share evenly. Choose a "
                f"tensor_parallel_size that divides {number} or is a multiple of it."
            )
        return self._share.heads(number)

    def _checked_quotient(self, name: str, number: int) -> int:
        """Return a number divided by that of ranks; ConfigError if there is a remainder."""
        if number % self._share.size:
            raise ConfigError(
                f"{name} is {number}, which {self._share.size} ranks cannot share evenly. Choose a "
                f"tensor_parallel_size that divides {number}."
            )
        return number // self._share.size


def _collective(sharding: Collective, part: Value, whole: Value) -> Node:
    attributes = {"width": whole.type.shape[-1]} if sharding is Collective.ALL_GATHER else {}
    return Node(sharding.value, (part,), (whole,), attributes)


def _total_length(segments: Segments) -> int:
    return sum(end - begin for begin, end in segments)


def _adds_to(reader: Node, value: Value) -> bool:
    """Whether a node adds LoRA to a value."""
    return reader.operator == ADD_LOW_RANK and reader.inputs[0] == value


def _fits(wanted: int | Partial | None, axis: int | Partial | None, may_take_heads: bool) -> bool:
    """Whether a rule accepts an input sharded along `axis`, or, with `may_take_heads`, a whole one with heads."""
    return wanted == axis or (may_take_heads and axis is None and wanted == HEADS)


def _length(value: Value, axis: int) -> int:
    length = value.type.shape[axis]
    assert isinstance(length, int), "the length of a split axis is not a symbol"
    return length


def _with_dim(type: TensorType, axis: int, length: int) -> TensorType:
    shape = list(type.shape)
    shape[axis] = length
    return TensorType(type.dtype, tuple(shape))
