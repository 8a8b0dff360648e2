"""Incremental penalty counts against a recount."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from aethermind.sampling.params import SamplingParams
from aethermind.sampling.rows import PenaltyState

token_ids = st.integers(0, 9)
parameters = st.builds(
    SamplingParams,
    repetition_penalty=st.sampled_from([1.0, 1.5]),
    presence_penalty=st.sampled_from([0.0, 0.3]),
    frequency_penalty=st.sampled_from([0.0, -0.7]),
    logit_bias=st.dictionaries(token_ids, st.sampled_from([-2.1, 1.3]), max_size=3),
)


def counted_anew(params: SamplingParams, prompt: list[int], output: list[int]) -> tuple[list[int], dict[int, float]]:
    seen = list(dict.fromkeys(prompt + output)) if params.repetition_penalty != 1.0 else []
    biases = dict(params.logit_bias)
    if params.presence_penalty or params.frequency_penalty:
        for token_id, count in Counter(output).items():
            penalty = params.presence_penalty + params.frequency_penalty * count
            biases[token_id] = biases.get(token_id, 0.0) - penalty
    return seen, biases


def held(penalties: PenaltyState) -> tuple[list[int], dict[int, float]]:
    return list(penalties.seen), dict(zip(penalties.biased, penalties.biases, strict=True))


@given(parameters, st.lists(token_ids), st.lists(st.lists(token_ids, max_size=3)), st.lists(token_ids, max_size=4))
def test_incremental_counts_equal_a_recount_to_the_last_bit(
    params: SamplingParams, prompt: list[int], pieces: list[list[int]], drafts: list[int]
) -> None:
    penalties, output = PenaltyState(params), list[int]()
    for piece in pieces:
        output += piece
        assert held(penalties.update(prompt + output, output)) == counted_anew(params, prompt, output)
        drafted = output + drafts
        assert held(penalties.fork().update(prompt + drafted, drafted)) == counted_anew(params, prompt, drafted)
        assert held(penalties) == counted_anew(params, prompt, output), "drafts are nothing to the request itself"


def test_each_token_is_read_once() -> None:
    class Read(list[int]):
        num_read = 0

        def __getitem__(self, index: Any) -> Any:
            found = super().__getitem__(index)
            self.num_read += len(found) if isinstance(found, list) else 1
            return found

        def __iter__(self) -> Any:
            raise AssertionError("all would be read again")

    all_token_ids, output = Read(range(50)), Read()
    penalties = PenaltyState(SamplingParams(repetition_penalty=1.2, presence_penalty=0.5))
    for token_id in range(100):
        for tokens in (all_token_ids, output):
            tokens.append(token_id)
        penalties.update(all_token_ids, output)
    assert (all_token_ids.num_read, output.num_read) == (150, 100)


def test_a_request_without_penalties_is_not_read() -> None:
    penalties = PenaltyState(SamplingParams(logit_bias={7: 1.5}))
    unread: Sequence[int] = [-1]
    penalties.update(unread, unread)
    assert (penalties.seen, penalties.biased, penalties.biases) == (array("i"), array("i", [7]), array("d", [1.5]))
