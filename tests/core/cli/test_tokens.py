"""tokenize and detokenize: equal to the tokenizers library, and errors of invalid ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tests.end_to_end.gguf_files import write_gguf
from tests.end_to_end.models import DEMO

import aethermind_qwen2
from aethermind.cli.tokens import parse_token_ids
from aethermind.errors import InvalidArgumentError

TEXTS = ("Once upon a time", "Grüße 😀\n\ttabs", "<|im_start|>user\nhi<|im_end|>", " ")


@pytest.fixture(scope="module")
def reference() -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(Path(aethermind_qwen2.__file__).parent / "demo" / "tokenizer.json"))


@pytest.mark.parametrize("text", TEXTS)
def test_json_matches_the_tokenizers_library(invoke: Any, reference: tokenizers.Tokenizer, text: str) -> None:
    record = json.loads(invoke("tokenize", text, "--json").stdout)
    wanted = reference.encode(text, add_special_tokens=False)
    assert record == {"text": text, "token_ids": wanted.ids, "tokens": wanted.tokens}


@pytest.mark.parametrize("text", TEXTS)
def test_detokenize_inverts_tokenize(invoke: Any, text: str) -> None:
    tokenized = invoke("tokenize", text, "--json").stdout
    assert invoke("detokenize", "-", input=tokenized).stdout == text + "\n"
    ids = json.loads(tokenized)["token_ids"]
    assert invoke("detokenize", *map(str, ids)).stdout == text + "\n"
    assert json.loads(invoke("detokenize", "-", "--json", input=json.dumps(ids)).stdout) == {
        "text": text,
        "token_ids": ids,
    }


def test_the_tokenizer_of_a_gguf_file(invoke: Any, tmp_path: Path) -> None:
    model = ("--model", str(write_gguf(DEMO, tmp_path / "demo.gguf")))
    wanted = json.loads(invoke("tokenize", "Once <|im_end|>", "--json").stdout)
    assert json.loads(invoke("tokenize", "Once <|im_end|>", "--json", *model).stdout) == wanted
    explained = json.loads(invoke("explain", "--json", "--device", "numpy", *model).stdout)
    assert explained["architecture"] == "Qwen2ForCausalLM"


def test_a_tokenizer_needs_no_model(invoke: Any, tmp_path: Path) -> None:
    """Not even one that it would fit: it may have more tokens than the demo model."""
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"w{i}": i for i in range(9000)}, "w0"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "tokenizer.json"))
    for place in (tmp_path, tmp_path / "tokenizer.json"):
        result = invoke("tokenize", "w7 w8765", "--tokenizer", str(place), "--json")
        assert json.loads(result.stdout)["token_ids"] == [7, 8765]
    assert invoke("detokenize", "8765", "--tokenizer", str(tmp_path)).stdout == "w8765\n"


def test_a_line_for_each_token(invoke: Any, reference: tokenizers.Tokenizer) -> None:
    result = invoke("tokenize", "Once upon 😀")
    assert result.exit_code == 0
    ids = reference.encode("Once upon 😀").ids
    lines = [line.split(maxsplit=1) for line in result.stdout.splitlines()]
    assert [int(token_id) for token_id, _ in lines] == ids
    assert lines[0][1] == "'Once'"
    assert b"".join(eval(shown) for _, shown in lines if shown.startswith("b")) == "😀".encode()
    assert result.stderr == f"{len(ids)} tokens\n"


def test_texts_come_from_stdin_and_files(invoke: Any, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("Once upon\n")
    given = [
        invoke("tokenize", "Once upon", "--json"),
        invoke("tokenize", "-", "--json", input="Once upon\n"),
        invoke("tokenize", "--file", str(tmp_path / "text.txt"), "--json"),
    ]
    assert len({result.stdout for result in given}) == 1


def test_an_empty_text_has_no_tokens(invoke: Any) -> None:
    result = invoke("tokenize", "")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "0 tokens\n")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("tokenize",), ["no text", "--file"]),
        (("tokenize", "a", "--file", "b"), ["two texts"]),
        (("tokenize", "--file", "missing.txt"), ["missing.txt", "No such file"]),
        (("tokenize", "a", "--model", "nothing-like-it"), ["nothing-like-it", "demo"]),
        (("tokenize", "a", "--model", "/nowhere"), ["/nowhere", "does not exist"]),
        (("tokenize", "a", "--model", ""), ["--model is empty"]),
        (("detokenize",), ["no token ids"]),
        (("detokenize", "12", "x"), ["'x'", "not a token id"]),
        (("detokenize", "12", "2.5"), ["'2.5'"]),
        (("detokenize", "[1, -2]"), ["-2", "not a token id"]),
        (("detokenize", "99999"), ["99999", "vocabulary of 2048", "--model"]),
        (("detokenize", "9" * 30), ["not in the vocabulary"]),
    ],
)
def test_bad_input_is_one_sentence(invoke: Any, args: tuple[str, ...], words: list[str]) -> None:
    result = invoke(*args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("Error: ")
    assert len(result.stderr.splitlines()) == 1
    for word in words:
        assert word in result.stderr


@pytest.mark.parametrize("text", ["1 2 3", "1,2,3", " 1, 2\n3 ", "[1, 2, 3]", '{"token_ids": [1, 2, 3], "text": "x"}'])
def test_ids_are_read_from_what_people_paste(text: str) -> None:
    assert parse_token_ids(text) == [1, 2, 3]


@pytest.mark.parametrize("text", ["[1", '{"ids": [1]}', "[true]", "[1.0]", "{}", '["1"]', "²", "[" * 100_000])
def test_invalid_ids_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        parse_token_ids(text)
