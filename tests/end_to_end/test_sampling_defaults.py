"""A model's generation_config.json decides how it is sampled where the caller does not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.end_to_end.models import copy_demo

from aethermind import LLM, SamplingParams
from aethermind.errors import ConfigError


def load(open_demo: Callable[..., LLM], directory: Path, generation: Any) -> LLM:
    content = None if generation is None else json.dumps(generation).encode()
    return open_demo(model=copy_demo(directory, files={"generation_config.json": content}))


def test_sampling_defaults_of_the_demo_model(demo: LLM) -> None:
    assert demo.get_default_sampling_params() == SamplingParams(temperature=0.8, top_k=40, top_p=0.95)


def test_a_model_without_generation_config_has_no_defaults(open_demo: Callable[..., LLM], tmp_path: Path) -> None:
    with load(open_demo, tmp_path / "plain", None) as llm:
        assert llm.get_default_sampling_params() == SamplingParams()


def test_requests_without_parameters_take_them(open_demo: Callable[..., LLM], tmp_path: Path) -> None:
    with load(open_demo, tmp_path / "greedy", {"do_sample": False, "max_new_tokens": 9}) as llm:
        (wanted,) = llm.generate("Once upon a time", SamplingParams(temperature=0, max_tokens=9))
        (found,) = llm.generate("Once upon a time")
        *_, streamed = llm.stream("Once upon a time")
        (other,) = llm.generate("Once upon a time", SamplingParams(temperature=0, max_tokens=3))
    assert found.outputs[0].token_ids == wanted.outputs[0].token_ids == streamed.outputs[0].token_ids
    assert len(found.outputs[0].token_ids) == 9
    assert len(other.outputs[0].token_ids) == 3


def test_min_new_tokens_of_the_model_raises_the_default_max_tokens(
    open_demo: Callable[..., LLM], tmp_path: Path
) -> None:
    with load(open_demo, tmp_path / "long", {"do_sample": False, "min_new_tokens": 20}) as llm:
        (found,) = llm.generate("Once upon a time")
    assert len(found.outputs[0].token_ids) == 20


def test_a_bad_value_is_named_when_it_is_needed(open_demo: Callable[..., LLM], tmp_path: Path) -> None:
    with load(open_demo, tmp_path / "bad", {"top_p": 7}) as llm:
        assert llm.generate("Once", SamplingParams(max_tokens=1))[0].finished
        with pytest.raises(ConfigError, match=r"generation_config\.json.*top_p is 7"):
            llm.generate("Once")
