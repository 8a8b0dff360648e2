"""A conversation as data: its messages and settings, and JSON files of both. Independent of terminal and model."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from aethermind import env
from aethermind.errors import InvalidArgumentError, did_you_mean
from aethermind.sampling.params import SamplingParams, with_defaults

__all__ = ["Conversation", "ConversationMessage", "SETTINGS", "load_conversation", "parse_setting", "save_conversation"]


_NOT_IN_CHAT = ("n", "logprobs", "prompt_logprobs", "structured_outputs")
"""Sampling parameters without a visible effect in a chat, or that cannot be typed in it."""

SETTINGS = tuple(field.name for field in fields(SamplingParams) if field.init and field.name not in _NOT_IN_CHAT)
"""Names of the settings of a chat: sampling parameters."""

_ALIASES = {"temp": "temperature"}
"""Short names, which are also flags."""


@dataclass(frozen=True, slots=True)
class ConversationMessage:
    """A message of a role, `user`, `assistant` or `tool`; `is_interrupted` marks a reply that was aborted.

    A reply may have `tool_calls`, in the format of the chat completions API; the messages of the role `tool` after it
    are their results, each with the id of its call.
    """

    role: str
    content: str
    is_interrupted: bool = False
    tool_calls: tuple[dict[str, Any], ...] = ()
    tool_call_id: str | None = None

    def for_prompt(self) -> dict[str, Any]:
        """The message for a chat template, or for a server."""
        message: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.tool_calls:
            message["tool_calls"] = list(self.tool_calls)
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        return message


@dataclass(slots=True)
class Conversation:
    """User messages and replies in turn; only the last user message may have no reply yet. Mutable."""

    model: str
    system: str | None = None
    sampling: dict[str, Any] = field(default_factory=dict)
    """Valid arguments for SamplingParams."""
    messages: list[ConversationMessage] = field(default_factory=list)

    @property
    def num_turns(self) -> int:
        """The number of user messages."""
        return sum(message.role == "user" for message in self.messages)

    @property
    def last_user_message(self) -> str:
        """The last user message. Raises InvalidArgumentError if there is none."""
        return self.messages[self._last_user_index()].content

    @property
    def pending_calls(self) -> tuple[dict[str, Any], ...]:
        """The calls of the last reply, if nothing follows it."""
        return self.messages[-1].tool_calls if self.messages else ()

    def prompt(self) -> list[dict[str, Any]]:
        """Return the messages for the model's chat template, the system prompt included."""
        system: list[dict[str, Any]] = [{"role": "system", "content": self.system}] if self.system else []
        return system + [message.for_prompt() for message in self.messages]

    def add_user_message(self, text: str) -> None:
        """Append a user message; it replaces a last one without a reply, as models expect alternating roles."""
        if self.messages and self.messages[-1].role == "user":
            self.messages.pop()
        self.messages.append(ConversationMessage("user", text))

    def add_reply(
        self, text: str, *, is_interrupted: bool = False, tool_calls: tuple[dict[str, Any], ...] = ()
    ) -> None:
        """Append the reply to the last user message, or to the results of calls."""
        self.messages.append(ConversationMessage("assistant", text, is_interrupted, tool_calls))

    def add_result(self, call_id: str, text: str) -> None:
        """Append the result of a call."""
        self.messages.append(ConversationMessage("tool", text, tool_call_id=call_id))

    def undo(self) -> str:
        """Remove the last user message with its reply; returns the message."""
        index = self._last_user_index()
        text = self.messages[index].content
        del self.messages[index:]
        return text

    def remove_reply(self) -> None:
        """Remove the reply to the last user message, if there is one. InvalidArgumentError without such a message."""
        del self.messages[self._last_user_index() + 1 :]

    def edit(self, text: str) -> None:
        """Replace the last user message and remove its reply."""
        self.undo()
        self.add_user_message(text)

    def clear(self) -> None:
        """Remove all messages; the system prompt and the settings are kept."""
        self.messages.clear()

    def set(self, name: str, value: Any) -> str:
        """Change a setting; returns its canonical name.

        InvalidArgumentError, and nothing changed, for an unknown name or a bad value.
        """
        name = name.replace("-", "_")
        name = _ALIASES.get(name, name)
        if name not in SETTINGS:
            raise InvalidArgumentError(f"There is no setting {name!r}{did_you_mean(name, SETTINGS)} /set shows all.")
        changed = {**with_defaults(self.sampling, {name: value}), name: value}
        SamplingParams(**changed)
        self.sampling = changed
        return name

    def settings(self) -> dict[str, Any]:
        """Return every setting with its value."""
        params = SamplingParams(**self.sampling)
        return {name: getattr(params, name) for name in SETTINGS}

    def params(self, attempt: int = 0) -> SamplingParams:
        """Return the parameters of the next reply. Its seed is random if unset, else the setting plus `attempt`."""
        seed = self.sampling.get("seed")
        seed = int.from_bytes(os.urandom(4)) if seed is None else (seed + attempt) % 2**64
        return SamplingParams(**{**self.sampling, "seed": seed})

    def as_record(self) -> dict[str, Any]:
        """Return the conversation as JSON types; `from_record` reads it."""
        return {
            "model": self.model,
            "system": self.system,
            "sampling": dict(self.sampling),
            "messages": [_as_record(message) for message in self.messages],
        }

    def _last_user_index(self) -> int:
        for index in reversed(range(len(self.messages))):
            if self.messages[index].role == "user":
                return index
        raise InvalidArgumentError("Nothing was said yet; write a message first.")

    @classmethod
    def from_record(cls, record: Any, default: Conversation) -> Conversation:
        """Read what `as_record` wrote. Fields that are absent come from `default`, except messages.

        Raises InvalidArgumentError that names the field.
        """
        _require(isinstance(record, dict), f"it holds a JSON {type(record).__name__}, not an object")
        names = {"model", "system", "sampling", "messages"}
        for name in record:
            _require(name in names, f"it has an unknown key {name!r}{did_you_mean(name, names)}")
        _require("messages" in record, 'it has no "messages"')
        model, system = record.get("model", default.model), record.get("system", default.system)
        _require(isinstance(model, str), '"model" is not a text')
        _require(system is None or isinstance(system, str), '"system" is neither a text nor null')
        _require(isinstance(record["messages"], list), '"messages" is not a list')
        messages = [_from_record(message, f"messages[{i}]") for i, message in enumerate(record["messages"])]
        sampling = record.get("sampling", default.sampling)
        _require(isinstance(sampling, dict), '"sampling" is not an object')
        for name in sampling:
            _require(name in SETTINGS, f'"sampling" has an unknown key {name!r}{did_you_mean(name, SETTINGS)}')
        SamplingParams(**sampling)
        return cls(model, system, sampling, messages)


