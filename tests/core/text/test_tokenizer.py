"""The tokenizer against the library and transformers, and every way its files can be wrong."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
import time
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
import transformers
from hypothesis import given
from hypothesis import strategies as st

from aethermind.errors import InvalidArgumentError, TokenizerError
from aethermind.text import Tokenizer


@pytest.fixture
def directory(byte_level_directory: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(byte_level_directory, tmp_path / "model"))


@pytest.fixture(scope="module")
def every_family(make_fast: Callable[[str], tokenizers.Tokenizer]) -> list[tokenizers.Tokenizer]:
    return [make_fast(family) for family in ("byte_level", "byte_fallback", "metaspace", "word_piece")]


def test_from_directory_equals_transformers(byte_level_directory: Path, texts: tuple[str, ...], chatml: str) -> None:
    ours = Tokenizer.from_directory(byte_level_directory)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(byte_level_directory)
    for text in (*texts, "", "<|im_start|>user\nhi<|im_end|>", "two words", "\x00\uffff"):
        token_ids = ours.encode(text)
        assert token_ids == theirs.encode(text, add_special_tokens=False)
        assert ours.decode(token_ids) == theirs.decode(token_ids, skip_special_tokens=True)
        assert ours.decode(token_ids, skip_special_tokens=False) == theirs.decode(token_ids)
    assert ours.vocab_size == len(theirs)
    assert ours.eos_token_id == theirs.eos_token_id
    assert ours.chat_template == chatml
    assert ours.special_tokens == {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    assert ours.special_token_ids == {theirs.convert_tokens_to_ids(t) for t in theirs.all_special_tokens} | {
        ours.token_to_id("<|im_start|>")
    }


def test_names_and_texts_of_tokens(byte_level: Tokenizer) -> None:
    end = byte_level.eos_token_id
    assert end is not None
    assert byte_level.token_to_id("<|im_end|>") == end
    assert byte_level.id_to_token(end) == byte_level.token_text(end) == "<|im_end|>"
    assert byte_level.token_to_id("no such token") is None
    assert byte_level.id_to_token(10**6) is byte_level.id_to_token(-1) is byte_level.id_to_token(2**40) is None
    [space] = byte_level.encode(" ")
    assert byte_level.id_to_token(space) == "Ġ"
    assert byte_level.token_text(space) == " "


def test_token_bytes_are_what_decode_joins(byte_level: Tokenizer) -> None:
    for token_id in range(byte_level.vocab_size + 1):
        token_bytes = byte_level.token_bytes(token_id)
        assert token_bytes is not None
        assert token_bytes.decode(errors="replace") == byte_level.token_text(token_id)
    assert byte_level.token_bytes(byte_level.vocab_size) == b""


def test_token_bytes_of_another_kind_of_vocabulary(make_fast: Callable[[str], tokenizers.Tokenizer]) -> None:
    tokenizer = Tokenizer(make_fast("metaspace"))
    assert not tokenizer.is_byte_level
    assert tokenizer.token_bytes(0) is None


@given(text=st.text())
def test_text_survives(byte_level: Tokenizer, text: str) -> None:
    assert byte_level.decode(byte_level.encode(text), skip_special_tokens=False) == unicodedata.normalize("NFC", text)


SPECIAL = st.sampled_from(["<|im_start|>", "<|im_end|>", "<|endoftext|>", "two words", "Ġspelled", "日本\n", "<s>"])


@given(pieces=st.lists(st.text() | SPECIAL, max_size=6), adds_special=st.booleans())
def test_any_text_has_the_librarys_tokens(
    every_family: list[tokenizers.Tokenizer], pieces: list[str], adds_special: bool
) -> None:
    text = "".join(pieces)
    for fast in every_family:
        expected = fast.encode(text, add_special_tokens=adds_special).ids
        assert Tokenizer(fast).encode(text, add_special_tokens=adds_special) == expected


def test_other_threads_run_while_a_long_text_is_encoded(byte_level: Tokenizer) -> None:
    encoding = threading.Thread(target=byte_level.encode, args=("the fox said hello to all. " * 10_000,))
    began = last = time.perf_counter()
    longest = 0.0
    encoding.start()
    while encoding.is_alive():
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    assert longest < (last - began) / 2


def test_truncation_and_padding_are_off(
    make_fast: Callable[[str], tokenizers.Tokenizer], texts: tuple[str, ...]
) -> None:
    fast = make_fast("byte_level")
    fast.enable_truncation(2)
    fast.enable_padding(length=64)
    text = texts[0]
    assert Tokenizer(fast).encode(text) == Tokenizer(make_fast("byte_level")).encode(text)


def test_template_file_wins_over_config(directory: Path) -> None:
    (directory / "chat_template.jinja").write_text("{{ messages }} ü", encoding="utf-8")
    assert Tokenizer.from_directory(directory).chat_template == "{{ messages }} ü"


def test_default_of_several_named_templates(directory: Path) -> None:
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    tokenizer = Tokenizer.from_directory(directory)
    assert tokenizer.chat_template == "D"
    assert tokenizer.chat_templates == {"default": "D", "tool_use": "T"}


def test_config_is_optional(directory: Path) -> None:
    (directory / "tokenizer_config.json").unlink()
    tokenizer = Tokenizer.from_directory(directory)
    assert tokenizer.eos_token_id is None
    assert tokenizer.chat_template is None
    assert tokenizer.encode("Once")


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("tokenizer.json", None, r"tokenizer\.json does not exist.*Put the model's tokenizer\.json there"),
        ("tokenizer.json", b"", r"tokenizer\.json \(0 bytes\) is not a readable tokenizer"),
        (
            "tokenizer.json",
            b'{"version": "1.0", ',
            r"tokenizer\.json \(19 bytes\).*EOF.*Fetch the file again",
        ),
        ("tokenizer.json", b"{}", r"Model missing"),
        ("tokenizer.json", b"\xff\xfe", r"is not a readable tokenizer"),
        ("tokenizer_config.json", b"{", r"tokenizer_config\.json is not readable JSON.*Fetch"),
        ("tokenizer_config.json", b"[" * 100_000, r"tokenizer_config\.json is not readable JSON"),
        ("tokenizer_config.json", b"\xff", r"tokenizer_config\.json is not readable JSON"),
        ("tokenizer_config.json", b"[1]", r"holds a JSON list, not an object"),
        ("tokenizer_config.json", b'{"eos_token": 7}', r"gives eos_token as 7; write the token's text"),
        (
            "tokenizer_config.json",
            b'{"eos_token": "<e>"}',
            r"eos_token '<e>' is not in its vocabulary of \d+",
        ),
        (
            "tokenizer_config.json",
            b'{"chat_template": 7}',
            r"chat_template as a JSON int; write Jinja source",
        ),
        ("chat_template.jinja", b"\xff", r"chat_template\.jinja is not readable UTF-8"),
    ],
)
def test_bad_files_are_one_sentence(directory: Path, name: str, content: bytes | None, says: str) -> None:
    if content is None:
        (directory / name).unlink()
    else:
        (directory / name).write_bytes(content)
    with pytest.raises(TokenizerError, match=says) as caught:
        Tokenizer.from_directory(directory)
    assert str(directory) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_lone_surrogate_is_refused(byte_level: Tokenizer) -> None:
    with pytest.raises(InvalidArgumentError, match=re.escape("lone surrogate U+DCFF at character 2 of 4")):
        byte_level.encode("ab\udcffc")


def test_prompt_of_another_type_is_refused(byte_level: Tokenizer) -> None:
    with pytest.raises(InvalidArgumentError, match="must be a string, not int"):
        byte_level.encode(7)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="must be a string, not tuple"):
        byte_level.encode(("a", "b"))  # type: ignore[arg-type]


@pytest.mark.parametrize("token_id", [-1, 2**32, 2**70])
def test_impossible_ids_are_refused(byte_level: Tokenizer, token_id: int) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"Token id {token_id} is not in the vocabulary of \d+ tokens"):
        byte_level.decode([0, token_id])


def test_naming_the_package_imports_nothing_heavy() -> None:
    program = "import sys, aethermind.text; print(sorted({'jinja2', 'tokenizers', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_tokens_by_themselves_keep_their_space(make_fast: Callable[[str], tokenizers.Tokenizer]) -> None:
    for family in ("byte_fallback", "metaspace"):
        tokenizer = Tokenizer(make_fast(family))
        token_id = tokenizer.token_to_id("▁a")
        assert token_id is not None
        assert tokenizer.token_text(token_id) == " a"
        assert tokenizer.token_text(token_id, is_first=True) == "a"
    words = Tokenizer(make_fast("word_piece"))
    assert [words.token_text(token_id) for token_id in words.encode("unaffable")] == ["un", "##aff", "##able"]


def test_bytes_of_tokens_that_stand_for_one(make_fast: Callable[[str], tokenizers.Tokenizer]) -> None:
    tokenizer = Tokenizer(make_fast("byte_fallback"))
    token_ids = [tokenizer.token_to_id(token) or 0 for token in ("<0xC3>", "<0x0A>", "▁a", "<s>")]
    assert [tokenizer.token_bytes(token_id) for token_id in token_ids] == [b"\xc3", b"\n", None, None]
    assert [tokenizer.token_text(token_id) for token_id in token_ids] == ["\ufffd", "\n", " a", "<s>"]
