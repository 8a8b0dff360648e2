"""Calls that the model decides to write follow the schemas of the tools from the opening tag on, in every format."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import openai
import pytest
from tests.core.text import test_tool_call_probe as probe
from tests.server.conftest import serving

from aethermind import LLM, Runtime
from aethermind.sampling import guidance
from aethermind.sampling.guidance import Grammars
from aethermind.sampling.structural_tags import TriggeredGuide
from aethermind.server.openai.tools import Tool, auto_constraint
from aethermind.text import tool_call_probe
from aethermind.text.answer_format import (
    DEEPSEEK_CALLS,
    HERMES_CALLS,
    MISTRAL_CALLS,
    PHI_CALLS,
    XML_CALLS,
    AnswerFormat,
    CallSyntax,
)
from aethermind.text.answer_parser import new_parser
from aethermind.text.answer_parts import ToolCall
from aethermind.text.detokenizer import Detokenizer
from aethermind.text.harmony import HARMONY_TOKENS
from aethermind.text.tokenizer import Tokenizer
from aethermind.text.tool_call_syntax import read_any

MESSAGES: Any = [{"role": "user", "content": "Tell me a story about a fox."}]
SCHEMAS: dict[str, dict[str, Any]] = {
    "get_weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "enum": ["Rome", "Oslo"]},
            "days": {"type": "integer", "minimum": 1, "maximum": 14},
            "metric": {"type": "boolean"},
        },
        "required": ["city", "days"],
        "additionalProperties": False,
    },
    "now": {"type": "object", "properties": {}, "additionalProperties": False},
}
TOOLS = [
    Tool.model_validate({"type": "function", "function": {"name": name, "parameters": schema}})
    for name, schema in SCHEMAS.items()
]
FORMATS: dict[str, AnswerFormat] = {
    "hermes": AnswerFormat(("<think>", "</think>"), (HERMES_CALLS,)),
    "phi": AnswerFormat(tool_calls=(PHI_CALLS,)),
    "mistral": AnswerFormat(tool_calls=(MISTRAL_CALLS,)),
    "deepseek": AnswerFormat(("<think>", "</think>"), (DEEPSEEK_CALLS,)),
    "xml": AnswerFormat(tool_calls=(XML_CALLS,)),
    "harmony": AnswerFormat(is_harmony=True),
    "bare": AnswerFormat(has_bare_calls=True),
}
ADDED = dict.fromkeys(
    [
        *("<think>", "</think>", "<tool_call>", "</tool_call>", "<|tool_call|>", "<|/tool_call|>"),
        *("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", DEEPSEEK_CALLS.opening, DEEPSEEK_CALLS.closing),
        *(*DEEPSEEK_CALLS.inner, *HARMONY_TOKENS),
    ]
)


@pytest.fixture(scope="module")
def tokenizer(runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """The demo model's tokenizer with the tags of all families; those of Hermes are not special, as in Qwen's."""
    source = Path(runtime.models.locate("demo"))
    content = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
    for number, tag in enumerate(ADDED):
        is_special = "tool_call>" not in tag and "think>" not in tag
        token = {"id": 2048 + number, "content": tag, "special": is_special, "normalized": False}
        content["added_tokens"].append(token | dict.fromkeys(("single_word", "lstrip", "rstrip"), False))
    folder = tmp_path_factory.mktemp("tags")
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    return Tokenizer.from_directory(folder)


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> Grammars:
    def token_bytes(token_id: int) -> bytes:
        known = tokenizer.token_bytes(token_id)
        assert known is not None
        return known

    vocab_size = 2048 + len(ADDED)
    return Grammars(tokenizer.as_json, vocab_size, [2045], token_bytes=token_bytes, token_to_id=tokenizer.token_to_id)


def guide_of(grammars: Grammars, format: AnswerFormat, **options: Any) -> TriggeredGuide:
    constraint = auto_constraint(TOOLS, format, **{"is_thinking": False, **options})
    assert constraint is not None
    guide = grammars.guide(constraint)
    assert isinstance(guide, TriggeredGuide)
    return guide


def shown(tokenizer: Tokenizer, token_ids: list[int]) -> str:
    """The text of an answer as the server sees it, with the tags."""
    visible = {token_id for tag in ADDED if (token_id := tokenizer.token_to_id(tag)) is not None}
    detokenizer = Detokenizer(tokenizer, visible_token_ids=visible)
    return "".join(map(detokenizer.push, token_ids)) + detokenizer.flush()


def parsed(format: AnswerFormat, text: str) -> list[Any]:
    parser = new_parser(format, functions=SCHEMAS)
    return [*parser.push(text), *parser.finish()]


def openings(format: AnswerFormat) -> list[str]:
    if format.is_harmony:
        header = "<|channel|>commentary to=functions"
        return [header, f"<|start|>assistant{header}", " to=functions."]
    return [one.opening for one in format.tool_calls] or [f'{{"name": "{name}"' for name in SCHEMAS]


@pytest.mark.parametrize("name", FORMATS)
def test_random_tokens_within_the_constraint_are_calls_that_fit_the_schemas(
    name: str, tokenizer: Tokenizer, grammars: Grammars
) -> None:
    format, mask = FORMATS[name], np.zeros((2048 + len(ADDED) + 31) // 32, np.int32)
    functions_seen = set()
    for seed in range(24):
        chooser = random.Random(seed)
        guide = guide_of(grammars, format)
        opening = openings(format)[seed % len(openings(format))]
        output = tokenizer.encode("Let me see: 1 < 2." * bool(format.tool_calls) + opening)
        assert guide.is_active(output)
        num_tag = len(output)
        while guide.is_active(output) and len(output) < num_tag + 400:
            if forced := guide.forced(output):
                output += forced
                continue
            guide.fill(output, mask)
            bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
            allowed = np.flatnonzero(bits).tolist()
            if allowed and set(allowed) & {2045}:
                break
            output.append(chooser.choice(allowed))
        parts = parsed(format, shown(tokenizer, output))
        calls = [part for part in parts if isinstance(part, ToolCall)]
        assert calls, shown(tokenizer, output)
        assert all(isinstance(part, ToolCall) or "1 < 2" in part.text for part in parts)
        for call in calls:
            functions_seen.add(call.name)
            jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])
    assert functions_seen == set(SCHEMAS)


def feed(guide: TriggeredGuide, output: list[int]) -> list[bool]:
    """Whether the next token is constrained, after each token."""
    return [guide.is_active(output[: count + 1]) for count in range(len(output))]


def test_text_without_a_tag_is_free(tokenizer: Tokenizer, grammars: Grammars) -> None:
    text = '<b>1 < 2</b> [TOOL] <tool <|tool {"name": "get_weather"}'
    for name in ("hermes", "phi", "mistral", "deepseek"):
        assert not any(feed(guide_of(grammars, FORMATS[name]), tokenizer.encode(text)))


def test_a_tag_of_several_tokens_constrains_from_its_beginning_on(tokenizer: Tokenizer, grammars: Grammars) -> None:
    """The token that completes the tag could go on with the name of no function."""
    output = tokenizer.encode("a <b> <function=now>\n</function> b")
    text = ["".join(shown(tokenizer, output[: count + 1])) for count in range(len(output))]
    constrained = [
        text
        for text, is_active in zip(text, feed(guide_of(grammars, FORMATS["xml"]), output), strict=True)
        if is_active
    ]
    assert "a <b> <function=" in constrained
    assert "a <" in constrained
    assert "a <b" not in constrained
    assert "a <b> <function=now>\n</function>" not in constrained
    assert text[-1] not in constrained


@pytest.mark.parametrize(
    ("text", "is_active"),
    [
        ('{"name": "now', True),
        ('\n {"name": "now", "par', True),
        ('{"name": "Ann", "age": 7}', False),
        ('{"names": ["now"', False),
        ('Call {"name": "now", ', False),
        ('[1, 2] {"name": "now", ', False),
    ],
)
def test_a_call_without_tags_begins_an_answer(
    tokenizer: Tokenizer, grammars: Grammars, text: str, is_active: bool
) -> None:
    assert guide_of(grammars, FORMATS["bare"]).is_active(tokenizer.encode(text)) is is_active
    behind = tokenizer.encode(f"<think>{text}</think>{text}")
    format = replace(FORMATS["bare"], reasoning=("<think>", "</think>"))
    assert guide_of(grammars, format).is_active(behind) is is_active


@pytest.mark.parametrize("is_thinking", [False, True])
def test_tags_in_reasoning_are_free(tokenizer: Tokenizer, grammars: Grammars, is_thinking: bool) -> None:
    thought = "<think>" * (not is_thinking) + "I could write <tool_call> here."
    for rest, is_active in (("", False), ("</think> Well.", False), ("</think>\n<tool_call>", True)):
        guide = guide_of(grammars, FORMATS["hermes"], is_thinking=is_thinking)
        assert guide.is_active(tokenizer.encode(thought + rest)) is is_active


def test_a_schema_that_cannot_be_served_leaves_its_arguments_free(
    tokenizer: Tokenizer, grammars: Grammars, caplog: pytest.LogCaptureFixture
) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=x)y"}}, "required": ["a"]}
    tool = Tool.model_validate({"type": "function", "function": {"name": "odd", "parameters": schema}})
    constraint = auto_constraint([tool], FORMATS["hermes"], is_thinking=False)
    assert constraint is not None
    guide = grammars.guide(constraint)
    output = tokenizer.encode('<tool_call>{"name": "odd", "arguments": {"b": [1]}}</tool_call>')
    assert guide.is_active(output[:1])
    assert guide.is_active(output[:-1])
    assert not guide.is_active(output)
    assert "not constrained" in caplog.text


@pytest.mark.parametrize(
    ("schema", "written"),
    [
        ({"properties": {"a": {"type": ["string", "null"]}}}, "so"),
        ({"properties": {"a": {"type": ["integer", "null"]}}}, "7"),
        ({"properties": {"a": {"type": [{}]}}}, "so"),
        ({"properties": {"a": {"type": "string", "enum": 5}}, "required": True}, "so"),
        ({"properties": ["a"]}, "so"),
        ({"type": "object"}, "so"),
        ({"type": "object", "properties": {}, "additionalProperties": {"type": "string"}}, "so"),
        ({"$ref": "#/$defs/one", "$defs": {"one": {"type": "object", "properties": {"a": {}}}}}, "so"),
        ({"anyOf": [{"type": "object", "properties": {"a": {"type": "string"}}}, {"type": "object"}]}, "so"),
    ],
    ids=str,
)
def test_elements_are_written_for_every_schema(
    tokenizer: Tokenizer, grammars: Grammars, schema: dict[str, Any], written: str
) -> None:
    tool = Tool.model_validate({"type": "function", "function": {"name": "f", "parameters": schema}})
    constraint = auto_constraint([tool], FORMATS["xml"], is_thinking=False)
    assert constraint is not None
    guide = grammars.guide(constraint)
    output = tokenizer.encode(f"<function=f>\n<parameter=a>\n{written}\n</parameter>\n</function>")
    assert guide.is_active(output[:-1])
    assert not guide.is_active(output)


def test_without_the_library_calls_are_free(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is an extra; tools worked without it, and still do."""

    def missing(name: str) -> Any:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(guidance, "import_module", missing)
    own = Grammars(
        tokenizer.as_json, 2048, [2045], token_bytes=lambda _: b"<tool_call>", token_to_id=tokenizer.token_to_id
    )
    for _ in range(2):
        guide = guide_of(own, FORMATS["hermes"])
        assert not guide.is_active(tokenizer.encode("<tool_call>"))
        assert guide.forced(tokenizer.encode("<tool_call>")) == []
    (record,) = [record for record in caplog.records if "Tool calls are not constrained" in record.message]
    assert "pip install" in record.message


