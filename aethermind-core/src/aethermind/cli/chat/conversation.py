"""A conversation as data: who said what, and under which settings it is answered. No terminal, no model."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from aethermind.config.suggest import did_you_mean
from aethermind.errors import InvalidArgumentError
from aethermind.sampling.generation_config import with_defaults
from aethermind.sampling.params import SamplingParams

__all__ = ["Conversation", "Message", "SETTINGS", "parse_setting"]

_NOT_HERE = ("n", "logprobs", "prompt_logprobs", "structured_outputs")
"""Parameters of sampling whose effect a chat would not show, or that cannot be written in it."""

SETTINGS = tuple(field.name for field in fields(SamplingParams) if field.init and field.name not in _NOT_HERE)
"""Names of what can be set: the parameters of sampling."""

_ALIASES = {"temp": "temperature"}
"""Short names, as the flags have them."""


@dataclass(frozen=True, slots=True)
class Message:
    """What one side said; an answer that was interrupted is only the beginning of one."""

    role: str
    content: str
    is_interrupted: bool = False


@dataclass(slots=True)
class Conversation:
    """Questions and answers in turn; only the last question may still lack its answer. Mutable."""

    model: str
    system: str | None = None
    sampling: dict[str, Any] = field(default_factory=dict)
    """Valid arguments for SamplingParams."""
    messages: list[Message] = field(default_factory=list)

    @property
    def num_turns(self) -> int:
        """Questions asked."""
        return sum(message.role == "user" for message in self.messages)

    @property
    def question(self) -> str:
        """The last question. Raises InvalidArgumentError if none was asked."""
        return self.messages[self._question_index()].content

    def prompt(self) -> list[dict[str, str]]:
        """All that a model sees, as messages for its chat template."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return system + [{"role": message.role, "content": message.content} for message in self.messages]

    def ask(self, text: str) -> None:
        """Add a question, in the place of a last one that got no answer: models are taught turns that alternate."""
        if self.messages and self.messages[-1].role == "user":
            self.messages.pop()
        self.messages.append(Message("user", text))

    def answer(self, text: str, *, is_interrupted: bool = False) -> None:
        """Add the answer to the last question."""
        self.messages.append(Message("assistant", text, is_interrupted))

    def undo(self) -> str:
        """Take back the last question with its answer; returns the question."""
        index = self._question_index()
        question = self.messages[index].content
        del self.messages[index:]
        return question

    def retract_answer(self) -> None:
        """Take back the answer to the last question, if there is one. InvalidArgumentError where nothing was asked."""
        del self.messages[self._question_index() + 1 :]

    def edit(self, text: str) -> None:
        """Put `text` in the place of the last question, and take its answer back."""
        self.undo()
        self.ask(text)

    def clear(self) -> None:
        """Forget what was said; system text and settings stay."""
        self.messages.clear()

    def set(self, name: str, value: Any) -> str:
        """Change a setting; returns its name as it is written here.

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
        """Every setting with its value."""
        params = SamplingParams(**self.sampling)
        return {name: getattr(params, name) for name in SETTINGS}

    def params(self, attempt: int = 0) -> SamplingParams:
        """The parameters of the next answer, with a random seed if none is set; each attempt has a seed of its own."""
        seed = self.sampling.get("seed")
        seed = int.from_bytes(os.urandom(4)) if seed is None else (seed + attempt) % 2**64
        return SamplingParams(**{**self.sampling, "seed": seed})

    def as_record(self) -> dict[str, Any]:
        """The conversation as JSON types; `from_record` is the way back."""
        return {
            "model": self.model,
            "system": self.system,
            "sampling": dict(self.sampling),
            "messages": [_as_record(message) for message in self.messages],
        }

    def _question_index(self) -> int:
        for index in reversed(range(len(self.messages))):
            if self.messages[index].role == "user":
                return index
        raise InvalidArgumentError("Nothing was said yet; write a message first.")

    @classmethod
    def from_record(cls, record: Any, unsaid: Conversation) -> Conversation:
        """Read what `as_record` made; what a record has no word about is as in `unsaid`, messages excepted.

        Raises InvalidArgumentError that says what is wrong where.
        """
        _require(isinstance(record, dict), f"it holds a JSON {type(record).__name__}, not an object")
        names = {"model", "system", "sampling", "messages"}
        for name in record:
            _require(name in names, f"it has an unknown key {name!r}{did_you_mean(name, names)}")
        _require("messages" in record, 'it has no "messages"')
        model, system = record.get("model", unsaid.model), record.get("system", unsaid.system)
        _require(isinstance(model, str), '"model" is not a text')
        _require(system is None or isinstance(system, str), '"system" is neither a text nor null')
        _require(isinstance(record["messages"], list), '"messages" is not a list')
        messages = [_from_record(message, f"messages[{i}]") for i, message in enumerate(record["messages"])]
        sampling = record.get("sampling", unsaid.sampling)
        _require(isinstance(sampling, dict), '"sampling" is not an object')
        for name in sampling:
            _require(name in SETTINGS, f'"sampling" has an unknown key {name!r}{did_you_mean(name, SETTINGS)}')
        SamplingParams(**sampling)
        return cls(model, system, sampling, messages)


def parse_setting(text: str) -> Any:
    """A value as people write it: JSON where it is (0.7, true, ["a", "b"]), `none`, else the text itself."""
    if text.lower() == "none":
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _as_record(message: Message) -> dict[str, Any]:
    record: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.is_interrupted:
        record["interrupted"] = True
    return record


def _from_record(record: Any, where: str) -> Message:
    _require(isinstance(record, Mapping), f"{where} is not an object")
    for name in record:
        _require(name in ("role", "content", "interrupted"), f"{where} has an unknown key {name!r}")
    role, content, is_interrupted = record.get("role"), record.get("content"), record.get("interrupted", False)
    _require(role in ("user", "assistant"), f"the role of {where} is {role!r}, neither 'user' nor 'assistant'")
    _require(isinstance(content, str), f"the content of {where} is not a text")
    _require(isinstance(is_interrupted, bool), f'"interrupted" of {where} is neither true nor false')
    return Message(role, content, is_interrupted)


def _require(condition: bool, complaint: str) -> None:
    if not condition:
        end = "" if complaint.endswith(("?", ".")) else "."
        raise InvalidArgumentError(f"This is not a saved conversation: {complaint}{end}")
