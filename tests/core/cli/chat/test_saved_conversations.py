"""Saved conversations: round trips, and protection of other files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from aethermind.cli.chat.conversation import Conversation, ConversationMessage, load_conversation, save_conversation
from aethermind.errors import InvalidArgumentError

CONVERSATION = Conversation(
    "demo", "sé brief", {"seed": 3}, [ConversationMessage("user", "a\nb"), ConversationMessage("assistant", "c", True)]
)

OTHER = Conversation("other")


def test_a_file_holds_the_whole_conversation(tmp_path: Path) -> None:
    path = save_conversation(CONVERSATION, str(tmp_path / "chat.json"))
    assert load_conversation(str(path), OTHER) == CONVERSATION
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
    path = save_conversation(CONVERSATION, str(tmp_path / "chat.json"))
    save_conversation(Conversation("demo"), str(path))
    assert load_conversation(str(path), OTHER).messages == []
    other = tmp_path / "notes.txt"
    other.write_text("precious")
    with pytest.raises(InvalidArgumentError, match=r"notes\.txt exists and is something else"):
        save_conversation(CONVERSATION, str(other))
    assert other.read_text() == "precious"


def test_a_tilde_is_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert save_conversation(CONVERSATION, "~/chat.json") == tmp_path / "chat.json"
    assert load_conversation("~/chat.json", OTHER) == CONVERSATION


def test_files_that_cannot_be_written_or_read_are_one_line_errors(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"chat\.json cannot be written: No such file"):
        save_conversation(CONVERSATION, str(tmp_path / "gone" / "chat.json"))
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
            load_conversation(str(tmp_path / name), OTHER)


def test_special_files_are_one_line_errors_and_do_not_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
            save_conversation(CONVERSATION, name)
        with pytest.raises(InvalidArgumentError):
            load_conversation(name, OTHER)
    assert sorted(tmp_path.iterdir()) == [file, loop, pipe]
