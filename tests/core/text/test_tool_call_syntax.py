"""Tool calls as each family writes them: names and arguments come back, however the text is cut."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.text.test_answer_parser import parse

from aethermind.plugins.compatibility import DeprecatedUseWarning
from aethermind.text.answer_format import (
    DEEPSEEK_CALLS,
    HERMES_CALLS,
    LLAMA4_CALLS,
    MISTRAL_CALLS,
    PHI_CALLS,
    PYTHON_TAG_CALLS,
    XML_CALLS,
    AnswerFormat,
    CallSyntax,
)
from aethermind.text.answer_parts import Content, Reasoning, ToolCall

Call = tuple[str, dict[str, Any]]

SCHEMA = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "count": {"type": "integer"}, "exact": {"type": "boolean"}},
}
FUNCTIONS = {"find": SCHEMA, "get_weather": SCHEMA}


def as_json(call: Call) -> str:
    return json.dumps({"name": call[0], "arguments": call[1]})


def as_xml(call: Call) -> str:
    """As Qwen3-Coder's template."""
    values = ((key, value if isinstance(value, str) else json.dumps(value)) for key, value in call[1].items())
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values)
    return f"<function={call[0]}>\n{parameters}</function>"


def as_keys(call: Call) -> str:
    """As GLM-4.5's template."""
    values = ((key, value if isinstance(value, str) else json.dumps(value)) for key, value in call[1].items())
    return call[0] + "".join(f"\n<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>" for key, value in values)


def as_python(call: Call) -> str:
    return f"{call[0]}({', '.join(f'{key}={value!r}' for key, value in call[1].items())})"


def deepseek_v3(call: Call) -> str:
    head = f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{call[0]}"
    return f"{head}\n```json\n{json.dumps(call[1], ensure_ascii=False)}\n```<｜tool▁call▁end｜>"


def deepseek_v3_1(call: Call) -> str:
    return f"<｜tool▁call▁begin｜>{call[0]}<｜tool▁sep｜>{json.dumps(call[1])}<｜tool▁call▁end｜>"


class Family(NamedTuple):
    syntaxes: tuple[CallSyntax, ...]
    write: Callable[[list[Call]], str]
    forbidden: str = ""
    """A text that no argument can contain, because the format cannot quote it."""
    has_bare_calls: bool = False


FAMILIES = {
    "hermes": Family(
        (HERMES_CALLS,), lambda calls: "\n".join(f"<tool_call>\n{as_json(call)}\n</tool_call>" for call in calls)
    ),
    "qwen3_coder": Family(
        (HERMES_CALLS, XML_CALLS),
        lambda calls: "\n".join(f"<tool_call>\n{as_xml(call)}\n</tool_call>" for call in calls),
        "</",
    ),
    "qwen3_coder_without_tags": Family((HERMES_CALLS, XML_CALLS), lambda calls: "\n".join(map(as_xml, calls)), "</"),
    "glm": Family(
        (HERMES_CALLS,), lambda calls: "\n".join(f"<tool_call>{as_keys(call)}\n</tool_call>" for call in calls), "</"
    ),
    "phi": Family((PHI_CALLS,), lambda calls: f"<|tool_call|>[{', '.join(map(as_json, calls))}]<|/tool_call|>"),
    "granite": Family((PHI_CALLS,), lambda calls: f"<|tool_call|>[{', '.join(map(as_json, calls))}]"),
    "mistral_v3": Family((MISTRAL_CALLS,), lambda calls: f"[TOOL_CALLS][{', '.join(map(as_json, calls))}]"),
    "mistral_v11": Family(
        (MISTRAL_CALLS,), lambda calls: "".join(f"[TOOL_CALLS]{name}[ARGS]{json.dumps(a)}" for name, a in calls)
    ),
    "deepseek_v3": Family(
        (DEEPSEEK_CALLS,),
        lambda calls: f"<｜tool▁calls▁begin｜>{chr(10).join(map(deepseek_v3, calls))}<｜tool▁calls▁end｜>",
    ),
    "deepseek_v3_1": Family(
        (DEEPSEEK_CALLS,),
        lambda calls: f"<｜tool▁calls▁begin｜>{''.join(map(deepseek_v3_1, calls))}<｜tool▁calls▁end｜>",
    ),
    "python_tag": Family((PYTHON_TAG_CALLS,), lambda calls: f"<|python_tag|>[{', '.join(map(as_python, calls))}]"),
    "llama4": Family(
        (LLAMA4_CALLS,), lambda calls: f"<|python_start|>[{', '.join(map(as_python, calls))}]<|python_end|>"
    ),
    "llama3_2": Family((), lambda calls: f"[{', '.join(map(as_python, calls))}]", "", has_bare_calls=True),
}

