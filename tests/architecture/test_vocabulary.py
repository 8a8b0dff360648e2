"""Sources and docs speak the field's language: private words and retired identifiers do not come back."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.architecture.vocabulary import (
    PRIVATE_WORDS,
    RETIRED_IDENTIFIERS,
    count,
    files_of_tree,
    scope_of,
)

ALLOWED: dict[str, dict[str, int]] = {
    "sources": {
        "room": 1,  # an error code of the HTTP API
        "stretch": 1,  # a keyword of CSS
        "giver": 3,  # a deprecated alias until 0.3
        "turn_keys": 2,  # a deprecated alias until 0.3
        "is_ours": 1,  # a deprecated key of JSON
        "by_use": 1,  # an index in databases on disk
        "floor": 2,  # time_step_floor, a field of config.json of two families
    },
    "docs": {"floor": 2},
}
"""By scope, how often a word may still occur; a count only ever shrinks."""


@pytest.fixture(scope="module")
def counts() -> dict[str, Counter[str]]:
    return count(files_of_tree())


@pytest.mark.parametrize("scope", ["sources", "docs"])
def test_private_words_and_retired_identifiers_do_not_occur(scope: str, counts: dict[str, Counter[str]]) -> None:
    allowed = ALLOWED.get(scope, {})
    words = (*PRIVATE_WORDS, *RETIRED_IDENTIFIERS)
    found = {word: counts[scope][word] for word in words if counts[scope][word] > allowed.get(word, 0)}
    assert found == {}, "see CONTRIBUTING.md: names and prose use the field's terms"


def test_words_are_found_in_prose_and_in_identifiers() -> None:
    text = "def has_news(self): # nobody stays\nclass AnswerRoom: x = math.floor(1) + a.floor_divide(b)\n"
    found = count([("aethermind-core/src/aethermind/x.py", text)])["sources"]
    assert {word: found[word] for word in found if word in PRIVATE_WORDS} == {
        "news": 1,
        "nobody": 1,
        "stay": 1,
        "room": 1,
    }
    assert found["AnswerRoom"] == 1


@pytest.mark.parametrize(
    ("path", "scope"),
    [
        ("aethermind-cpu/csrc/kernels/gemm.h", "sources"),
        ("examples/aethermind-arena/src/aethermind_arena/plugin.py", "sources"),
        ("examples/aethermind-arena/tests/test_arena.py", "tests"),
        ("docs/architecture.md", "docs"),
        ("README.md", "docs"),
        ("aethermind-core/src/aethermind/server/web/licenses.md", None),
        ("aethermind-core/webui/node_modules/x/readme.md", None),
    ],
)
def test_the_scope_of_a_file(path: str, scope: str | None) -> None:
    assert scope_of(path) == scope
