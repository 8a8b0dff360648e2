"""Tokenizers over mapped tables against the library's: the same tokens and texts, and the same errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

from aethermind.errors import InvalidArgumentError, TokenizerError
from aethermind.text import Tokenizer, mapped_bpe, tokenizer_cache, tokenizer_files
from aethermind.text.mapped_bpe import MappedBpe, has_tables

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
LLAMA_SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def train(texts: tuple[str, ...], fast: tokenizers.Tokenizer, *pre: Any) -> tokenizers.Tokenizer:
    fast.pre_tokenizer = pre_tokenizers.Sequence([*pre, pre_tokenizers.ByteLevel(False, use_regex=not pre)])
    fast.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=700, show_progress=False, initial_alphabet=alphabet, special_tokens=SPECIAL
    )
    fast.train_from_iterator(texts, trainer)
    return fast


def like_gpt2(texts: tuple[str, ...]) -> tokenizers.Tokenizer:
    """No normaliser, and added tokens that overlap each other."""
    fast = train(texts, tokenizers.Tokenizer(models.BPE()))
    fast.add_tokens(
        [AddedToken(text, normalized=False) for text in ("two words", "two", "wordsmith", "Ġspelled", "日本\n")]
    )
    return fast


def like_qwen2(texts: tuple[str, ...]) -> tokenizers.Tokenizer:
    """Text in NFC, cut by a rule of its own, and a tool's mark that is not special."""
    fast = tokenizers.Tokenizer(models.BPE())
    fast.normalizer = normalizers.NFC()
    train(texts, fast, pre_tokenizers.Split(Regex(r"(?i:'s|'t|'re)|" + LLAMA_SPLIT), "isolated"))
    fast.add_tokens([AddedToken("<tool_call>", normalized=False)])
    return fast


def like_llama3(texts: tuple[str, ...]) -> tokenizers.Tokenizer:
    """Whole words first, and a token before each text and one behind it."""
    fast = train(texts, tokenizers.Tokenizer(models.BPE()), pre_tokenizers.Split(Regex(LLAMA_SPLIT), "isolated"))
    state = json.loads(fast.to_str())
    state["model"]["ignore_merges"] = True
    state["model"]["vocab"] |= {"Ġsmallvillage": 900, "xyzzy": 901}  # words that no merges lead to
    fast = tokenizers.Tokenizer.from_str(json.dumps(state))
    fast.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single="<|im_start|> $A <|im_end|>", special_tokens=[("<|im_start|>", 1), ("<|im_end|>", 2)]
            ),
        ]
    )
    return fast


FAMILIES = {"gpt2": like_gpt2, "qwen2": like_qwen2, "llama3": like_llama3}


@pytest.fixture(autouse=True)
def _all_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_files, "MIN_CACHED_BYTES", 0)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "aethermind" / "tokenizers"


@pytest.fixture
def directory(texts: tuple[str, ...], tmp_path: Path) -> Path:
    return saved(like_qwen2(texts), tmp_path / "model")


def saved(fast: tokenizers.Tokenizer, directory: Path) -> Path:
    directory.mkdir()
    fast.enable_truncation(3)
    fast.enable_padding(length=9)
    fast.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    return directory