TEXTS = st.text("ab<>/[]{}()\"'`\\\n é", max_size=8) | st.sampled_from(["5", "true", "null", "[TOOL", "it's"])
ARGUMENTS = st.fixed_dictionaries(
    {}, optional={"text": TEXTS, "count": st.integers(-9, 10**6), "exact": st.booleans(), "other": st.lists(TEXTS)}
)
CALLS = st.lists(st.tuples(st.sampled_from(sorted(FUNCTIONS)), ARGUMENTS), min_size=1, max_size=3)
CUTS = st.lists(st.integers(0, 300), max_size=12)


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    return [text[begin:end] for begin, end in pairwise(places)]


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=40)
@given(calls=CALLS, cuts=CUTS, words=st.sampled_from(["", "I look.", "<think>Hm.</think>"]))
def test_calls_come_back(name: str, calls: list[Call], cuts: list[int], words: str) -> None:
    family = FAMILIES[name]
    if family.forbidden:
        calls = [(name, json.loads(json.dumps(a).replace(family.forbidden, "-"))) for name, a in calls]
    format = AnswerFormat(("<think>", "</think>"), family.syntaxes, family.has_bare_calls)
    if family.has_bare_calls and words == "I look.":
        words = ""
    parts = parse(pieces_of(words + family.write(calls), cuts), format, functions=FUNCTIONS)
    before = {"": [], "I look.": [Content("I look.")], "<think>Hm.</think>": [Reasoning("Hm.")]}[words]
    assert parts[: len(before)] == before
    found = [(part.name, json.loads(part.arguments)) for part in parts[len(before) :] if isinstance(part, ToolCall)]
    assert found == calls
    assert len(parts) == len(before) + len(calls)


TAGS = sorted({tag for family in FAMILIES.values() for one in family.syntaxes for tag in (one.opening, one.closing)})
INNER = [tag for one in (MISTRAL_CALLS, DEEPSEEK_CALLS) for tag in one.inner]
BODIES = [
    "find",
    '{"name": "find"}',
    "find(x=1)",
    "[find()]",
    as_xml(("find", {"a": "b"})),
    "<arg_key>",
    "</arg_value>",
]
WORDS = st.text("ab \"'{}[]()\n", max_size=6) | st.sampled_from([*TAGS, *INNER, *BODIES, "<think>", "</think>"])


@pytest.mark.parametrize("has_control_tokens", [False, True])
@given(words=st.lists(WORDS, max_size=14), cuts=CUTS, is_thinking=st.booleans())
def test_cuts_do_not_matter(words: list[str], cuts: list[int], has_control_tokens: bool, is_thinking: bool) -> None:
    syntaxes = tuple({one.opening: one for family in FAMILIES.values() for one in family.syntaxes}.values())
    control = tuple(tag for tag in (*TAGS, *INNER) if tag) if has_control_tokens else ()
    format = AnswerFormat(("<think>", "</think>"), syntaxes, has_bare_calls=True, control_tokens=control)
    options: dict[str, Any] = {"functions": FUNCTIONS, "is_thinking": is_thinking}
    text = "".join(words)
    whole = parse([text], format, **options)
    assert parse(pieces_of(text, cuts), format, **options) == whole
    content = "".join(part.text for part in whole if not isinstance(part, ToolCall))
    assert not any(tag in content for tag in control)
    has_tags = is_thinking or text.lstrip().startswith("<think>") or any(isinstance(part, ToolCall) for part in whole)
    if not control and not has_tags:
        assert "".join(content.split()) == "".join(text.split())


