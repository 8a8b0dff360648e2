"""Suggestions: close names, and keys of other sections."""

from __future__ import annotations

import pytest

from aethermind.errors import did_you_mean

KNOWN = ["engine.block_size", "sampling.top_k", "sampling.top_p"]


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("engine.blocksize", "; did you mean engine.block_size?"),
        ("engine.top_k", "; did you mean sampling.top_k?"),
        ("zzz", "."),
        (3, "."),
    ],
)
def test_did_you_mean(name: object, end: str) -> None:
    assert did_you_mean(name, KNOWN) == end
