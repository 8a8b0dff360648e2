"""Masks of many rows: the same by one thread or several."""

from __future__ import annotations

from pathlib import Path
from threading import get_ident
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from aethermind import Runtime
from aethermind.sampling import rows as sampling_rows
from aethermind.sampling.guidance import Grammars, TokenGuide
from aethermind.sampling.logits_constraints import LogitsConstraints, pack_mask
from aethermind.sampling.params import StructuredOutputs
from aethermind.sampling.rows import MaskRows
from aethermind.text import Tokenizer

VOCAB_SIZE = 2048
WIDTH = VOCAB_SIZE // 32
WANTED = [StructuredOutputs(regex="[a-z]{2,5}"), StructuredOutputs(choice=["yes", "no"])]


@pytest.fixture(scope="module")
def tokenizer(runtime: Runtime) -> Tokenizer:
    return Tokenizer.from_directory(Path(runtime.models.locate("demo")))


def requests_of(tokenizer: Tokenizer, num_lanes: int) -> list[Any]:
    """Two with each grammar, one of them a token further; one with a list of tokens as well, one without anything."""
    grammars = Grammars(tokenizer.as_json, VOCAB_SIZE, [2045], num_lanes=num_lanes)
    outputs = [[], tokenizer.encode("y"), [], tokenizer.encode("q")]
    found = []
    for wanted, output in zip([*WANTED, *WANTED], outputs, strict=True):
        constraints = LogitsConstraints(guide=grammars.guide(wanted))
        found.append(SimpleNamespace(constraints=constraints, output_token_ids=output))
    found[0].constraints.allowed = pack_mask([*tokenizer.encode("a"), 7], VOCAB_SIZE)
    return [*found, SimpleNamespace(constraints=None, output_token_ids=[])]


def test_several_threads_write_the_same_masks_as_one(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling_rows, "_WORTH_THREADS_S", 0.0)
    found, threads = [], set[int]()
    fill = TokenGuide.fill

    def watched(guide: TokenGuide, *args: Any) -> str | None:
        threads.add(get_ident())
        return fill(guide, *args)

    monkeypatch.setattr(TokenGuide, "fill", watched)
    for num_lanes in (1, 2):
        flat, requests = np.zeros(6 * WIDTH, np.int32), requests_of(tokenizer, num_lanes)
        rows = MaskRows(flat, 6)
        for _ in range(2):  # the first step shows what masks cost
            threads.clear()
            failures = rows.fill(requests)
        assert set(failures) == {3}
        assert len(threads) == num_lanes
        assert rows.allows(0, requests[0], tokenizer.encode("a")[0])
        assert not rows.allows(0, requests[0], 7)
        found.append(np.delete(flat.reshape(6, WIDTH), 3, axis=0))
    assert np.array_equal(*found)
    assert np.all(found[0][3] == -1)
    assert np.all(found[0][4] == 0)


def test_allowed_tokens_without_a_guide_are_checked_without_the_mask() -> None:
    """The mask may be that of a later step already."""
    rows = MaskRows(np.zeros(2 * WIDTH, np.int32), 2)
    request: Any = SimpleNamespace(
        constraints=LogitsConstraints(allowed=pack_mask([7, 40], VOCAB_SIZE)), output_token_ids=[]
    )
    free: Any = SimpleNamespace(constraints=None, output_token_ids=[])
    assert [rows.allows(0, request, token) for token in (7, 8, 40)] == [True, False, True]
    assert rows.allows(1, free, 8)


def test_fast_masks_are_written_by_one_thread(tokenizer: Tokenizer) -> None:
    rows = MaskRows(np.zeros(5 * WIDTH, np.int32), 5)
    rows.fill(requests_of(tokenizer, 2))
    assert "_mask_threads" not in vars(rows)


def test_guides_are_spread_over_lanes(tokenizer: Tokenizer) -> None:
    grammars = Grammars(tokenizer.as_json, VOCAB_SIZE, [2045], num_lanes=2)
    guides = [grammars.guide(WANTED[0]) for _ in range(4)]
    assert sorted(guide.lane for guide in guides) == [0, 0, 1, 1]
    assert guides[1].fork().lane == guides[1].lane
    del guides[0], guides[1]  # both of lane 0: the next guide takes the place of an ended one
    assert grammars.guide(WANTED[1]).lane == 0
