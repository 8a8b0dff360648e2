"""Operators called on a device whose memory the host cannot access."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tests.core.test_eager import REGISTRY

from aethermind import eager
from aethermind.dispatch.reference import rounded_inputs
from aethermind.eager import Eager
from aethermind.errors import OperatorError
from aethermind.hal import DType, Stream, Tensor
from aethermind.ops.operator import Operator, Sample
from aethermind.testing.operator_calls import assert_within_tolerance

RNG = np.random.default_rng(7)
FIRST_SAMPLES = [
    pytest.param(operator, next(iter(operator.samples(np.random.default_rng(5)))), id=operator.name)
    for operator in REGISTRY
    if DType.FLOAT32 in operator.tolerances
]


@pytest.fixture(scope="module")
def sim() -> Iterator[Eager]:
    opened = Eager(device="sim")
    yield opened
    opened.close()


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(("operator", "sample"), FIRST_SAMPLES)
def test_arrays_are_uploaded_and_results_downloaded(sim: Eager, operator: Operator, sample: Sample) -> None:
    arrays = rounded_inputs(operator, sample, DType.FLOAT32)
    given = [None if array is None else array.copy() for array in arrays]
    results = getattr(sim, operator.name)(*given, **sample.attributes)
    results = results if isinstance(results, tuple) else (results,)
    assert all(isinstance(result, np.ndarray) for result in results)
    assert_within_tolerance(REGISTRY, operator, DType.FLOAT32, arrays, sample.attributes, list(results))
    names = [spec.name for spec in operator.schema.inputs]
    for spec, result in zip(operator.schema.outputs, results, strict=True):
        if spec.alias is not None and not operator.schema.is_view:
            assert result is given[names.index(spec.alias)], "an input that is changed in place is written back"


def test_tensors_stay_in_the_memory_of_the_device(sim: Eager) -> None:
    x, weight = normal(3, 8), normal(8)
    on_device, stats = sim.tensor(x), sim._opened.backend.transfer.stats
    weight_on_device = sim.tensor(weight)
    before = stats()
    y = sim.silu(sim.rms_norm(on_device, weight_on_device, eps=1e-6))
    assert isinstance(y, Tensor)
    assert str(y.buffer.device) == "sim:0"
    assert stats() == before, "nothing was copied"
    expected = torch.nn.functional.silu(torch.nn.functional.rms_norm(torch.tensor(x), (8,), torch.tensor(weight), 1e-6))
    np.testing.assert_allclose(sim.numpy(y), expected.numpy(), rtol=1e-5, atol=1e-6)
    viewed = sim.split_heads(y, num_heads=2)
    assert (viewed.shape, viewed.address) == ((3, 2, 4), y.address)


def test_the_device_is_that_of_the_tensor(sim: Eager) -> None:
    x = normal(2, 6)
    y = eager.softmax(sim.tensor(x))
    assert str(y.buffer.device) == "sim:0"
    np.testing.assert_allclose(sim.numpy(y), torch.softmax(torch.tensor(x), -1).numpy(), rtol=1e-5)
    assert isinstance(eager.softmax(x), np.ndarray)


def test_torch_tensors_come_back_as_torch_tensors(sim: Eager) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(3, 5, generator=torch.Generator().manual_seed(1)).to(dtype)
        y = sim.silu(x)
        assert (type(y), y.dtype) == (torch.Tensor, dtype)
        torch.testing.assert_close(y, torch.nn.functional.silu(x))


def test_a_packed_weight_is_on_the_device(sim: Eager) -> None:
    x, weight = normal(4, 32), normal(16, 32)
    packed = sim.pack("linear", "weight", weight)
    np.testing.assert_allclose(sim.linear(x, packed), x @ weight.T, rtol=1e-4, atol=1e-5)


def test_calls_run_on_the_current_stream(sim: Eager, monkeypatch: pytest.MonkeyPatch) -> None:
    streams, used = sim._opened.backend.streams, []
    own = streams.create()
    submit = type(own).submit  # type: ignore[attr-defined]

    def noting(stream: Stream, work: Any) -> None:
        used.append(stream)
        submit(stream, work)

    x = sim.tensor(normal(2, 4))
    monkeypatch.setattr(type(own), "submit", noting)
    with streams.use(own):
        sim.relu(x)
    assert set(used) == {own}
    used.clear()
    sim.relu(x)
    assert set(used) == {streams.default()}


def test_misuse_is_one_sentence(sim: Eager) -> None:
    x = sim.tensor(normal(2, 4))
    with pytest.raises(OperatorError, match="The tensor is on numpy:0, and the call is for sim:0; copy it there first"):
        sim.silu(Eager(device="numpy").tensor(normal(2, 2)))
    with pytest.raises(OperatorError, match="Operators take row-major tensors"):
        sim.silu(Tensor(x.buffer, x.dtype, (4, 2), (1, 4)))
    with pytest.raises(OperatorError, match="rms_norm"):
        sim.rms_norm(x, sim.tensor(normal(3)), eps=1e-6)
