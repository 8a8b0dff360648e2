"""Conversations in files: what is written is read back, and nothing else is overwritten."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from aethermind.cli.chat.conversation import Conversation, Message
from aethermind.cli.chat.saved import load, save
from aethermind.errors import InvalidArgumentError

CONVERSATION = Conversation("demo", "sé brief", {"seed": 3}, [Message("user", "a\nb"), Message("assistant", "c", True)])

OTHER = Conversation("other")


def test_a_file_holds_the_whole_conversation(tmp_path: Path) -> None:
    path = save(CONVERSATION, str(tmp_path / "chat.json"))
    assert load(str(path), OTHER) == CONVERSATION
    assert json.loads(path.read_text(encoding="utf-8")) == {
        "model": "demo",
        "system": "sé brief",
        "sampling": {"seed": 3},
        "messages": [
            {"role": "user", "content": "a\nb"},
            {"role": "assistant", "content": "c", "interrupted": True},
        ],
    }
    assert list(tmp_path.iterdir()) == [path]


def test_only_a_conversation_is_overwritten(tmp_path: Path) -> None:
    path = save(CONVERSATION, str(tmp_path / "chat.json"))
    save(Conversation("demo"), str(path))
    assert load(str(path), OTHER).messages == []
    other = tmp_path / "notes.txt"
    other.write_text("precious")
    with pytest.raises(InvalidArgumentError, match=r"notes\.txt exists and is something else"):
        save(CONVERSATION, str(other))
    assert other.read_text() == "precious"


def test_the_home_directory_has_a_short_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert save(CONVERSATION, "~/chat.json") == tmp_path / "chat.json"
    assert load("~/chat.json", OTHER) == CONVERSATION


def test_what_cannot_be_written_or_read_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"chat\.json cannot be written: No such file"):
        save(CONVERSATION, str(tmp_path / "gone" / "chat.json"))
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "broken.json").write_bytes(b"{\xff")
    for name, complaint in (
        ("gone.json", "cannot be read: No such file"),
        ("list.json", r"list\.json cannot be loaded\. .* JSON list"),
        ("broken.json", "it is not UTF-8 text"),
        ("deep.json", "it is not JSON"),
        ("nul\0.json", "is not a saved conversation|cannot be read"),
    ):
        with pytest.raises(InvalidArgumentError, match=complaint):
            load(str(tmp_path / name), OTHER)


def test_odd_names_are_sentences_and_nothing_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file, pipe, loop = tmp_path / "file", tmp_path / "pipe", tmp_path / "loop"
    file.touch()
    os.mkfifo(pipe)
    loop.symlink_to(loop)
    for name in (
        "~nobody-has-this-name/chat.json",
        "/",
        ".",
        f"{file}/chat.json",
        str(pipe),
        str(loop),
        "x" * 300,
        "\0",
    ):
        with pytest.raises(InvalidArgumentError):
            save(CONVERSATION, name)
        with pytest.raises(InvalidArgumentError):
            load(name, OTHER)
    assert sorted(tmp_path.iterdir()) == [file, loop, pipe]
