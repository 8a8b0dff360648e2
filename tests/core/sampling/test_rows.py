"""Parameters of requests become rows in arrays that are written again every step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aethermind.sampling.params import SamplingParams
from aethermind.sampling.random import uniform
from aethermind.sampling.rows import SamplingRows, needs_adjusted_logits

MAX_ROWS = 6
VOCAB_SIZE = 10


@dataclass
class Sampled:
    """The part of a request that sampling reads."""

    params: SamplingParams
    seed: int = 0
    prompt_token_ids: list[int] = field(default_factory=list)
    output_token_ids: list[int] = field(default_factory=list)
    stop_token_ids: frozenset[int] = frozenset()

    @property
    def all_token_ids(self) -> list[int]:
        return self.prompt_token_ids + self.output_token_ids


token_lists = st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=8)
requests = st.builds(
    Sampled,
    st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.0, 0.5, 1.0]),
        top_k=st.integers(0, 5),
        top_p=st.sampled_from([0.5, 1.0]),
        min_p=st.sampled_from([0.0, 0.25]),
        repetition_penalty=st.sampled_from([1.0, 1.5]),
        min_tokens=st.integers(0, 4),
    ),
    seed=st.integers(0, 2**64 - 1),
    prompt_token_ids=token_lists,
    output_token_ids=token_lists,
    stop_token_ids=st.frozensets(st.integers(0, VOCAB_SIZE - 1), max_size=3),
)


def arrays() -> dict[str, Any]:
    """What an executor offers, full of what an earlier step left there."""
    floats = ("temperature", "top_p", "min_p", "uniform", "penalty")
    found: dict[str, Any] = {name: np.full(MAX_ROWS, np.nan, np.float32) for name in floats}
    found["top_k"] = np.full(MAX_ROWS, -9, np.int32)
    for name in ("seen", "held_back"):
        found[f"{name}_tokens"] = np.full(MAX_ROWS * VOCAB_SIZE, -9, np.int32)
        found[f"cu_{name}"] = np.full(MAX_ROWS + 1, -9, np.int32)
    return found


def ragged(given: dict[str, Any], name: str, count: int) -> list[set[int]]:
    starts = given[f"cu_{name}"]
    lists = [given[f"{name}_tokens"][starts[row] : starts[row + 1]].tolist() for row in range(count)]
    assert all(len(tokens) == len(set(tokens)) for tokens in lists), "a token is named twice"
    return [set(tokens) for tokens in lists]


@given(st.lists(requests, max_size=MAX_ROWS))
def test_every_row_holds_its_own_request(batch: list[Sampled]) -> None:
    given = arrays()
    rows = SamplingRows(given)
    rows.fill(batch)
    for row, request in enumerate(batch):
        params = request.params
        for name in ("temperature", "top_k", "top_p", "min_p"):
            assert given[name][row] == np.float32(getattr(params, name))
        number = uniform(request.seed, len(request.output_token_ids)) if params.temperature else 0.0
        assert given["uniform"][row] == np.float32(number)
    num_seen, num_held_back = rows.fill_adjustments(batch)
    seen, held_back = ragged(given, "seen", len(batch)), ragged(given, "held_back", len(batch))
    assert (num_seen, num_held_back) == (sum(map(len, seen)), sum(map(len, held_back)))
    for request, *found in zip(batch, seen, held_back, strict=True):
        is_penalised = request.params.repetition_penalty != 1.0
        is_early = len(request.output_token_ids) < request.params.min_tokens
        assert found == [
            set(request.all_token_ids) if is_penalised else set(),
            request.stop_token_ids if is_early else set(),
        ]
        if is_penalised or is_early:
            assert needs_adjusted_logits(request)


@pytest.mark.parametrize(
    ("params", "is_needed"),
    [
        (SamplingParams(), False),
        (SamplingParams(temperature=0.0, top_k=3, top_p=0.5, min_p=0.1), False),
        (SamplingParams(repetition_penalty=1.1), True),
        (SamplingParams(logprobs=0), True),
        (SamplingParams(min_tokens=1), True),
    ],
)
def test_only_what_the_plain_sampler_cannot_do_is_adjusted(params: SamplingParams, is_needed: bool) -> None:
    assert needs_adjusted_logits(Sampled(params)) is is_needed


def test_more_than_any_vocabulary_is_as_much_as_fits() -> None:
    given = arrays()
    SamplingRows(given).fill([Sampled(SamplingParams(top_k=2**40))])
    assert given["top_k"][0] == 2**31 - 1
