"""The format of gpt-oss: what its chat template writes of a conversation is parsed back."""

from __future__ import annotations

from aethermind import Runtime
from aethermind.text import render_chat
from aethermind.text.answer_parser import new_parser
from aethermind.text.answer_parts import Content, Reasoning, ToolCall

TEMPLATE = (
    "{%- for message in messages -%}{%- if message.role == 'user' -%}"
    "<|start|>user<|message|>{{ message.content }}<|end|>{%- elif message.tool_calls -%}"
    "<|start|>assistant<|channel|>analysis<|message|>{{ message.thinking }}<|end|>"
    "{%- set call = message.tool_calls[0].function -%}"
    "<|start|>assistant to=functions.{{ call.name }}<|channel|>commentary json<|message|>{{ call.arguments|tojson }}"
    "<|call|>{%- else -%}<|start|>assistant<|channel|>final<|message|>{{ message.content }}<|return|>{%- endif -%}"
    "{%- endfor -%}{%- if add_generation_prompt -%}<|start|>assistant{%- endif -%}"
)
"""The parts of gpt-oss' template that write messages."""

USER = {"role": "user", "content": "Weather in Rome?"}
CALL = {"function": {"name": "weather", "arguments": {"city": "Rome"}}}


def test_what_the_template_writes_is_parsed_back(runtime: Runtime) -> None:
    format = runtime.answer_formats.find("GptOssForCausalLM")
    assert format is not None
    prompt = render_chat(TEMPLATE, [USER])
    answers = [
        (
            {"role": "assistant", "content": "", "reasoning_content": "A tool knows.", "tool_calls": [CALL]},
            [Reasoning("A tool knows."), ToolCall(0, "weather", '{"city": "Rome"}')],
        ),
        ({"role": "assistant", "content": "Sunny."}, [Content("Sunny.")]),
    ]
    for message, expected in answers:
        whole = render_chat(TEMPLATE, [USER, message], add_generation_prompt=False)
        assert whole.startswith(prompt)
        parser = new_parser(format, functions=["weather"])
        assert [*parser.push(whole[len(prompt) :]), *parser.finish()] == expected
