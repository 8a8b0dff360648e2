"""generation_config.json as sampling parameters: what is taken, what is left, what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import transformers

from aethermind.errors import ConfigError, InvalidArgumentError
from aethermind.sampling import SamplingParams
from aethermind.sampling.params import read_sampling_defaults, with_defaults

GIVEN = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.05, "repetition_penalty": 1.1}


def test_every_field_under_its_name() -> None:
    contents = {**GIVEN, "do_sample": True, "max_new_tokens": 99, "min_new_tokens": 30, "stop_strings": ["END"]}
    defaults = read_sampling_defaults(contents)
    assert defaults == {**GIVEN, "max_tokens": 99, "min_tokens": 30, "stop": ["END"]}
    assert SamplingParams(**defaults).max_tokens == 99


@pytest.mark.parametrize(
    "contents",
    [{}, dict.fromkeys((*GIVEN, "max_new_tokens", "do_sample")), {"eos_token_id": 3, "num_beams": 4, "max_length": 20}],
)
def test_what_is_absent_null_or_of_another_kind_gives_nothing(contents: dict[str, Any]) -> None:
    assert read_sampling_defaults(contents) == {}


def test_without_sampling_the_temperature_is_0() -> None:
    assert read_sampling_defaults({**GIVEN, "do_sample": False}) == {**GIVEN, "temperature": 0.0}
    assert SamplingParams(**read_sampling_defaults({"do_sample": False})).is_greedy


def test_what_transformers_writes_is_read() -> None:
    written = transformers.GenerationConfig(do_sample=True, max_new_tokens=7, **GIVEN).to_dict()
    assert read_sampling_defaults(written) == {**GIVEN, "max_tokens": 7}


@pytest.mark.parametrize(
    ("contents", "says"),
    [
        ({"temperature": -0.1}, r"temperature is -0\.1"),
        ({"temperature": "hot"}, "temperature is 'hot'"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_k": 2.5}, r"top_k is 2\.5"),
        ({"top_p": 0}, "top_p is 0"),
        ({"min_p": 2}, "min_p is 2"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0"),
        ({"max_new_tokens": 0}, r"\(max_new_tokens is max_tokens here\): max_tokens is 0"),
        ({"min_new_tokens": -1}, r"\(min_new_tokens is min_tokens here\): min_tokens is -1"),
        ({"stop_strings": [1]}, r"\(stop_strings is stop here\): stop is 1 but"),
        ({"do_sample": "no"}, "do_sample is 'no'"),
        ({"do_sample": False, "temperature": []}, r"temperature is \[\]"),
    ],
)
def test_bad_values_are_one_sentence(contents: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        read_sampling_defaults(contents)
    assert "generation_config.json" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("defaults", "own", "wanted"),
    [
        ({"max_tokens": 5}, {"max_tokens": 9}, {"max_tokens": 9}),
        ({"max_tokens": 5}, {"max_tokens": None, "top_k": None}, {"max_tokens": 5}),
        ({"max_tokens": 5}, {"min_tokens": 8}, {"max_tokens": 8, "min_tokens": 8}),
        ({"min_tokens": 5}, {"max_tokens": 3}, {"max_tokens": 3, "min_tokens": 3}),
        ({"min_tokens": 5}, {"max_tokens": -1}, {"max_tokens": -1, "min_tokens": 5}),
        ({"min_tokens": 5, "max_tokens": 3}, {}, {"max_tokens": 5, "min_tokens": 5}),
        ({"min_tokens": 5}, {"structured_outputs": "x"}, {"structured_outputs": "x"}),
        ({"temperature": 0.0}, {"temperature": 0.7}, {"temperature": 0.7}),
    ],
)
def test_arguments_of_a_request_override_defaults(
    defaults: dict[str, Any], own: dict[str, Any], wanted: dict[str, Any]
) -> None:
    assert with_defaults(defaults, own) == wanted


def test_a_request_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="min_tokens must be at most max_tokens"):
        SamplingParams(**with_defaults({"max_tokens": 50}, {"min_tokens": 8, "max_tokens": 4}))
