"""The exceptions form one tree, and the drawing of it is true."""

from __future__ import annotations

import re

import pytest

from aethermind import errors

CLASSES = [getattr(errors, name) for name in errors.__all__]


@pytest.mark.parametrize("error", CLASSES)
def test_every_error_is_an_aethermind_error_with_a_docstring(error: type[Exception]) -> None:
    assert issubclass(error, errors.AetherMindError)
    assert error.__doc__


def test_nothing_is_left_out() -> None:
    values = vars(errors).items()
    defined = {name for name, value in values if isinstance(value, type) and value.__module__ == errors.__name__}
    assert defined == set(errors.__all__)
    assert errors.__all__ == sorted(errors.__all__)


def test_the_tree_is_as_drawn() -> None:
    drawn: set[type[Exception]] = set()
    branch: list[type[Exception]] = [Exception]
    for line in str(errors.__doc__).splitlines():
        if found := re.match(r"^([ │├└─]+)(\w+Error)\b", line):
            error = getattr(errors, found[2])
            branch[len(found[1]) // 4 :] = [error]
            assert error.__bases__[0] is branch[-2]
            drawn.add(error)
    assert drawn == set(CLASSES)


def test_a_wrong_argument_is_a_value_error_too() -> None:
    assert issubclass(errors.InvalidArgumentError, ValueError)
    assert issubclass(errors.ContextLengthError, errors.InvalidArgumentError)
