"""Request: what is prefill, what ends a request, whose seed counts."""

from __future__ import annotations

from typing import Any

import pytest

from aethermind.engine.requests.request import FinishReason, Request, RequestState
from aethermind.sampling.params import SamplingParams


def make(prompt: int = 3, max_model_len: int = 100, **params: Any) -> Request:
    return Request(
        "r",
        range(prompt),
        SamplingParams(**params),
        0.0,
        max_model_len=max_model_len,
        seed=7,
        eos_token_ids=[99],
    )


def test_a_new_request() -> None:
    request = make(max_tokens=5)
    assert (request.state, request.num_computed_tokens, request.finish_reason) == (
        RequestState.WAITING,
        0,
        None,
    )
    assert (request.num_prompt_tokens, request.num_tokens, request.num_output_tokens) == (3, 3, 0)
    assert request.max_total_tokens == 8
    assert repr(request) == "Request('r', waiting, prompt=3, output=0, computed=0)"


def test_prefilling_is_having_more_than_the_newest_token_to_compute() -> None:
    request = make()
    seen = []
    for request.num_computed_tokens in (0, 1, 2):
        seen.append(request.is_prefilling)
    assert seen == [True, True, False]
    request.num_computed_tokens = 3
    request.append_token(5)
    assert not request.is_prefilling
    request.num_computed_tokens = 0
    assert request.is_prefilling


def test_all_token_ids_are_prompt_and_output() -> None:
    request = make(max_tokens=9)
    assert request.append_token(50) is request.append_token(51) is None
    assert request.all_token_ids == [0, 1, 2, 50, 51]
    assert request.output_token_ids == [50, 51]
    assert request.prompt_token_ids == [0, 1, 2]


@pytest.mark.parametrize(
    ("params", "tokens", "reasons"),
    [
        ({"max_tokens": 2}, [5, 5], [None, FinishReason.LENGTH]),
        ({"max_tokens": 9}, [5, 99], [None, FinishReason.STOP]),
        ({"max_tokens": 1}, [99], [FinishReason.STOP]),
        ({"max_tokens": 2, "ignore_eos": True}, [99, 99], [None, FinishReason.LENGTH]),
        ({"max_tokens": 9, "stop_token_ids": [4]}, [4], [FinishReason.STOP]),
        ({"max_tokens": 9, "stop_token_ids": [4], "ignore_eos": True}, [99, 4], [None, FinishReason.STOP]),
        ({"max_tokens": 9, "min_tokens": 2}, [99, 99], [None, FinishReason.STOP]),
        ({"max_tokens": None, "max_model_len": 5}, [5, 5], [None, FinishReason.LENGTH]),
        ({"max_tokens": 50, "max_model_len": 5}, [5, 5], [None, FinishReason.LENGTH]),
    ],
)
def test_what_ends_a_request(params: dict[str, Any], tokens: list[int], reasons: list[Any]) -> None:
    request = make(**params)
    assert [request.append_token(token) for token in tokens] == reasons


def test_the_seed_of_the_parameters_takes_precedence() -> None:
    assert make().seed == 7
    assert make(seed=0).seed == 0


def test_finish_reasons_are_their_words() -> None:
    assert [str(reason) for reason in FinishReason] == ["stop", "length", "abort"]


@pytest.mark.parametrize(("prompt", "max_model_len"), [(0, 10), (10, 10)])
def test_a_prompt_that_is_empty_or_fills_the_context_is_a_programming_error(prompt: int, max_model_len: int) -> None:
    with pytest.raises(AssertionError, match=f"{prompt} prompt tokens in a context of {max_model_len}"):
        make(prompt, max_model_len)