def opened(directory: Path) -> Tokenizer:
    """A tokenizer, its tables kept at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer_cache, "atexit", SimpleNamespace(register=lambda keep, *arguments: keep(*arguments)))
        patch.setattr(tokenizer_cache, "_pending", {})
        return Tokenizer.from_directory(directory)


def is_mapped(tokenizer: Tokenizer) -> bool:
    return isinstance(tokenizer._fast, MappedBpe) and tokenizer._fast._library_tokenizer is None


@pytest.fixture(scope="module", params=FAMILIES)
def pair(
    request: pytest.FixtureRequest, texts: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Tokenizer, Tokenizer]:
    """A tokenizer over tables that never gives way to the library's, and the library's."""
    directory = saved(FAMILIES[request.param](texts), tmp_path_factory.mktemp("family") / "model")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer_files, "MIN_CACHED_BYTES", 0)
        patch.setattr(mapped_bpe, "_MAX_MAPPED_CHARS", 1 << 40)
        patch.setenv("XDG_CACHE_HOME", str(directory / "cache"))
        theirs, ours = opened(directory), opened(directory)
    assert is_mapped(ours)
    assert not is_mapped(theirs)
    return ours, theirs


def check(pair: tuple[Tokenizer, Tokenizer], text: str) -> None:
    ours, theirs = pair
    for adds_special in (False, True):
        token_ids = ours.encode(text, add_special_tokens=adds_special)
        assert token_ids == theirs.encode(text, add_special_tokens=adds_special)
        for skips in (False, True):
            assert ours.decode(token_ids, skip_special_tokens=skips) == theirs.decode(
                token_ids, skip_special_tokens=skips
            )


PARTS = (
    *SPECIAL,
    "two",
    "two words",
    " wordsmith",
    "<tool_call>",
    "日本\n",
    "Ġspelled",
    "e\u0301",
    " small",
    "village",
    "xyzzy",
    "12345",
)


@given(text=st.lists(st.text() | st.sampled_from(PARTS)).map("".join))
def test_tokens_are_the_librarys(pair: tuple[Tokenizer, Tokenizer], text: str) -> None:
    check(pair, text)


def test_tokens_of_text_in_many_scripts(pair: tuple[Tokenizer, Tokenizer], texts: tuple[str, ...]) -> None:
    for text in (*texts, "".join(texts) * 2, "a" * 200, " " * 100, ""):
        check(pair, text)


def test_every_token_has_its_name_and_id(pair: tuple[Tokenizer, Tokenizer]) -> None:
    ours, theirs = pair
    for token_id in (*range(1000), 10**6, -1, 2**32 - 1, 2**40):
        name = ours.id_to_token(token_id)
        assert name == theirs.id_to_token(token_id)
        assert name is None or ours.token_to_id(name) == theirs.token_to_id(name)
        assert ours.token_bytes(token_id) == theirs.token_bytes(token_id)
    assert ours.token_to_id("no such token") is None
    for face in ("vocab_size", "special_token_ids", "special_tokens", "eos_token_id", "decoder_kinds", "is_byte_level"):
        assert getattr(ours, face) == getattr(theirs, face)


def test_errors_are_the_same(pair: tuple[Tokenizer, Tokenizer]) -> None:
    calls: list[Callable[[Tokenizer], Any]] = [
        lambda one: one.encode("a \ud800"),
        lambda one: one.encode("<|im_end|>\udfff"),
        lambda one: one.encode(5),  # type: ignore[arg-type]
        lambda one: one.encode(b"bytes"),  # type: ignore[arg-type]
        lambda one: one.decode([0, -1]),
        lambda one: one.decode([2**32]),
    ]
    for call in calls:
        messages = []
        for one in pair:
            with pytest.raises(InvalidArgumentError) as caught:
                call(one)
            messages.append(str(caught.value))
        assert messages[0] == messages[1]


def test_others_are_left_to_the_library(
    texts: tuple[str, ...], make_fast: Callable[[str], tokenizers.Tokenizer]
) -> None:
    assert has_tables(like_qwen2(texts))
    for family in (
        "byte_level",
        "byte_fallback",
        "metaspace",
        "word_piece",
    ):  # the first has tokens that are normalised
        assert not has_tables(make_fast(family))
    for flag in ("lstrip", "rstrip", "single_word"):
        fast = like_gpt2(texts)
        fast.add_tokens([AddedToken("<x>", **{flag: True})])
        assert not has_tables(fast)
    for change in ({"dropout": 0.1}, {"continuing_subword_prefix": "##"}, {"end_of_word_suffix": "</w>"}):
        fast = like_gpt2(texts)
        for name, value in change.items():
            setattr(fast.model, name, value)
        assert not has_tables(fast)
    fast = like_gpt2(texts)
    fast.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(), pre_tokenizers.ByteLevel()])
    assert not has_tables(fast)


@pytest.mark.usefixtures("cache")
def test_much_text_is_read_by_the_library(
    directory: Path, texts: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped_bpe, "_MAX_MAPPED_CHARS", 100)
    theirs, ours = opened(directory), opened(directory)
    assert ours.encode(texts[0]) == theirs.encode(texts[0])
    assert is_mapped(ours)
    assert ours.encode(texts[1]) == theirs.encode(texts[1])
    assert not is_mapped(ours)
    assert ours.encode(texts[2]) == theirs.encode(texts[2])


@pytest.mark.parametrize(
    "ask",
    [
        lambda one: one.encode("a" * 5000),
        lambda one: json.loads(one.as_json()),
        lambda one: (one.load_library_tokenizer(), one.encode("abc")),
    ],
)
@pytest.mark.usefixtures("cache")
def test_what_is_the_librarys_to_answer(directory: Path, ask: Callable[[Tokenizer], Any]) -> None:
    theirs, ours = opened(directory), opened(directory)
    assert is_mapped(ours)
    assert ask(ours) == ask(theirs)
    assert not is_mapped(ours)


@pytest.mark.usefixtures("cache")
def test_a_changed_file_is_read_anew(directory: Path, texts: tuple[str, ...]) -> None:
    opened(directory)
    assert is_mapped(opened(directory))
    like_gpt2(texts).save(str(directory / "tokenizer.json"))
    assert not is_mapped(changed := opened(directory))
    assert changed.token_to_id("two words") is not None
    (directory / "tokenizer.json").write_bytes(b'{"version"')
    with pytest.raises(TokenizerError, match="is not a readable tokenizer"):
        opened(directory)


@pytest.mark.usefixtures("cache")
def test_tokens_named_by_other_files_are_in_the_tables(directory: Path) -> None:
    plain = opened(directory)
    assert is_mapped(opened(directory))
    (directory / "added_tokens.json").write_text(json.dumps({"<new>": plain.vocab_size}))
    described = {"extra_special_tokens": ["<new>"]}
    (directory / "tokenizer_config.json").write_text(json.dumps(described))
    whole, mapped = opened(directory), opened(directory)
    assert not is_mapped(whole), "the tables are of other tokens"
    assert is_mapped(mapped)
    for one in (whole, mapped):
        assert one.encode("a<new>b") == [*plain.encode("a"), plain.vocab_size, *plain.encode("b")]
        assert one.decode([plain.vocab_size]) == ""


@pytest.mark.usefixtures("cache")
def test_a_file_that_changes_meanwhile_is_not_mixed_up_with_the_old(directory: Path, texts: tuple[str, ...]) -> None:
    opened(directory)
    changed, gone = opened(directory), opened(directory)
    like_gpt2(texts).save(str(directory / "tokenizer.json"))
    with pytest.raises(TokenizerError, match="Open the model again"):
        changed.load_library_tokenizer()
    (directory / "tokenizer.json").unlink()
    with pytest.raises(TokenizerError, match="Open the model again"):
        gone.as_json()
    assert gone.decode(gone.encode("Once upon a time")) == "Once upon a time"


@pytest.mark.usefixtures("cache")
def test_much_text_is_encoded_by_tables_if_the_file_has_changed_meanwhile(
    directory: Path, texts: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(mapped_bpe, "_MAX_MAPPED_CHARS", 10)
    monkeypatch.setattr(mapped_bpe, "_MAX_CACHED_PIECES", 3)
    theirs, ours = opened(directory), opened(directory)
    like_gpt2(texts).save(str(directory / "tokenizer.json"))
    assert [ours.encode(text) for text in texts] == [theirs.encode(text) for text in texts]
    assert is_mapped(ours)
    assert [record.message for record in caplog.records if "has changed" in record.message] == [
        f"Long prompts take more time to encode: {directory / 'tokenizer.json'} has changed since the model was "
        "opened. Open the model again."
    ]


@pytest.mark.usefixtures("cache")
def test_threads_read_the_librarys_tokenizer_once(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, ours = opened(directory), opened(directory)
    assert isinstance(ours._fast, MappedBpe)
    read, num_reads, all_wait = ours._fast._read_library_tokenizer, [], Barrier(4)

    def counted() -> tokenizers.Tokenizer:
        num_reads.append(1)
        return read()

    def encode(_: int) -> list[int]:
        all_wait.wait(60)
        return ours.encode("a" * 5000)

    monkeypatch.setattr(ours._fast, "_read_library_tokenizer", counted)
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(encode, range(4))) == [theirs.encode("a" * 5000)] * 4
    assert len(num_reads) == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-8],
        lambda data: b"",
        lambda data: b"\xff" * len(data),
        lambda data: data.replace(b'"key"', b'"kea"'),
    ],
)
def test_damaged_tables_are_made_again(directory: Path, cache: Path, damage: Callable[[bytes], bytes]) -> None:
    whole = opened(directory)
    [file] = cache.iterdir()
    before = file.read_bytes()
    file.write_bytes(damage(before))
    again = opened(directory)
    assert not is_mapped(again)
    assert again.encode("Once upon") == whole.encode("Once upon")
    assert file.read_bytes() == before
    assert is_mapped(opened(directory))


def test_tables_are_made_at_the_end_of_a_process(directory: Path, cache: Path) -> None:
    program = f"""
