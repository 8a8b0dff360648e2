"""Kernels from before an operator gained inputs and attributes: they remain usable for calls without these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from aethermind.dispatch import Dispatcher, Fallback, Kernel, Signature
from aethermind.dispatch.reference import reference_kernels
from aethermind.errors import KernelNotFoundError
from aethermind.graph import GraphBuilder
from aethermind.graph.compile import compile_graph
from aethermind.hal import DType
from aethermind.ops import catalog
from aethermind.ops.dims import SymDim
from aethermind.ops.operator import BROADCASTING, OperatorRegistry

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


def old_sum(inputs: Sequence[Any], outputs: Sequence[Any], attributes: Mapping[str, Any]) -> None:
    assert not attributes
    outputs[0][...] = inputs[0].sum(-1)


def old_add(inputs: Sequence[Any], outputs: Sequence[Any], _: Mapping[str, Any]) -> None:
    a, b = inputs
    assert a.shape == b.shape == outputs[0].shape
    outputs[0][...] = a + b


OLD_KERNELS = (
    Kernel("sum", "old", "old sum", F32, function=old_sum),
    Kernel("add", "old", "old add", F32, function=old_add),
)


def steps(name: str, *shapes: tuple[Any, ...], **attributes: Any) -> list[str]:
    """The kernels of a plan of one operator on a device with old kernels and references of what was there before."""
    builder = GraphBuilder("one", OPERATORS)
    values = [builder.input(f"x{number}", DType.FLOAT32, shape) for number, shape in enumerate(shapes)]
    builder.output("out", builder.op(name, *values, **attributes))
    simple = [kernel for kernel in reference_kernels(OPERATORS, "old") if kernel.operator not in ("sum", "add")]
    compiled = compile_graph(
        builder.finish(), OPERATORS, Dispatcher([*OLD_KERNELS, *simple]), "old", {"T": 4}, fallback=Fallback.ERROR
    )
    return [step.kernel.name if "old" in step.kernel.name else step.kernel.operator for step in compiled.plan.steps]


def test_an_old_reduction_computes_other_dims_after_a_permutation() -> None:
    assert steps("sum", (2, 3, 4)) == ["old sum"]
    assert steps("sum", (2, 3, 4), dim=(1, 2)) == ["old sum"]
    assert steps("sum", (2, 3, 4), dim=2, keepdim=True) == ["old sum"]
    assert steps("sum", (2, 3, 4), dim=1) == ["transpose", "old sum"]
    assert steps("sum", (SymDim("T"), 3), dim=0) == ["transpose", "old sum"]


def test_an_old_sum_of_two_tensors_computes_broadcasting_after_an_expansion() -> None:
    assert steps("add", (3, 4), (3, 4)) == ["old add"]
    assert steps("add", (2, 4), (4,)) == ["concat", "old add"]
    assert steps("add", (2, 1), (1, 2)) == ["concat", "concat", "old add"]


def test_broadcasting_to_a_size_of_the_run_needs_a_kernel_for_it() -> None:
    with pytest.raises(KernelNotFoundError, match=r"No kernel for operator add .*does not compute broadcasting"):
        steps("add", (SymDim("T"), 8), (8,))


def test_a_kernel_that_broadcasts_says_so() -> None:
    builder = GraphBuilder("one", OPERATORS)
    a, b = builder.input("a", DType.FLOAT32, (SymDim("T"), 8)), builder.input("b", DType.FLOAT32, (8,))
    builder.output("out", builder.op("add", a, b))
    kernel = Kernel("add", "new", "new", F32, function=print, additions=frozenset({BROADCASTING}))
    compiled = compile_graph(builder.finish(), OPERATORS, Dispatcher([kernel]), "new", {"T": 4})
    assert [step.kernel for step in compiled.plan.steps] == [kernel]
