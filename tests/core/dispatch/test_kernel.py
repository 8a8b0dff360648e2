"""A kernel has exactly one form."""

from __future__ import annotations

import pytest

from aethermind.dispatch import Kernel
from aethermind.hal import DType


@pytest.mark.parametrize("forms", [{}, {"native": object(), "function": print}])
def test_exactly_one_form_is_given(forms: dict[str, object]) -> None:
    with pytest.raises(AssertionError, match="kernel k must be native or a function"):
        Kernel("add", "fake", "k", frozenset({DType.FLOAT32}), **forms)  # type: ignore[arg-type]


def test_a_kernel_supports_everything_until_it_says_otherwise() -> None:
    kernel = Kernel("add", "fake", "k", frozenset({DType.FLOAT32}), function=print)
    assert kernel.supports(None) is None  # type: ignore[arg-type]
