"""The intermediate representation itself."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import pytest

from aethermind.graph import Node, Value
from aethermind.graph.ir import ValueKind
from aethermind.hal import DType
from aethermind.ops.schema import TensorType

TYPE = TensorType(DType.FLOAT32, (4,))


def test_values_are_written_with_the_sign_of_their_kind() -> None:
    signs = {kind: str(Value("v", TYPE, kind)) for kind in ValueKind}
    assert signs == {
        ValueKind.INPUT: "%v",
        ValueKind.PARAMETER: "@v",
        ValueKind.STATE: "$v",
        ValueKind.COMPUTED: "%v",
    }


def test_nodes_are_rewritten_not_changed() -> None:
    x, y, z = (Value(name, TYPE) for name in "xyz")
    node = Node("add", (x, None), (y,), {"a": 1})
    renamed = node.substitute(lambda value: replace(value, name=value.name + "'") if value is not z else value)
    assert [value.name for value in (renamed.inputs[0], renamed.outputs[0]) if value] == ["x'", "y'"]
    assert renamed.inputs[1] is None
    assert node.inputs == (x, None)
    with pytest.raises(FrozenInstanceError):
        node.operator = "mul"  # type: ignore[misc]
