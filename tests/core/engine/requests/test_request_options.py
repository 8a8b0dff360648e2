"""Request options: what they mean, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from aethermind import RequestOptions, SamplingParams
from aethermind.engine.requests.request import Request
from aethermind.errors import InvalidArgumentError


@pytest.mark.parametrize(
    ("options", "max_tokens", "expected"),
    [
        ({}, None, 100),
        ({}, 5, 15),
        ({"max_context_tokens": 40}, None, 40),
        ({"max_context_tokens": 400}, None, 100),
        ({"max_new_tokens": 7}, None, 17),
        ({"max_new_tokens": 7}, 5, 15),
        ({"max_new_tokens": 7, "max_context_tokens": 12}, 50, 12),
    ],
)
def test_the_lowest_limit_applies(options: dict[str, Any], max_tokens: int | None, expected: int) -> None:
    assert RequestOptions(**options).max_total_tokens(10, max_tokens, 100) == expected


def test_a_request_has_its_options() -> None:
    options = RequestOptions(priority=-2, deadline_ms=500.0, max_new_tokens=3)
    request = Request("a", [1, 2], SamplingParams(), 8.0, max_model_len=50, options=options)
    assert (request.priority, request.deadline, request.max_total_tokens) == (-2, 8.5, 5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("priority", value) for value in (1.5, True, "high", None)),
        *(("deadline_ms", value) for value in (0, -1.0, float("inf"), float("nan"), "soon", True)),
        *((name, value) for name in ("max_context_tokens", "max_new_tokens") for value in (0, 1.5, True, "many")),
    ],
)
def test_the_error_of_a_bad_value_names_the_option(name: str, value: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{name} is"):
        RequestOptions(**{name: value})
