"""A kernel has exactly one form, and one that breaks its contract is named with its package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aethermind.dispatch import Kernel
from aethermind.errors import ComputationError, KernelError, OutOfMemoryError
from aethermind.hal import DType


@pytest.mark.parametrize("forms", [{}, {"native": object(), "function": print}])
def test_exactly_one_form_is_given(forms: dict[str, object]) -> None:
    with pytest.raises(AssertionError, match="kernel k must be native or a function"):
        Kernel("add", "fake", "k", frozenset({DType.FLOAT32}), **forms)  # type: ignore[arg-type]


def test_a_kernel_supports_everything_until_it_says_otherwise() -> None:
    kernel = Kernel("add", "fake", "k", frozenset({DType.FLOAT32}), function=print)
    assert kernel.supports(None) is None  # type: ignore[arg-type]


def call(function: Callable[..., Any], provider: str = "a-package") -> None:
    kernel = Kernel("add", "fake", "fake/add", frozenset({DType.FLOAT32}), function=function, provider=provider)
    kernel.call([np.ones(2, np.float32)], [np.zeros(2, np.float32)], {"size": 1})


def raising(error: Exception) -> Callable[..., None]:
    def function(*_: Any) -> None:
        raise error

    return function


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("kernel says no"), "ValueError: kernel says no."),
        (IndexError(), "IndexError: without a message."),
        (RuntimeError("two\nlines."), "RuntimeError: two lines."),
    ],
)
def test_what_a_kernel_raises_names_it_and_its_package(error: Exception, words: str) -> None:
    with pytest.raises(KernelError) as caught:
        call(raising(error))
    assert str(caught.value) == (
        f"Kernel 'fake/add' for add of a-package raised {words} Update or uninstall its package, or choose another "
        "device."
    )
    assert caught.value.__cause__ is error
    assert isinstance(caught.value, ComputationError)


def test_an_error_in_words_already_stays_what_it_is() -> None:
    with pytest.raises(OutOfMemoryError, match="no room"):
        call(raising(OutOfMemoryError("no room")))


@pytest.mark.parametrize("returned", [np.ones(2), [np.ones(2)], 0, False])
def test_a_kernel_that_returns_its_results_is_told_where_they_belong(returned: object) -> None:
    with pytest.raises(
        KernelError, match=r"'fake/add' for add returned \w+ instead of None: a kernel writes its results"
    ):
        call(lambda *_: returned, provider="")
