"""A conversation with tool calls, rendered by a model's chat template and parsed back by its answer format.

The template shows how the model was trained to write calls, so what it writes of a call has to be read as that call.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from aethermind.errors import TokenizerError
from aethermind.text.answer_parser import new_parser
from aethermind.text.answer_parts import ToolCall
from aethermind.text.chat_prompt import Message, chat_prompt, choose_template
from aethermind.text.chat_template import tests_null_content
from aethermind.text.detokenizer import Detokenizer

if TYPE_CHECKING:
    from aethermind.text.answer_format import AnswerFormat
    from aethermind.text.tokenizer import Tokenizer

__all__ = ["ProbedAnswer", "probe_tool_calls", "tool_call_warning"]

Call = tuple[str, dict[str, Any]]
"""A function's name and its arguments."""

_USER = {"role": "user", "content": "What is the weather in Rome, and what is the price of a Caffè?"}
_CALLS: tuple[Call, ...] = (
    ("get_weather", {"city": "Rome", "days": 3, "metric": True}),
    ("find_price", {"text": 'a "Caffè", it\'s 5\n{small}', "number": "12", "shops": ["Bar", "Roma"]}),
)
"""Calls with values of each kind, among them a text that looks like a number, quotes and a line break."""

_TYPES = {str: {"type": "string"}, int: {"type": "integer"}, bool: {"type": "boolean"}, list: {"type": "array"}}
_TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Looks something up.",
            "parameters": {
                "type": "object",
                "properties": {key: _TYPES[type(value)] for key, value in arguments.items()},
                "required": list(arguments),
            },
        },
    }
    for name, arguments in _CALLS
]


@dataclass(frozen=True, slots=True)
class ProbedAnswer:
    """An answer with calls: its text as the template writes it, the calls in it, and those that were read from it."""

    text: str
    calls: tuple[Call, ...]
    found: tuple[Call, ...]

    @property
    def is_right(self) -> bool:
        """Whether the names and arguments that were read are those of the calls."""
        return self.calls == self.found


def probe_tool_calls(tokenizer: Tokenizer, format: AnswerFormat) -> list[ProbedAnswer]:
    """Render an answer with two calls, and parse it; two answers with a call each where the template allows one only.

    Raises TokenizerError where there is no chat template, or where it refuses or fails on calls.
    """
    try:
        both = [_probe(tokenizer, format, _CALLS)]
    except TokenizerError:
        return [_probe(tokenizer, format, [call]) for call in _CALLS]
    if both[0].is_right or len(both[0].found) > 1:
        return both
    separate = [_probe(tokenizer, format, [call]) for call in _CALLS]  # gpt-oss writes the first call only
    return separate if all(answer.is_right for answer in separate) else both


def tool_call_warning(tokenizer: Tokenizer, format: AnswerFormat) -> str | None:
    """Return why calls of a model will not be read, and what to do; None if they will, or if its chat templates have no
    tools. Takes milliseconds, and nothing for templates and formats that were checked before.
    """
    templates = tuple(tokenizer.chat_templates.values())
    if not any("tools" in template for template in templates):
        return None
    key = (templates, format)
    if key not in _warnings:
        if len(_warnings) >= _MAX_WARNINGS:
            _warnings.clear()
        _warnings[key] = _warning(tokenizer, format)
    return _warnings[key]


_MAX_WARNINGS = 64
_warnings: dict[tuple[tuple[str, ...], AnswerFormat], str | None] = {}


def _warning(tokenizer: Tokenizer, format: AnswerFormat) -> str | None:
    try:
        answers = probe_tool_calls(tokenizer, format)
    except TokenizerError:
        return None  # templates for tools may refuse earlier calls; a conversation with one gets their error
    for answer in answers:
        if answer.is_right or not all(name in answer.text for name, _ in answer.calls):
            continue  # some templates leave calls out of the history
        found = dict(answer.found)
        name, arguments = next((one for one in answer.calls if found.get(one[0]) != one[1]), answer.calls[0])
        result = f"its arguments are read as {found[name]}" if name in found else "it is not read as a call"
        text = " ".join(answer.text.split())
        return (
            f"the chat template writes a call of {name} with {arguments}, and {result}: {text[:200]!r}. Serve a chat "
            "template whose calls are read (--chat-template FILE), or install a package with the model's format (hook "
            "register_answer_formats). `aethermind tools check MODEL` shows the calls."
        )
    return None


def _probe(tokenizer: Tokenizer, format: AnswerFormat, calls: Sequence[Call]) -> ProbedAnswer:
    text = _shown(tokenizer, format, _answer(tokenizer, calls))
    parser = new_parser(format, functions={tool["function"]["name"]: tool["function"]["parameters"] for tool in _TOOLS})
    parts = [*parser.push(text), *parser.finish()]
    found = tuple((part.name, json.loads(part.arguments)) for part in parts if isinstance(part, ToolCall))
    return ProbedAnswer(text, tuple(calls), found)


def _answer(tokenizer: Tokenizer, calls: Sequence[Call]) -> str:
    """Return what the template writes of an answer, without the text before it, which is the end of a prompt."""
    prompt = chat_prompt(tokenizer, [_USER], tools=_TOOLS, add_generation_prompt=False)
    header = chat_prompt(tokenizer, [_USER], tools=_TOOLS)[len(prompt) :]
    template = choose_template(tokenizer.chat_templates, None, has_tools=True)
    content = None if tests_null_content(template) else ""
    error: TokenizerError | None = None
    for keep_json_text in (False, True):
        try:
            messages: list[Message] = [
                _USER,
                {"role": "assistant", "content": content, "tool_calls": _calls(calls, keep_json_text)},
            ]
            whole = chat_prompt(tokenizer, messages, tools=_TOOLS, add_generation_prompt=False)
        except TokenizerError as caught:
            error = error or caught
            continue
        answer = whole[_num_shared(prompt, whole) :]
        shared = _num_shared(header, answer)
        if shared < len(header):  # the header opens reasoning that the answer does not have, for example
            shared = 1 + max(answer.rfind(end, 0, shared) for end in ("\n", ">", "]"))
        return answer[shared:]
    assert error is not None
    raise error


def _calls(calls: Sequence[Call], keep_json_text: bool) -> list[dict[str, Any]]:
    """Return the calls of a message, with arguments as objects or as JSON text (DeepSeek)."""
    return [
        {
            "id": f"call0000{index}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments) if keep_json_text else arguments},
        }
        for index, (name, arguments) in enumerate(calls)
    ]


def _num_shared(first: str, second: str) -> int:
    """Return the number of characters with which both texts begin."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


def _shown(tokenizer: Tokenizer, format: AnswerFormat, answer: str) -> str:
    """Return the text that the server has of an answer, up to the special token that ends it."""
    visible = {tokenizer.token_to_id(token) for token in format.control_tokens}
    token_ids = {token_id for token_id in visible if token_id is not None}
    detokenizer, text = Detokenizer(tokenizer, visible_token_ids=token_ids), ""
    for token_id in tokenizer.encode(answer):
        if token_id in tokenizer.special_token_ids - token_ids:
            break
        text += detokenizer.push(token_id)
    return text + detokenizer.flush()
