"""Parameters of requests become rows in arrays that are written again every step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aethermind.sampling.logits_constraints import LogitsConstraints
from aethermind.sampling.params import SamplingParams
from aethermind.sampling.rows import PenaltyState, SamplingRows, needs_adjusted_logits, uniform

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
    constraints: LogitsConstraints | None = None

    @property
    def all_token_ids(self) -> list[int]:
        return self.prompt_token_ids + self.output_token_ids

    @property
    def penalties(self) -> PenaltyState:
        return PenaltyState(self.params).update(self.all_token_ids, self.output_token_ids)


token_ids = st.integers(0, VOCAB_SIZE - 1)
token_lists = st.lists(token_ids, max_size=8)
requests = st.builds(
    Sampled,
    st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.0, 0.5, 1.0]),
        top_k=st.integers(0, 5),
        top_p=st.sampled_from([0.5, 1.0]),
        min_p=st.sampled_from([0.0, 0.25]),
        repetition_penalty=st.sampled_from([1.0, 1.5]),
        presence_penalty=st.sampled_from([0.0, 0.5]),
        frequency_penalty=st.sampled_from([0.0, -0.25]),
        logit_bias=st.dictionaries(st.integers(0, VOCAB_SIZE - 1), st.sampled_from([-2.0, 1.5]), max_size=3),
        min_tokens=st.integers(0, 4),
    ),
    seed=st.integers(0, 2**64 - 1),
    prompt_token_ids=token_lists,
    output_token_ids=token_lists,
    stop_token_ids=st.frozensets(st.integers(0, VOCAB_SIZE - 1), max_size=3),
    constraints=st.none()
    | st.builds(LogitsConstraints, st.lists(st.tuples(token_ids) | st.tuples(token_ids, token_ids))),
)


def arrays() -> dict[str, Any]:
    """What an executor offers, full of what an earlier step left there."""
    floats = ("temperature", "top_p", "min_p", "uniform", "penalty")
    found: dict[str, Any] = {name: np.full(MAX_ROWS, np.nan, np.float32) for name in floats}
    found["top_k"] = np.full(MAX_ROWS, -9, np.int32)
    found["bias"] = np.full(MAX_ROWS * VOCAB_SIZE, np.nan, np.float32)
    for name in ("seen", "held_back", "biased"):
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
    sizes = rows.fill_adjustments(batch)
    seen, held_back, biased = (ragged(given, name, len(batch)) for name in ("seen", "held_back", "biased"))
    assert sizes == tuple(sum(map(len, sets)) for sets in (seen, held_back, biased))
    for row, request in enumerate(batch):
        params, output = request.params, request.output_token_ids
        is_early = len(output) < params.min_tokens
        assert seen[row] == (set(request.all_token_ids) if params.repetition_penalty != 1.0 else set())
        words = request.constraints.bad_words if request.constraints else ()
        banned = {word[-1] for word in words if len(word) == 1 or tuple(output[-1:]) == word[:-1]}
        assert held_back[row] == banned | (request.stop_token_ids if is_early else set())
        start, end = given["cu_biased"][row : row + 2]
        biases = dict(zip(given["biased_tokens"][start:end].tolist(), given["bias"][start:end].tolist(), strict=True))
        for token_id in range(VOCAB_SIZE):
            count = output.count(token_id)
            spent = params.presence_penalty * (count > 0) + params.frequency_penalty * count
            assert biases.get(token_id, 0.0) == dict(params.logit_bias).get(token_id, 0.0) - spent
        if seen[row] or is_early or biases:
            assert needs_adjusted_logits(request)


@pytest.mark.parametrize(
    ("params", "is_needed"),
    [
        (SamplingParams(), False),
        (SamplingParams(temperature=0.0, top_k=3, top_p=0.5, min_p=0.1), False),
        (SamplingParams(repetition_penalty=1.1), True),
        (SamplingParams(logprobs=0), True),
        (SamplingParams(min_tokens=1), True),
        (SamplingParams(presence_penalty=0.5), True),
        (SamplingParams(frequency_penalty=0.5), True),
        (SamplingParams(logit_bias={1: 2}), True),
        (SamplingParams(bad_words=["no"]), True),
        (SamplingParams(allowed_token_ids=[1]), False),
    ],
)
def test_logits_are_adjusted_only_for_parameters_that_need_it(params: SamplingParams, is_needed: bool) -> None:
    assert needs_adjusted_logits(Sampled(params)) is is_needed


def test_a_top_k_above_int32_is_clamped() -> None:
    given = arrays()
    SamplingRows(given).fill([Sampled(SamplingParams(top_k=2**40))])
    assert given["top_k"][0] == 2**31 - 1
