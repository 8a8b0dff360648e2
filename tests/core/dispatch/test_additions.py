"""Kernels from before an operator gained inputs and attributes: they remain usable for calls without these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from aethermind.dispatch import Dispatcher, Kernel, Signature
from aethermind.dispatch.reference import reference_kernels
from aethermind.graph import GraphBuilder
from aethermind.graph.compile import compile_graph
from aethermind.hal import DType
from aethermind.ops import catalog
from aethermind.ops.operator import OperatorRegistry

OPERATORS = OperatorRegistry(catalog.load())
F32 = frozenset({DType.FLOAT32})


def old_rms_norm(inputs: Sequence[Any], outputs: Sequence[Any], attributes: Mapping[str, Any]) -> None:
    x, weight = inputs
    (eps,) = attributes.values()
    outputs[0][...] = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def attention_signature(**additions: bool) -> Signature:
    attributes = {"scale": 1.0, "window": 0, "softcap": 5.0}
    return Signature("paged_attention", "fake", DType.FLOAT32, (None,) * 8, attributes, additions=additions)


def test_an_old_kernel_gets_what_it_knows() -> None:
    seen: list[Signature] = []

    def supports(signature: Signature) -> str | None:
        seen.append(signature)
        return None

    kernel = Kernel("paged_attention", "fake", "old", F32, function=print, supports=supports)
    assert kernel.reason_against(attention_signature(sinks=False, slopes=False, softcap=False)) is None
    assert len(seen[0].inputs) == 6
    assert list(seen[0].attributes) == ["scale", "window"]


@pytest.mark.parametrize("used", ["sinks", "slopes", "softcap"])
def test_an_old_kernel_is_refused_where_a_call_uses_more(used: str) -> None:
    additions = {name: name == used for name in ("sinks", "slopes", "softcap")}
    kernel = Kernel("paged_attention", "fake", "old", F32, function=print)
    resolution = Dispatcher([kernel]).resolve(attention_signature(**additions))
    assert resolution.chosen is None
    assert resolution.rejected == ((kernel, f"does not compute {used}"),)


def test_a_kernel_gets_absent_inputs_before_the_last_that_it_knows() -> None:
    kernel = Kernel("paged_attention", "fake", "new", F32, function=print, additions=frozenset({"slopes"}))
    inputs, attributes = kernel.arguments(
        (1,) * 8, {"scale": 1.0, "window": 0, "softcap": 0.0}, ("sinks", "slopes", "softcap")
    )
    assert len(inputs) == 8
    assert list(attributes) == ["scale", "window"]


@pytest.mark.parametrize(("offset", "chosen"), [(0.0, "old"), (1.0, "reference")])
def test_plans_call_old_kernels_without_additions(offset: float, chosen: str) -> None:
    builder = GraphBuilder("norm", OPERATORS)
    x, weight = builder.input("x", DType.FLOAT32, (3, 8)), builder.input("weight", DType.FLOAT32, (8,))
    builder.output("out", builder.op("rms_norm", x, weight, eps=1e-6, weight_offset=offset))
    kernels = [
        Kernel("rms_norm", "numpy", "old", F32, 1, function=old_rms_norm),
        *reference_kernels(OPERATORS, "numpy"),
    ]
    compiled = compile_graph(builder.finish(), OPERATORS, Dispatcher(kernels), "numpy", {})
    (step,) = compiled.plan.steps
    assert step.kernel.name == chosen
    assert list(step.attributes) == ["eps"] if chosen == "old" else ["eps", "weight_offset"]
