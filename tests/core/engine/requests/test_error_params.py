"""InvalidArgumentError names the parameter that is wrong."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from aethermind.engine.process.protocol import Unpacker, pack
from aethermind.engine.requests.request import RequestOptions
from aethermind.errors import ContextLengthError, InvalidArgumentError
from aethermind.sampling.params import SamplingParams


@pytest.mark.parametrize(
    ("kind", "arguments", "param"),
    [
        (SamplingParams, {"top_p": 2.0}, "top_p"),
        (SamplingParams, {"stop": [""]}, "stop"),
        (SamplingParams, {"logit_bias": {1: 999.0}}, "logit_bias"),
        (SamplingParams, {"min_tokens": 9, "max_tokens": 3}, "min_tokens"),
        (RequestOptions, {"deadline_ms": -1}, "deadline_ms"),
        (RequestOptions, {"session": 3}, "session"),
    ],
)
def test_an_invalid_value_is_named(kind: Any, arguments: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidArgumentError) as error:
        kind(**arguments)
    assert error.value.param == param


@pytest.mark.parametrize(
    "error", [InvalidArgumentError("n is 0.", param="n"), InvalidArgumentError("x"), ContextLengthError("Too long.")]
)
def test_an_error_from_another_process_names_the_parameter(error: InvalidArgumentError) -> None:
    (received,) = Unpacker().feed(pack(error))
    for copy in (received, pickle.loads(pickle.dumps(error))):
        assert (type(copy), str(copy), copy.param) == (type(error), str(error), error.param)