from pathlib import Path
from aethermind.text import tokenizer, tokenizer_files
tokenizer_files.MIN_CACHED_BYTES = 0
one = tokenizer.Tokenizer.from_directory(Path({str(directory)!r}))
assert not Path({str(cache)!r}).exists()
print(one.encode("Once upon a time"))
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert len(list(cache.iterdir())) == 1
    assert is_mapped(ours := opened(directory))
    assert (said.stdout, said.stderr) == (f"{ours.encode('Once upon a time')}\n", "")


def test_a_cache_that_cannot_be_written_is_done_without(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert not is_mapped(opened(directory))
    assert not is_mapped(opened(directory))


def test_the_least_recently_used_is_given_up(
    texts: tuple[str, ...], cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer_cache, "_MAX_FILES", 2)
    fast = like_gpt2(texts)
    first, second, third = (saved(fast, tmp_path / str(number)) for number in range(3))
    opened(first)
    opened(second)
    for age, file in enumerate(sorted(cache.iterdir(), key=os.path.getmtime, reverse=True)):
        os.utime(file, (1e9 - age, 1e9 - age))
    assert is_mapped(opened(first))  # and is used now
    opened(third)
    assert len(list(cache.iterdir())) == 2
    assert is_mapped(opened(first))
    assert is_mapped(opened(third))
    assert not is_mapped(opened(second))


def test_tokenizers_that_wait_for_the_end_of_the_process_are_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One for each file, however often it is opened, and those that were opened last: each takes memory."""
    at_end: list[Callable[[], None]] = []
    monkeypatch.setattr(tokenizer_cache, "atexit", SimpleNamespace(register=at_end.append))
    monkeypatch.setattr(tokenizer_cache, "_pending", {})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    fast = like_gpt2(("the two words",))
    for number in range(4):
        (tmp_path / f"{number}.json").write_text(fast.to_str())
        for _ in range(3):
            tokenizer_cache.open_tokenizer(
                tmp_path / f"{number}.json", lambda: tokenizers.Tokenizer.from_str(fast.to_str())
            )
    assert len(tokenizer_cache._pending) == 2
    (write,) = at_end
    write()
    assert len([*(tmp_path / "cache" / "aethermind" / "tokenizers").iterdir()]) == 2
