"""A conversation's prompt: the model's template or a given one, and messages that are none."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from aethermind.errors import InvalidArgumentError, TokenizerError
from aethermind.text.chat_prompt import chat_prompt

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% for tool in tools or [] %}[{{ tool.name }}]{% endfor %}{{ mood }}{% if add_generation_prompt %}<me>{% endif %}"
)
HELLO = [{"role": "user", "content": "Hello"}]


@dataclass
class Speaker:
    """The part of a tokenizer that a prompt needs."""

    chat_templates: dict[str, str] = field(default_factory=lambda: {"default": TEMPLATE})
    special_tokens: dict[str, str] = field(default_factory=lambda: {"bos_token": "^"})


@pytest.mark.parametrize(
    ("options", "prompt"),
    [
        ({}, "^<user>Hello<me>"),
        ({"add_generation_prompt": False}, "^<user>Hello"),
        ({"tools": [{"name": "add"}], "chat_template_kwargs": {"mood": "!"}}, "^<user>Hello[add]!<me>"),
        ({"chat_template": "{{ messages | length }}"}, "1"),
        ({"chat_template": "{{ template }}", "chat_template_kwargs": {"template": "any name"}}, "any name"),
    ],
)
def test_options_reach_the_template(options: Any, prompt: str) -> None:
    assert chat_prompt(Speaker(), HELLO, **options) == prompt  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "messages", ["Hello", [], None, {"role": "user"}, ["Hello"], [{"content": "x"}], [{"role": 3}]]
)
def test_what_is_no_conversation_is_refused(messages: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"role.*content.*got"):
        chat_prompt(Speaker(), messages)  # type: ignore[arg-type]


def test_a_model_without_a_template_takes_one() -> None:
    mute: Any = Speaker(chat_templates={})
    with pytest.raises(TokenizerError, match="has no chat template"):
        chat_prompt(mute, HELLO)
    assert chat_prompt(mute, HELLO, chat_template="{{ messages[0].content }}") == "Hello"


@pytest.mark.parametrize(
    ("content", "prompt"),
    [
        ([{"type": "text", "text": "He"}, {"type": "text", "text": "llo"}], "^<user>Hello<me>"),
        ([], "^<user><me>"),
        ([{"type": "picture"}], "^<user>[{'type': 'picture'}]<me>"),
    ],
)
def test_parts_of_text_are_one_text(content: Any, prompt: str) -> None:
    speaker: Any = Speaker()
    messages = [{"role": "user", "content": content}]
    assert chat_prompt(speaker, messages) == prompt
    assert messages == [{"role": "user", "content": content}]


def test_a_part_without_text_is_refused() -> None:
    speaker: Any = Speaker()
    with pytest.raises(InvalidArgumentError, match="A part of a message is"):
        chat_prompt(speaker, [{"role": "user", "content": [{"type": "text"}]}])


SYSTEM_FIRST = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('system first') }}"
    "{% endif %}[{{ m.role }}: {{ m.content }}]{% endfor %}"
)
"""The rule of Qwen3.5."""
ALTERNATING = (
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}"
    "{% endif %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}{% endif %}"
    "[{{ m.role }}: {{ m.content }}]{% endfor %}"
)
"""The rules of Gemma 2."""


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (SYSTEM_FIRST, "[system: You code.\n\nBe brief.][user: Hi\n\nNow.][assistant: Yes?][user: Go.\n\nNo skills.]"),
        (ALTERNATING, "[user: You code.\n\nBe brief.\n\nHi\n\nNow.][assistant: Yes?][user: Go.\n\nNo skills.]"),
        ("{% for m in messages %}{{ m.role[0] }}{% endfor %}", "ssuuaus"),
    ],
)
def test_messages_of_the_system_stand_where_the_template_takes_them(template: str, expected: str) -> None:
    """Codex begins with two, and Claude Code ends with one."""
    texts = ["You code.", "Be brief.", "Hi", "Now.", "Yes?", "Go.", "No skills."]
    roles = ["system", "system", "user", "user", "assistant", "user", "system"]
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
    assert chat_prompt(Speaker({"default": template}), messages) == expected  # type: ignore[arg-type]


def test_messages_that_a_template_refuses_in_any_order_are_an_error() -> None:
    speaker: Any = Speaker({"default": "{{ raise_exception('never') }}"})
    with pytest.raises(TokenizerError, match="refuses these messages: never"):
        chat_prompt(speaker, HELLO)
