"""Tokenizers that lie in other files than tokenizer.json, against their twins that lie in it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
import transformers
from hypothesis import given
from hypothesis import strategies as st

from aethermind.errors import TokenizerError
from aethermind.text import Tokenizer


@pytest.fixture(scope="session")
def twins(
    make_fast: Callable[[str], tokenizers.Tokenizer], chatml: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """A Qwen2 tokenizer as tokenizer.json, and as vocab.json and merges.txt."""
    whole, parts = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("parts")
    model = json.loads(make_fast("byte_level").to_str())["model"]
    theirs = transformers.Qwen2Tokenizer(
        vocab=model["vocab"],
        merges=[tuple(merge) for merge in model["merges"]],
        eos_token="<|im_end|>",
        extra_special_tokens=["<|im_start|>"],
        chat_template=chatml,
    )
    theirs.save_pretrained(whole)
    (parts / "vocab.json").write_text(json.dumps(model["vocab"]))
    (parts / "merges.txt").write_text("\n".join(["#version: 0.2", *map(" ".join, model["merges"]), ""]))
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        (parts / name).write_bytes((whole / name).read_bytes())
    return whole, parts


@pytest.fixture(scope="session")
def pair(twins: tuple[Path, Path]) -> tuple[Tokenizer, Tokenizer]:
    whole, parts = twins
    return Tokenizer.from_directory(whole), Tokenizer.from_directory(parts)


def test_everything_but_the_text_is_the_same(pair: tuple[Tokenizer, Tokenizer]) -> None:
    theirs, ours = pair
    assert ours.vocab_size == theirs.vocab_size
    assert ours.special_tokens == theirs.special_tokens
    assert ours.special_token_ids == theirs.special_token_ids
    assert ours.eos_token_id == theirs.token_to_id("<|im_end|>")
    assert ours.chat_template == theirs.chat_template
    assert ours.is_byte_level


@given(text=st.text() | st.lists(st.sampled_from(["<|im_end|>", "<|im_start|>", " 12é", "e\u0301"])).map("".join))
def test_tokens_are_the_same(pair: tuple[Tokenizer, Tokenizer], text: str) -> None:
    theirs, ours = pair
    token_ids = theirs.encode(text)
    assert ours.encode(text) == token_ids
    assert ours.decode(token_ids) == theirs.decode(token_ids)


def test_special_tokens_that_only_the_class_names(twins: tuple[Path, Path], tmp_path: Path) -> None:
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).write_bytes((twins[1] / name).read_bytes())
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "Qwen2Tokenizer"}')
    assert Tokenizer.from_directory(tmp_path).special_tokens["eos_token"] == "<|endoftext|>"


def test_broken_files_are_one_sentence(twins: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_bytes((twins[1] / "tokenizer_config.json").read_bytes())
    (tmp_path / "vocab.json").write_text("{")
    with pytest.raises(TokenizerError, match=r"transformers cannot read vocab\.json.*tokenizer\.json there") as caught:
        Tokenizer.from_directory(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_tokenizer_in_python_only_is_refused(twins: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow:
        pass

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda *_, **__: Slow())
    with pytest.raises(TokenizerError, match=r"runs in Python only \(Slow\)"):
        Tokenizer.from_directory(twins[1])


def test_without_transformers_it_says_what_to_install(twins: tuple[Path, Path]) -> None:
    program = """
import sys
sys.modules["transformers"] = None
from aethermind.cli import main
main()
"""
    args = ("tokenize", "hi", "--model", str(twins[1]))
    result = subprocess.run([sys.executable, "-c", program, *args], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (2, "")
    assert len(result.stderr.splitlines()) == 1
    assert "aethermind-core[transformers]" in result.stderr