def test_tools_that_are_not_strict_have_any_object(tokenizer: Tokenizer, grammars: Grammars) -> None:
    tool = TOOLS[0].model_copy(update={"function": TOOLS[0].function.model_copy(update={"strict": False})})
    constraint = auto_constraint([tool], FORMATS["hermes"], is_thinking=False)
    assert constraint is not None
    output = tokenizer.encode('<tool_call>\n{"name": "get_weather", "arguments": {"town": 1}}')
    assert grammars.guide(constraint).is_active(output)


@pytest.mark.parametrize(
    ("template", "calls"),
    [
        pytest.param(probe.CHATML.replace("CALL", probe.HERMES), HERMES_CALLS, id="hermes"),
        pytest.param(probe.CHATML.replace("CALL", probe.QWEN3_CODER), HERMES_CALLS, id="qwen3_coder"),
        pytest.param(probe.CHATML.replace("CALL", probe.GLM), HERMES_CALLS, id="glm"),
        pytest.param(probe.MISTRAL_V3, MISTRAL_CALLS, id="mistral_v3"),
        pytest.param(probe.MISTRAL_V11, MISTRAL_CALLS, id="mistral_v11"),
        pytest.param(probe.DEEPSEEK_R1, DEEPSEEK_CALLS, id="deepseek_r1"),
    ],
)
def test_calls_as_chat_templates_write_them_are_within_the_constraint(
    tokenizer: Tokenizer, grammars: Grammars, template: str, calls: CallSyntax
) -> None:
    """The model was trained to write calls so: no token of them may be excluded."""
    templated = tokenizer.with_chat_template(template)
    format = AnswerFormat().for_tokens(templated)
    tools = [Tool.model_validate(tool) for tool in tool_call_probe._TOOLS]
    (answer,) = tool_call_probe.probe_tool_calls(templated, format)
    constraint = auto_constraint(tools, format, is_thinking=False)
    assert constraint is not None
    guide, output, mask = grammars.guide(constraint), [], np.zeros((2048 + len(ADDED) + 31) // 32, np.int32)
    num_constrained = 0
    token_ids = tokenizer.encode(answer.text.removesuffix("</s>").replace("\\u00e8", "è"))
    for token_id in token_ids:
        guide.fill(output, mask)
        num_constrained += guide.is_active(output)
        assert int(mask[token_id // 32]) >> (token_id % 32) & 1, shown(tokenizer, output)
        output.append(token_id)
    assert num_constrained > 0.8 * len(token_ids)
    assert calls.opening in answer.text


WORD_CALLS = '{"name": "NAME", "arguments": JSON}'


@pytest.fixture(scope="module")
def calling(runtime: Runtime) -> Iterator[tuple[openai.OpenAI, str]]:
    """A client of a server whose model writes a tag by itself: a word of its answers counts as one."""
    llm = LLM(device="cpu", dtype="float32", runtime=runtime, max_model_len=512)
    ask: Any = {"messages": MESSAGES, "model": "demo", "temperature": 0, "max_tokens": 60}
    with serving(llm) as address, openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        words = (client.chat.completions.create(**ask).choices[0].message.content or "").split()
    opening = words[4]
    syntax = CallSyntax(opening, "!", read_any, written=(f" {WORD_CALLS} ",))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(llm.engine, "parts", replace(llm.engine.parts, answer_format=AnswerFormat(tool_calls=(syntax,))))
        template = llm.tokenizer.with_chat_template("{% set t = tools %}" + str(llm.tokenizer.chat_template))
        patch.setattr(llm, "tokenizer", template)
        with serving(llm) as address, openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
            yield client, " ".join(words[:4])


@pytest.mark.parametrize(
    "options", [{}, {"n": 2}, {"logprobs": True, "top_logprobs": 2}, {"temperature": 1, "seed": 3}]
)
def test_whole_and_streamed_answers_have_valid_calls(calling: tuple[openai.OpenAI, str], options: Any) -> None:
    client, beginning = calling
    tools: Any = [tool.model_dump(exclude_none=True) for tool in TOOLS]
    ask: Any = {"messages": MESSAGES, "model": "demo", "temperature": 0, "max_tokens": 60, "tools": tools, **options}
    whole = client.chat.completions.create(**ask)
    with client.chat.completions.stream(**ask) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_completion()
    for one, other in zip(whole.choices, streamed.choices, strict=True):
        calls = one.message.tool_calls or []
        if "temperature" not in options:
            assert one.message.content is not None
            assert one.message.content.startswith(beginning)
            assert calls
            assert one.finish_reason in ("tool_calls", "length")
        for call in calls:
            assert call.type == "function"
            jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])
        assert one.message.content == other.message.content
        assert [call.function.arguments for call in calls if call.type == "function"] == [
            call.function.arguments for call in other.message.tool_calls or ()
        ]
        assert one.finish_reason == other.finish_reason
        if "logprobs" in options:
            assert one.logprobs is not None
            assert "".join(token.token for token in one.logprobs.content or ()).count("get_weather") >= 1 or calls


def test_a_call_of_a_free_answer_is_as_without_tools(calling: tuple[openai.OpenAI, str]) -> None:
    client, _ = calling
    ask: Any = {"messages": MESSAGES, "model": "demo", "temperature": 0, "max_tokens": 4}
    tools: Any = [tool.model_dump(exclude_none=True) for tool in TOOLS]
    assert (
        client.chat.completions.create(**ask).choices[0].message.content
        == client.chat.completions.create(**ask, tools=tools).choices[0].message.content
    )
