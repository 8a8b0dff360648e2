"""SamplingParams: what is accepted, in which form it is kept, and the sentence for each value that is not."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, cast

import numpy as np
import pytest

from aethermind.errors import InvalidArgumentError
from aethermind.sampling.params import (
    MAX_BAD_WORDS,
    MAX_LOGIT_BIAS,
    MAX_N,
    MAX_STOP_STRINGS,
    SamplingParams,
    StructuredOutputs,
)


def test_defaults_leave_the_distribution_alone() -> None:
    params = SamplingParams()
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (1.0, 0, 1.0, 0.0)
    assert (params.repetition_penalty, params.seed, params.max_tokens, params.min_tokens) == (
        1.0,
        None,
        16,
        0,
    )
    assert (params.stop, params.stop_token_ids, params.ignore_eos, params.logprobs) == ((), (), False, None)
    assert not params.is_greedy


def test_equivalent_values_are_stored_in_one_form() -> None:
    assert SamplingParams(stop="\n") == SamplingParams(stop=["\n"]) == SamplingParams(stop=("\n",))
    assert SamplingParams(stop_token_ids=[7, 8]).stop_token_ids == (7, 8)
    assert SamplingParams(top_k=-1) == SamplingParams(top_k=0)
    assert isinstance(SamplingParams(temperature=0).temperature, float)
    assert type(SamplingParams(top_k=cast(int, np.int64(5))).top_k) is int
    assert type(SamplingParams(temperature=cast(float, np.float32(0.5))).temperature) is float


def test_it_is_a_value() -> None:
    params = SamplingParams(seed=3, stop="x")
    assert hash(params) == hash(SamplingParams(seed=3, stop="x"))
    assert dataclasses.replace(params, max_tokens=None).max_tokens is None
    assert dataclasses.replace(params, max_tokens=-1).max_tokens is None
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.seed = 4  # type: ignore[misc]


@pytest.mark.parametrize(
    ("params", "is_greedy"),
    [({"temperature": 0}, True), ({"top_k": 1}, True), ({"temperature": 0.1, "top_k": 2}, False)],
)
def test_greedy_needs_no_random_number(params: dict[str, Any], is_greedy: bool) -> None:
    assert SamplingParams(**params).is_greedy is is_greedy


@pytest.mark.parametrize(
    "params",
    [
        {"top_p": 1},
        {"top_p": 1e-9},
        {"min_p": 1},
        {"temperature": 1e9},
        {"repetition_penalty": 1e-9},
        {"seed": 2**64 - 1},
        {"seed": 0},
        {"max_tokens": None, "min_tokens": 10**6},
        {"max_tokens": 3, "min_tokens": 3},
        {"logprobs": 0},
        {"logprobs": 20},
        {"prompt_logprobs": 0},
        {"n": MAX_N},
        {"presence_penalty": -2.0},
        {"frequency_penalty": 2.0},
        {"bad_words": ["no"] * MAX_BAD_WORDS},
        {"allowed_token_ids": [0]},
        {"logits_processors": ["one", "two"]},
        {"structured_outputs": StructuredOutputs(choice=["yes"])},
        {"stop": ["a"] * MAX_STOP_STRINGS},
        {"repetition_penalty": 0.5},
    ],
)
def test_limits_are_inclusive(params: dict[str, Any]) -> None:
    kept = SamplingParams(**params)
    name, value = next(iter(params.items()))
    assert getattr(kept, name) == (tuple(value) if isinstance(value, list) else value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", 10**400),
        ("temperature", 1e308),
        ("temperature", "1"),
        ("temperature", True),
        ("temperature", None),
        ("top_k", -2),
        ("top_k", 1.5),
        ("top_k", True),
        ("top_p", 2),
        ("top_p", 0),
        ("top_p", -0.1),
        ("top_p", math.nan),
        ("min_p", 1.1),
        ("min_p", -0.1),
        ("repetition_penalty", 0),
        ("repetition_penalty", math.inf),
        ("repetition_penalty", 1e308),
        ("repetition_penalty", 1e-320),
        ("n", 0),
        ("n", MAX_N + 1),
        ("n", None),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("frequency_penalty", math.nan),
        ("bad_words", [""]),
        ("bad_words", 3),
        ("allowed_token_ids", [-1]),
        ("allowed_token_ids", "1"),
        ("structured_outputs", {"regex": "a"}),
        ("logits_processors", [print]),
        ("prompt_logprobs", -1),
        ("prompt_logprobs", 21),
        ("seed", -1),
        ("seed", 2**64),
        ("seed", 1.0),
        ("max_tokens", 0),
        ("max_tokens", -5),
        ("max_tokens", -1.0),
        ("max_tokens", True),
        ("min_tokens", -1),
        ("min_tokens", None),
        ("stop", ""),
        ("stop", 5),
        ("stop", {"a"}),
        ("stop", [3]),
        ("stop", ["ok", ""]),
        ("stop_token_ids", 5),
        ("stop_token_ids", "ab"),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", [True]),
        ("stop_token_ids", [2**31]),
        ("ignore_eos", 1),
        ("logprobs", 21),
        ("logprobs", -1),
        ("logprobs", True),
    ],
)
def test_each_bad_value_is_one_sentence(name: str, value: Any) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        SamplingParams(**{name: value})
    message = str(caught.value)
    offender = next((item for item in value if item != "ok"), value) if isinstance(value, list) else value
    assert message.startswith(f"{name} is {offender!r:.80} but must be ")
    assert "; " in message
    assert message.endswith(".")
    assert "\n" not in message


@pytest.mark.parametrize(
    "params",
    [
        {"logit_bias": [1]},
        {"logit_bias": {"1": 2}},
        {"logit_bias": {-1: 2}},
        {"logit_bias": {1: 100.5}},
        {"logit_bias": {1: None}},
        {"logit_bias": dict.fromkeys(range(MAX_LOGIT_BIAS + 1), 1)},
        {"bad_words": ["no"] * (MAX_BAD_WORDS + 1)},
        {"allowed_token_ids": []},
        {"extra_args": [1]},
        {"ignore_eos": True, "structured_outputs": StructuredOutputs(regex="a")},
        {"min_tokens": 1, "structured_outputs": StructuredOutputs(regex="a")},
    ],
    ids=str,
)
def test_bad_collections_and_combinations_are_one_sentence(params: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        SamplingParams(**params)
    message = str(caught.value)
    assert message.startswith(next(iter(params)))
    assert message.endswith(".")
    assert "\n" not in message


def test_too_many_stop_strings_says_how_many() -> None:
    with pytest.raises(InvalidArgumentError, match=r"stop has 17 strings but must have at most 16"):
        SamplingParams(stop=["a"] * (MAX_STOP_STRINGS + 1))


def test_min_tokens_above_max_tokens_names_both() -> None:
    with pytest.raises(InvalidArgumentError, match=r"min_tokens is 5 but max_tokens is 4"):
        SamplingParams(min_tokens=5, max_tokens=4)
