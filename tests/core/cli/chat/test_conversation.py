"""Conversation: turns, settings, and JSON round trips."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aethermind.cli.chat.conversation import SETTINGS, Conversation, ConversationMessage, parse_setting
from aethermind.errors import InvalidArgumentError


def talk(*texts: str, **options: Any) -> Conversation:
    """Questions and answers in turn."""
    conversation = Conversation("demo", **options)
    for index, text in enumerate(texts):
        (conversation.add_reply if index % 2 else conversation.add_user_message)(text)
    return conversation


def said(conversation: Conversation) -> list[str]:
    return [message.content for message in conversation.messages]


def test_the_model_sees_the_system_text_and_all_turns() -> None:
    conversation = talk("a", "b", "c", system="be brief")
    conversation.add_reply("d", is_interrupted=True)
    roles = ("system", "user", "assistant", "user", "assistant")
    texts = ("be brief", "a", "b", "c", "d")
    assert conversation.prompt() == [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
    assert (conversation.num_turns, conversation.last_user_message) == (2, "c")
    conversation.clear()
    assert conversation.prompt() == [{"role": "system", "content": "be brief"}]


def test_undo_removes_question_and_answer() -> None:
    answered, unanswered = talk("a", "b", "c", "d"), talk("a", "b", "c")
    assert answered.undo() == unanswered.undo() == "c"
    assert said(answered) == said(unanswered) == ["a", "b"]


def test_retracting_and_editing_leave_a_question_to_answer() -> None:
    conversation = talk("a", "b", "c", "d")
    for _ in range(2):
        conversation.remove_reply()
        assert said(conversation) == ["a", "b", "c"]
    conversation.add_reply("d")
    conversation.edit("x")
    assert said(conversation) == ["a", "b", "x"]


def test_the_next_question_replaces_an_unanswered_one() -> None:
    conversation = talk("a", "b", "c")
    conversation.add_user_message("d")
    assert said(conversation) == ["a", "b", "d"]


@pytest.mark.parametrize("name", ["undo", "remove_reply"])
def test_undo_without_a_question_is_an_error(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="Nothing was said yet"):
        getattr(Conversation("demo"), name)()


def test_settings_are_checked_before_they_change() -> None:
    conversation = Conversation("demo")
    conversation.set("top-k", 4)
    conversation.set("stop", "END")
    for name, value, complaint in (
        ("temperature", -1, "temperature is -1"),
        ("temperatur", 1, "did you mean temperature"),
        ("qqq", 1, r"no setting 'qqq'\. /set"),
        ("logprobs", 1, "no setting"),
    ):
        with pytest.raises(InvalidArgumentError, match=complaint):
            conversation.set(name, value)
    settings = conversation.settings()
    assert tuple(settings) == SETTINGS
    assert (settings["top_k"], settings["stop"], settings["temperature"]) == (4, ("END",), 1.0)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.5", 0.5),
        ("7", 7),
        ("true", True),
        ("none", None),
        ("None", None),
        ("null", None),
        ('"\\n"', "\n"),
        ('["a", "b"]', ["a", "b"]),
        ("User:", "User:"),
        ("a b", "a b"),
    ],
)
def test_parsing_of_setting_values(text: str, value: object) -> None:
    assert parse_setting(text) == value


def test_each_attempt_has_a_seed_of_its_own() -> None:
    conversation = Conversation("demo")
    assert conversation.params().seed != conversation.params().seed
    conversation.set("seed", 2**64 - 1)
    assert [conversation.params(attempt).seed for attempt in range(3)] == [2**64 - 1, 0, 1]


@given(st.lists(st.tuples(st.text(), st.booleans())), st.none() | st.text(), st.floats(0, 2))
def test_json_round_trip(turns: list[tuple[str, bool]], system: str | None, temperature: float) -> None:
    sampling = {"temperature": temperature, "stop": ["x"], "seed": None}
    messages = [
        ConversationMessage("assistant" if i % 2 else "user", text, bool(i % 2) and cut)
        for i, (text, cut) in enumerate(turns)
    ]
    conversation = Conversation("demo", system, sampling, messages)
    assert (
        Conversation.from_record(json.loads(json.dumps(conversation.as_record())), Conversation("other", "x"))
        == conversation
    )


def test_fields_that_a_record_lacks_keep_their_values() -> None:
    now = talk("lost", system="be brief")
    now.set("seed", 3)
    read = Conversation.from_record({"messages": [QUESTION]}, now)
    assert read == Conversation("demo", "be brief", {"seed": 3}, [ConversationMessage("user", "a")])
    assert Conversation.from_record({"messages": [], "system": None, "sampling": {}}, now) == Conversation("demo")


QUESTION = {"role": "user", "content": "a"}


@pytest.mark.parametrize(
    ("record", "complaint"),
    [
        ([], "JSON list, not an object"),
        ({}, 'no "messages"'),
        ({"mesages": []}, "unknown key 'mesages'; did you mean messages\\?$"),
        ({"messages": "hi"}, '"messages" is not a list'),
        ({"messages": [], "model": 1}, '"model" is not a text'),
        ({"messages": [], "system": ["x"]}, '"system" is neither'),
        ({"messages": [], "sampling": [1]}, '"sampling" is not an object'),
        ({"messages": [], "sampling": {"temprature": 1}}, "'temprature'; did you mean temperature"),
        ({"messages": [], "sampling": {"top_p": 2}}, "top_p is 2"),
        ({"messages": [QUESTION, "hi"]}, r"messages\[1\] is not an object"),
        ({"messages": [{"role": "system", "content": "a"}]}, "'system', neither 'user' nor 'assistant'"),
        ({"messages": [{"role": "user", "content": ["a"]}]}, r"content of messages\[0\] is not a text"),
        ({"messages": [{**QUESTION, "name": "me"}]}, "unknown key 'name'"),
        ({"messages": [{**QUESTION, "interrupted": 1}]}, "neither true nor false"),
    ],
)
def test_invalid_records_are_refused_with_the_reason(record: Any, complaint: str) -> None:
    with pytest.raises(InvalidArgumentError, match=complaint):
        Conversation.from_record(record, Conversation("demo"))
