"""Padded decode steps answer what unpadded ones do, and run in a few sizes only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from aethermind import LLM, SamplingParams
from aethermind.engine.steps.batch import DecodePadding
from aethermind.graph.executor import DeviceInput, PlanExecutor
from aethermind.hal.builtin_backends import NumpyBackend

PROMPTS = ["Once upon a time", "The", "A small dog and a large", "Hello", "One day in the"]
PARAMS = [
    SamplingParams(max_tokens=count, temperature=temperature, seed=count)
    for count, temperature in ((9, 0.0), (4, 1.0), (12, 0.7), (2, 0.0), (7, 1.0))
]


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The sizes of all steps that run."""
    seen: list[tuple[int, ...]] = []
    run = PlanExecutor.run

    def noting(self: PlanExecutor, symbols: tuple[int, ...], device_inputs: Sequence[DeviceInput] = ()) -> None:
        seen.append(symbols)
        run(self, symbols, device_inputs)

    monkeypatch.setattr(PlanExecutor, "run", noting)
    return seen


def answers() -> list[list[int]]:
    """What a batch of requests of several lengths is answered."""
    llm = LLM("demo", device="numpy", max_model_len=64, max_num_seqs=5)
    return [output.outputs[0].token_ids for output in llm.generate(PROMPTS, PARAMS)]


def test_padding_changes_no_answer(monkeypatch: pytest.MonkeyPatch, sizes: list[tuple[int, ...]]) -> None:
    expected = answers()
    unpadded = {symbols for symbols in sizes if symbols[0] == symbols[1]}
    sizes.clear()
    create = NumpyBackend.__init__

    def with_sizes(self: NumpyBackend) -> None:
        create(self)
        self.capabilities = replace(self.capabilities, batch_sizes=(2, 4, 8))

    monkeypatch.setattr(NumpyBackend, "__init__", with_sizes)
    assert answers() == expected
    padded = {symbols for symbols in sizes if symbols[0] == symbols[1]}
    assert {symbols[0] for symbols in padded} == {2, 4, 5}
    assert all(width & (width - 1) == 0 for _, _, _, width, *_ in padded)
    assert 1 in {symbols[0] for symbols in unpadded}


def test_rows_behind_the_last_are_empty_sequences() -> None:
    names = ("token_ids", "positions", "slot_mapping", "seqlens_k", "logits_rows", "block_tables", "cu_seqlens_q")
    rows = ("temperature", "top_k", "top_p", "min_p", "uniform")
    arrays = {name: np.full(32, 7) for name in (*names, *rows)}
    padding = DecodePadding(arrays, {"T": 64, "S": 6, "R": 6, "B": 12}, (1, 4, 8))
    assert [padding.rows(count) for count in (1, 2, 4, 5, 6)] == [1, 4, 4, 6, 6]
    assert [padding.width(count) for count in (1, 3, 4, 9, 12)] == [1, 4, 4, 12, 12]
    padding.write(2, 4, 3)
    assert arrays["slot_mapping"][:5].tolist() == [7, 7, -1, -1, 7]
    assert arrays["cu_seqlens_q"][:6].tolist() == [7, 7, 7, 2, 2, 7]
    assert arrays["seqlens_k"][:5].tolist() == [7, 7, 0, 0, 7]
    assert arrays["block_tables"][5:13].tolist() == [7, 0, 0, 0, 0, 0, 0, 7]
