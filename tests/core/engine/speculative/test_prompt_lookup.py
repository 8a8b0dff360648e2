"""Looking up what followed: against a search from the definition."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aethermind.engine.speculative.prompt_lookup import NgramIndex, PromptLookup

TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=40)


def search(tokens: list[int], longest: int, shortest: int, most: int) -> list[int]:
    """The continuation by its definition, one token after another."""
    for length in range(longest, shortest - 1, -1):
        for end in range(len(tokens) - 1, length - 1, -1):
            if tokens[end - length : end] == tokens[len(tokens) - length :]:
                text = list(tokens)
                for position in range(end, end + most):
                    text.append(text[position])
                return text[len(tokens) :]
    return []


@given(TOKENS, st.lists(TOKENS, max_size=4), st.integers(1, 4), st.integers(0, 3), st.integers(1, 9))
def test_a_growing_text_is_searched_correctly(
    tokens: list[int], pieces: list[list[int]], shortest: int, more: int, most: int
) -> None:
    index = NgramIndex(shortest + more, shortest)
    for piece in [[], *pieces]:
        tokens = tokens + piece
        assert index.continuation(tokens, most) == search(tokens, shortest + more, shortest, most)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([1, 2, 3, 4, 9, 1, 2, 3], [4, 9, 1, 2, 3]),
        ([1, 2, 7, 5, 1, 2, 8, 5, 1, 2], [8, 5, 1, 2, 8]),
        ([5, 1, 2, 7, 6, 1, 2, 8, 5, 1, 2], [7, 6, 1, 2, 8]),
        ([3, 3, 3], [3, 3, 3, 3, 3]),
        ([1, 2, 3], []),
    ],
    ids=["match", "latest", "longest_before_latest", "goes_on_with_itself", "nothing"],
)
def test_the_longest_and_latest_occurrence_is_used(tokens: list[int], expected: list[int]) -> None:
    assert NgramIndex(3, 2).continuation(tokens, 5) == expected


def test_each_request_looks_in_its_own_text() -> None:
    compiled: Any = SimpleNamespace(config=SimpleNamespace(prompt_lookup_max=3, prompt_lookup_min=1))
    proposer = PromptLookup(compiled)
    texts = {"a": [1, 2, 1], "b": [1, 5, 1]}
    requests = cast(Any, [SimpleNamespace(request_id=name, all_token_ids=text) for name, text in texts.items()])
    assert proposer.propose(requests, [1, 3]) == [[2], [5, 1, 5]]
    proposer.forget("a")
    assert proposer.propose(requests[:1], [2]) == [[2, 1]]
