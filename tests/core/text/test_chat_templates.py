"""Which of a model's chat templates a conversation takes: that which transformers takes, or a sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from transformers import PreTrainedTokenizerFast

from aethermind.errors import TokenizerError
from aethermind.text.chat_prompt import chat_prompt
from aethermind.text.chat_templates import read_chat_templates
from aethermind.text.tokenizer import Tokenizer

HELLO = [{"role": "user", "content": "hi"}]
TOOLS: list[dict[str, Any]] = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
NAMED = [{"name": name, "template": f"{name}: {{{{ tools }}}}"} for name in ("default", "tool_use", "rag")]


@pytest.fixture
def write(make_fast: Callable[[str], tokenizers.Tokenizer], tmp_path: Path) -> Callable[..., Path]:
    def write(chat_template: Any, files: dict[str, str]) -> Path:
        make_fast("byte_level").save(str(tmp_path / "tokenizer.json"))
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": chat_template}))
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)
        return tmp_path

    return write


@pytest.mark.parametrize("options", [{}, {"tools": TOOLS}, {"tools": []}, {"chat_template": "rag"}])
@pytest.mark.parametrize(
    ("chat_template", "files"),
    [
        ("one", {}),
        (NAMED, {}),
        (NAMED[:1], {}),
        (None, {"chat_template.jinja": "file"}),
        (None, {"chat_template.jinja": "file", "additional_chat_templates/tool_use.jinja": "T{{ tools }}"}),
    ],
)
def test_a_conversation_takes_what_transformers_takes(
    write: Callable[..., Path], chat_template: Any, files: dict[str, str], options: dict[str, Any]
) -> None:
    directory = write(chat_template, files)
    theirs = PreTrainedTokenizerFast.from_pretrained(directory)
    expected = theirs.apply_chat_template(HELLO, tokenize=False, add_generation_prompt=True, **options)
    assert chat_prompt(Tokenizer.from_directory(directory), HELLO, **options) == expected


def test_without_a_default_one_has_to_be_named(write: Callable[..., Path]) -> None:
    tokenizer = Tokenizer.from_directory(write(NAMED[1:], {}))
    assert tokenizer.chat_template is None
    assert chat_prompt(tokenizer, HELLO, tools=TOOLS).startswith("tool_use")
    with pytest.raises(TokenizerError, match="chat templates for rag, tool_use and none for all conversations"):
        chat_prompt(tokenizer, HELLO)


@pytest.mark.parametrize("value", [7, {}, [3], [{"name": "x"}], [{"name": 3, "template": "T"}], [NAMED[0], NAMED[0]]])
def test_what_is_no_template_is_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(TokenizerError, match=r"gives chat_template as a JSON .*; write Jinja source"):
        read_chat_templates({"chat_template": value}, tmp_path)


def test_an_additional_template_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "rag.jinja").write_bytes(b"\xff")
    with pytest.raises(TokenizerError, match=r"rag\.jinja is not readable UTF-8"):
        read_chat_templates({}, tmp_path)
