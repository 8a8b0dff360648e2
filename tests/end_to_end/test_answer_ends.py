"""An answer ends with the ends of config.json, generation_config.json and the tokenizer together."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.end_to_end.gguf_files import write_gguf
from tests.end_to_end.models import DEMO, copy_demo

from aethermind import LLM, SamplingParams, StructuredOutputs

END_OF_TEXT, TURN, END_OF_TURN = 2045, 2046, 2047
TOKENIZER = json.loads((DEMO / "tokenizer_config.json").read_text())


def variant(directory: Path, config: Any = None, generation: Any = None, tokenizer: Any = None) -> Path:
    """The demo model with ends in these files only; `tokenizer` are fields of its configuration."""
    files: dict[str, bytes | None] = {
        "generation_config.json": json.dumps({} if generation is None else {"eos_token_id": generation}).encode(),
        "tokenizer_config.json": json.dumps({**TOKENIZER, "eos_token": None, **(tokenizer or {})}).encode(),
    }
    return copy_demo(directory, {"eos_token_id": config}, files)


@pytest.mark.parametrize(
    ("files", "ends"),
    [
        ({"tokenizer": {"eos_token": "<|im_end|>"}}, {END_OF_TURN}),
        ({"config": END_OF_TEXT, "tokenizer": {"eos_token": "<|im_end|>"}}, {END_OF_TEXT, END_OF_TURN}),
        ({"config": 3, "generation": [END_OF_TEXT], "tokenizer": {"eos_token": "<|im_end|>"}}, {3, 2045, 2047}),
        ({"config": END_OF_TEXT, "tokenizer": {"eos_token": {"content": "<|im_end|>"}}}, {END_OF_TEXT, END_OF_TURN}),
        ({"config": END_OF_TEXT, "tokenizer": {"eot_token": "<|im_end|>"}}, {END_OF_TEXT, END_OF_TURN}),
        ({"config": [END_OF_TEXT, END_OF_TURN], "tokenizer": {"eos_token": "<|im_end|>"}}, {END_OF_TEXT, END_OF_TURN}),
        ({"generation": END_OF_TURN}, {END_OF_TURN}),
        ({}, set()),
    ],
)
def test_eos_tokens_of_all_files_end_an_answer(
    open_demo: Callable[..., LLM], tmp_path: Path, files: Any, ends: set[int]
) -> None:
    with open_demo(model=variant(tmp_path / "m", **files)) as llm:
        assert llm.engine.compiled.eos_token_ids == ends
        for token_id in ends:
            (found,) = llm.generate("Once", SamplingParams(max_tokens=9, allowed_token_ids=[token_id]))
            completion = found.outputs[0]
            assert (completion.finish_reason, completion.stop_reason, len(completion.token_ids)) == ("stop", None, 1)
            (going_on,) = llm.generate(
                "Once", SamplingParams(max_tokens=9, allowed_token_ids=[token_id], ignore_eos=True)
            )
            assert len(going_on.outputs[0].token_ids) == 9


def test_structured_output_ends_with_the_tokenizer_s_eos_token(open_demo: Callable[..., LLM], tmp_path: Path) -> None:
    model = variant(tmp_path / "m", tokenizer={"eos_token": "<|im_end|>"})
    wanted = SamplingParams(max_tokens=9, structured_outputs=StructuredOutputs(choice=["yes"]))
    with open_demo(model=model) as llm:
        (found,) = llm.generate("Once", wanted)
    assert found.outputs[0].text == "yes"
    assert found.outputs[0].token_ids[-1] == END_OF_TURN


def test_min_tokens_suppresses_the_tokenizer_s_eos_token(open_demo: Callable[..., LLM], tmp_path: Path) -> None:
    model = variant(tmp_path / "m", config=END_OF_TEXT, tokenizer={"eos_token": "<|im_start|>"})
    bias = {TURN: 100.0}
    with open_demo(model=model) as llm:
        short, long = llm.generate(
            ["Once"] * 2,
            [SamplingParams(temperature=0.0, max_tokens=9, logit_bias=bias, min_tokens=least) for least in (0, 5)],
        )
    assert short.outputs[0].token_ids == [TURN]
    assert TURN not in long.outputs[0].token_ids[:4]


def test_another_tokenizer_brings_its_eos_token(open_demo: Callable[..., LLM], tmp_path: Path) -> None:
    model = copy_demo(tmp_path / "m", {"eos_token_id": None}, {"generation_config.json": b"{}"})
    other = variant(tmp_path / "t", tokenizer={"eos_token": "<|im_start|>"})
    with open_demo(model=model, tokenizer=other) as llm:
        assert llm.engine.compiled.eos_token_ids == {TURN}
    with open_demo(model=write_gguf(model, tmp_path / "m.gguf"), tokenizer=other) as llm:
        assert llm.engine.compiled.eos_token_ids == {END_OF_TEXT, TURN, END_OF_TURN}  # two by the file's vocabulary
