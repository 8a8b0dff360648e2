"""Eager reductions over any dims, broadcasting, reshape, permute and expand: those of torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from aethermind.eager import Eager
from aethermind.errors import OperatorError

X = torch.from_numpy(np.random.default_rng(0).standard_normal((3, 4, 5, 6)))


@pytest.fixture(scope="module", params=["numpy", "cpu"])
def session(request: pytest.FixtureRequest) -> Iterator[Eager]:
    opened = Eager(device=request.param)
    yield opened
    opened.close()


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dim", [0, -2, (0, 2), [1, -1], (), None], ids=str)
def test_dims_and_broadcasting_are_those_of_torch(session: Eager, dim: Any, keepdim: bool) -> None:
    x = X.float()
    mean, largest = session.mean(x, dim=dim, keepdim=keepdim), session.max(x, dim=dim, keepdim=keepdim)
    torch.testing.assert_close(mean, X.mean(dim, keepdim=keepdim).float())
    torch.testing.assert_close(largest, x.amax(() if dim is None else dim, keepdim=keepdim), rtol=0, atol=0)
    if keepdim:
        torch.testing.assert_close(session.sub(x, mean), (X - X.mean(dim, keepdim=True)).float())


def test_the_last_dim_is_the_default(session: Eager) -> None:
    torch.testing.assert_close(session.sum(X.float()), X.sum(-1).float())
    torch.testing.assert_close(session.argmax(X.float()), X.argmax(-1).int())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_layer_norm_of_channels_by_simple_operators(session: Eager, dtype: torch.dtype) -> None:
    """[N, C, H, W] over C, H and W, with a weight for each channel."""
    x, weight = X.to(dtype), torch.linspace(0.5, 2, 4).to(dtype).reshape(4, 1, 1)
    centred = session.sub(x, session.mean(x, dim=(1, 2, 3), keepdim=True))
    variance = session.mean(session.mul(centred, centred), dim=(1, 2, 3), keepdim=True)
    deviation = session.exp(session.scale(session.log(variance), factor=0.5))
    out = session.mul(session.div(centred, deviation), weight)
    expected = torch.nn.functional.group_norm(x.double(), 1, eps=0) * weight.double()
    torch.testing.assert_close(out.double(), expected, rtol=0.03, atol=0.03)


def test_shapes(session: Eager) -> None:
    x = X.float()
    assert session.reshape(x, shape=(-1, 15)).data_ptr() == x.data_ptr()
    torch.testing.assert_close(session.permute(x, dims=(2, 0, -1, 1)), x.permute(2, 0, 3, 1), rtol=0, atol=0)
    torch.testing.assert_close(session.expand(x[:, :1], shape=[2, 3, 4, -1, -1]), x[:, :1].expand(2, 3, 4, 5, 6))


def test_a_list_is_part_of_the_signature(session: Eager) -> None:
    x = torch.ones(3, 3)
    x[0] = 2
    for dims, expected in (([0], [4.0, 4.0, 4.0]), ([1], [6.0, 3.0, 3.0]), ([0], [4.0, 4.0, 4.0])):
        assert session.sum(x, dim=dims).tolist() == expected


def test_large_results_are_the_same_for_any_number_of_threads() -> None:
    x = torch.randn(3, 700, 600, generator=torch.Generator().manual_seed(1))
    results = []
    for num_threads in (1, 2, 3):
        session = Eager(device="cpu")
        session._opened.backend.set_num_threads(num_threads)
        results.append([session.sum(x, dim=dim) for dim in (0, 1, (0, 1), (0, 2), ())])
        session.close()
    for dim, *same in zip((0, 1, (0, 1), (0, 2), ()), *results, strict=True):
        torch.testing.assert_close(same[0], x.double().sum(dim).float(), rtol=1e-5, atol=1e-3)
        assert all(torch.equal(same[0], each) for each in same)


def test_what_does_not_fit_is_an_error(session: Eager) -> None:
    with pytest.raises(OperatorError, match=r"input 'b' is float32\[3\], but it cannot be broadcast with \[2,4\]"):
        session.add(np.ones((2, 4), np.float32), np.ones(3, np.float32))
    with pytest.raises(OperatorError, match="Dim 2 is out of range for a tensor of 2 dims"):
        session.sum(np.ones((2, 4), np.float32), dim=2)
    with pytest.raises(OperatorError, match="attribute 'dim' should be of type ints, got True"):
        session.sum(np.ones((2, 4), np.float32), dim=True)