def parse_setting(text: str) -> Any:
    """Parse a value: JSON (0.7, true, ["a", "b"]), `none`, else the text itself."""
    if text.lower() == "none":
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _as_record(message: ConversationMessage) -> dict[str, Any]:
    record: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.is_interrupted:
        record["interrupted"] = True
    if message.tool_calls:
        record["tool_calls"] = list(message.tool_calls)
    if message.tool_call_id is not None:
        record["tool_call_id"] = message.tool_call_id
    return record


def _from_record(record: Any, where: str) -> ConversationMessage:
    _require(isinstance(record, Mapping), f"{where} is not an object")
    names = ("role", "content", "interrupted", "tool_calls", "tool_call_id")
    for name in record:
        _require(name in names, f"{where} has an unknown key {name!r}")
    role, content, is_interrupted = record.get("role"), record.get("content"), record.get("interrupted", False)
    roles = ("user", "assistant", "tool")
    _require(role in roles, f"the role of {where} is {role!r}, neither 'user' nor 'assistant' nor 'tool'")
    _require(isinstance(content, str), f"the content of {where} is not a text")
    _require(isinstance(is_interrupted, bool), f'"interrupted" of {where} is neither true nor false')
    calls, call_id = record.get("tool_calls", []), record.get("tool_call_id")
    is_list = isinstance(calls, list) and all(map(_is_call, calls))
    _require(is_list, f'"tool_calls" of {where} is not a list of calls')
    _require(call_id is None or isinstance(call_id, str), f'"tool_call_id" of {where} is not a text')
    return ConversationMessage(role, content, is_interrupted, tuple(calls), call_id)


def _is_call(call: Any) -> bool:
    function = call.get("function") if isinstance(call, dict) else None
    return isinstance(function, dict) and all(isinstance(function.get(name), str) for name in ("name", "arguments"))


def _require(condition: bool, problem: str) -> None:
    if not condition:
        end = "" if problem.endswith(("?", ".")) else "."
        raise InvalidArgumentError(f"This is not a saved conversation: {problem}{end}")


def save_conversation(conversation: Conversation, file: str) -> Path:
    """Write a conversation as JSON. An existing file is replaced only if it holds a conversation.

    Raises InvalidArgumentError.
    """
    path = _path(file)
    if os.path.lexists(path):
        try:
            load_conversation(file, conversation)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{path} exists and is something else; choose another name.") from error
    text = json.dumps(conversation.as_record(), indent=2, ensure_ascii=False) + "\n"
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except (OSError, ValueError) as error:
        with suppress(OSError, ValueError):
            temporary.unlink()
        raise InvalidArgumentError(f"{path} cannot be written: {getattr(error, 'strerror', None) or error}.") from error
    return path


def load_conversation(file: str, default: Conversation) -> Conversation:
    """Read a conversation. Fields that the file lacks come from `default`.

    Raises InvalidArgumentError that names the file and the error.
    """
    path = _path(file)
    try:
        if path.exists() and not path.is_file():
            raise InvalidArgumentError(f"{path} is not a regular file, so it holds no conversation.")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidArgumentError(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise InvalidArgumentError(f"{path} is not a saved conversation: it is not UTF-8 text ({error}).") from error
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"{path} is not a saved conversation: it is not JSON ({error}).") from error
    try:
        return Conversation.from_record(record, default)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{path} cannot be loaded. {error}") from error


def _path(file: str) -> Path:
    path = env.expand_home(file)
    if not path.name:
        raise InvalidArgumentError(f"{path} is a directory; add the name of a file.")
    return path
