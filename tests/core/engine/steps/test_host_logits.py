"""NaN and infinity end a request with a sentence, whatever it asks for; they become no text and no vector."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.end_to_end.models import poisoned_demo

from aethermind import LLM, Runtime, SamplingParams
from aethermind.engine.steps.model_runner import nonfinite_rows
from aethermind.engine.text_pass import text_logits
from aethermind.errors import ComputationError


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return poisoned_demo(tmp_path_factory.mktemp("poisoned"))


def test_a_nonfinite_row_is_found_by_its_token() -> None:
    values = np.array([[1, np.nan], [np.inf, 0], [-np.inf, 2], [-np.inf, -np.inf], [np.nan, -np.inf], [0, 0], [9, 9]])
    assert nonfinite_rows(values, [0, 0, 1, 0, 1, 2]) == [1, 4, 5]
    assert nonfinite_rows(values, [1, 1]) == [0]


def _generate(**params: Any) -> Callable[[LLM], Any]:
    return lambda llm: llm.generate("Once upon a time", SamplingParams(max_tokens=3, **params))


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (_generate(temperature=0), "the model's logits are not finite: try dtype=.float32., or fetch"),
        (_generate(temperature=1, top_k=5, top_p=0.5), "cannot go on: the model's logits are not finite"),
        (_generate(n=2, repetition_penalty=1.2), "cannot go on: the model's logits are not finite"),
        (_generate(allowed_token_ids=[5, 6]), "cannot go on: the model's logits are not finite"),
        (_generate(logprobs=1), "cannot go on: the model's logits are not finite"),
        (_generate(prompt_logprobs=1), "prompt cannot be scored: the model's logits are not finite"),
        (lambda llm: text_logits(llm.engine, [1, 2, 3]), "the model's logits are not finite"),
        (lambda llm: llm.embed("A fox"), "The embedding is not finite"),
    ],
)
def test_nonfinite_results_are_an_error_of_each_kind_of_request(
    poisoned: Path, runtime: Runtime, device: str, ask: Callable[[LLM], Any], words: str
) -> None:
    with LLM(poisoned, device=device, dtype="float32", max_model_len=64, runtime=runtime) as llm:
        with pytest.raises(ComputationError, match=words):
            ask(llm)
        assert not llm.engine.has_unfinished


def test_log_probabilities_reveal_nonfinite_logits_on_the_device(poisoned: Path, runtime: Runtime) -> None:
    with (
        LLM(poisoned, device="sim", dtype="float32", max_model_len=64, runtime=runtime) as llm,
        pytest.raises(ComputationError, match="logits are not finite"),
    ):
        _generate(logprobs=0)(llm)
