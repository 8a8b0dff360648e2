"""The function calls of Llama's and Mistral's chat models are read from what they write."""

from __future__ import annotations

import pytest

from aethermind import Runtime
from aethermind.text.answer_parser import AnswerParser
from aethermind.text.answer_parts import Content, ToolCall

ROME = '{"city": "Rome"}'


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "MistralForCausalLM"])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f'{{"name": "weather", "parameters": {ROME}}}', [ToolCall(0, "weather", ROME)]),
        (f'[{{"name": "weather", "arguments": {ROME}}}]', [ToolCall(0, "weather", ROME)]),
        (
            f'<tool_call>\n{{"name": "weather", "arguments": {ROME}}}\n</tool_call>',
            [ToolCall(0, "weather", ROME)],
        ),
        ('{"name": "weather", "city": "Rome"}', [Content('{"name": "weather", "city": "Rome"}')]),
        ('{"name": "Rome"}', [Content('{"name": "Rome"}')]),
    ],
)
def test_calls_of_the_packages_models(runtime: Runtime, architecture: str, text: str, expected: list[object]) -> None:
    format = runtime.answer_formats.find(architecture)
    assert format is not None
    parser = AnswerParser(format, functions=("weather",))
    assert [*parser.push(text), *parser.finish()] == expected