@pytest.mark.parametrize(
    ("syntax", "text", "expected"),
    [
        (PYTHON_TAG_CALLS, 'brave_search.call(query="x")', [("brave_search", {"query": "x"})]),
        (PYTHON_TAG_CALLS, '{"name": "find", "parameters": {"a": 1}}', [("find", {"a": 1})]),
        (PYTHON_TAG_CALLS, "find(a=true, b=None)", [("find", {"a": True, "b": None})]),
        (PYTHON_TAG_CALLS, "find(c={'k': [1.5, -2]})", [("find", {"c": {"k": [1.5, -2]}})]),
        (PYTHON_TAG_CALLS, "print('hi')", None),
        (PYTHON_TAG_CALLS, "find(a=__import__('os'))", None),
        (PYTHON_TAG_CALLS, "find(**a)", None),
        (PYTHON_TAG_CALLS, "find(a=1e999)", None),
        (MISTRAL_CALLS, 'find[CALL_ID]abc123def[ARGS]{"a": 1}', [("find", {"a": 1})]),
        (MISTRAL_CALLS, 'find{"a": 1}', [("find", {"a": 1})]),
        (MISTRAL_CALLS, "find[ARGS]{1}", None),
        (HERMES_CALLS, "find", [("find", {})]),
        (HERMES_CALLS, "some words", None),
        (HERMES_CALLS, "<function=find>\n<parameter=text>\n5\n</parameter>\n</function>", [("find", {"text": "5"})]),
        (HERMES_CALLS, "<function=new>\n<parameter=text>\n5\n</parameter>\n</function>", [("new", {"text": 5})]),
        (HERMES_CALLS, "<function=find><parameter=exact>True</parameter></function>", [("find", {"exact": True})]),
        (HERMES_CALLS, "<function=find><parameter=text>a\n\n</parameter></function>", [("find", {"text": "a\n"})]),
        (HERMES_CALLS, "<function=find>words</function>", None),
        (HERMES_CALLS, "find\n<arg_key>count</arg_key>\n<arg_value>1, 2</arg_value>", [("find", {"count": "1, 2"})]),
        (HERMES_CALLS, "find\n<arg_key>text</arg_key>", None),
    ],
)  # fmt: skip
def test_what_is_between_tags(syntax: CallSyntax, text: str, expected: list[Call] | None) -> None:
    functions = {**FUNCTIONS, "brave_search": None}
    calls = [(name, json.loads(arguments)) for name, arguments in syntax.read(text, functions)]
    assert calls == (expected or [])
    whole = syntax.opening + text + syntax.closing
    if expected is None:
        assert parse([whole], AnswerFormat(tool_calls=(syntax,)), functions=functions) == [Content(whole)]


def test_text_between_control_tokens_that_is_no_call_is_content_without_them() -> None:
    format = AnswerFormat(tool_calls=(PYTHON_TAG_CALLS,), control_tokens=("<|python_tag|>", "<|eom_id|>"))
    text = "<|python_tag|>print('hi')<|eom_id|> <|eom_id|>"
    assert parse([text], format, functions=FUNCTIONS) == parse(list(text), format, functions=FUNCTIONS)
    assert parse([text], format, functions=FUNCTIONS) == [Content("print('hi') ")]
    assert parse(["a<|eom_id|> b"], format) == [Content("a b")]


def test_a_call_that_the_model_writes_inside_of_its_reasoning() -> None:
    """A control token cannot be a word of the reasoning."""
    format = AnswerFormat(("[THINK]", "[/THINK]"), (MISTRAL_CALLS,), control_tokens=("[TOOL_CALLS]", "[THINK]"))
    parts = parse(["[THINK]Hm.[TOOL_CALLS]find[ARGS]{}"], format, functions=FUNCTIONS)
    assert parts == [Reasoning("Hm."), ToolCall(0, "find", "{}")]


def test_a_format_is_found_in_the_template_and_the_vocabulary() -> None:
    def tokenizer(template: str, *special: str) -> Any:
        ids = {token: place for place, token in enumerate(special)}
        return SimpleNamespace(
            token_to_id=ids.get, chat_templates={"default": template}, special_token_ids=frozenset(ids.values())
        )

    format = AnswerFormat().for_tokens(tokenizer("{{ '<tool_call>' }}"))
    assert (format.tool_calls, format.control_tokens) == ((HERMES_CALLS.as_in(""),), ())
    distilled = AnswerFormat(tool_calls=(HERMES_CALLS,)).for_tokens(tokenizer("{{ '<｜tool▁calls▁begin｜>' }}"))
    assert distilled.tool_calls == (HERMES_CALLS.as_in(""), DEEPSEEK_CALLS)
    magistral = AnswerFormat().for_tokens(tokenizer("[TOOL_CALLS]", "[THINK]", "[/THINK]", "[TOOL_CALLS]", "[ARGS]"))
    assert magistral.reasoning == ("[THINK]", "[/THINK]")
    assert magistral.control_tokens == ("[THINK]", "[/THINK]", "[TOOL_CALLS]", "[ARGS]")


def test_a_pair_of_tags_is_calls_of_any_syntax() -> None:
    """As plugins wrote it before there were syntaxes."""
    with pytest.warns(DeprecatedUseWarning, match="use AnswerFormat.tool_calls"):
        former = AnswerFormat(tool_call=("<call>", "</call>"))  # type: ignore[call-arg]
    assert former == AnswerFormat(None, ("<call>", "</call>"))  # type: ignore[arg-type]
    assert parse(['<call>{"name": "now", "arguments": {}}</call>'], former) == [ToolCall(0, "now", "{}")]
