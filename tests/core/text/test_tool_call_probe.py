"""Calls that chat templates write are read back; templates are written as those of the families are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tokenizers

from aethermind.errors import TokenizerError
from aethermind.text import AnswerFormat, Tokenizer, tool_call_probe
from aethermind.text.tool_call_probe import probe_tool_calls, tool_call_warning

CHATML = """{%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.content or '' }}{% for call in m.tool_calls or () %}CALL{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
<think>
{% endif %}"""
HERMES = """
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments|tojson }}}
</tool_call>"""
QWEN3_CODER = """
<tool_call>
<function={{ call.function.name }}>
{% for key, value in call.function.arguments|items %}<parameter={{ key }}>
{{ value if value is string else value|tojson }}
</parameter>
{% endfor %}</function>
</tool_call>"""
GLM = """
<tool_call>{{ call.function.name }}{% for key, value in call.function.arguments|items %}
<arg_key>{{ key }}</arg_key>
<arg_value>{{ value if value is string else value|tojson }}</arg_value>{% endfor %}
</tool_call>"""
LLAMA3_1 = """{{ '<s>' }}{%- for m in messages %}{% if m.tool_calls %}{% if m.tool_calls|length != 1 %}
{{- raise_exception('only single tool-calls at once!') }}{% endif %}{%- set call = m.tool_calls[0].function %}
{{- '<|im_start|>assistant\\n{"name": "' + call.name + '", "parameters": ' + call.arguments|tojson + '}<|im_end|>' }}
{%- else %}{{- '<|im_start|>user\\n' + m.content + '<|im_end|>' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
MISTRAL_V3 = """{%- for m in messages %}{% if m.tool_calls %}{{ '[TOOL_CALLS] [' }}{% for call in m.tool_calls %}
{%- if call.id|length != 9 %}{{ raise_exception('ids have 9 characters') }}{% endif %}
{{- call.function|tojson }}{{ ', ' if not loop.last }}{% endfor %}{{ ']</s>' }}
{%- else %}{{ '[INST] ' + m.content + '[/INST]' }}{% endif %}{% endfor %}"""
MISTRAL_V11 = """{%- for m in messages %}{% if m.tool_calls %}{% for call in m.tool_calls %}
{{- '[TOOL_CALLS]' + call.function.name + '[ARGS]' + call.function.arguments|tojson }}{% endfor %}{{ '</s>' }}
{%- else %}{{ '[INST]' + m.content + '[/INST]' }}{% endif %}{% endfor %}"""
DEEPSEEK_R1 = """{%- for m in messages %}{% if m.content is none %}{{ '<｜Assistant｜><｜tool▁calls▁begin｜>' }}
{%- for call in m.tool_calls %}{{ '<｜tool▁call▁begin｜>function<｜tool▁sep｜>' + call.function.name + '\\n```json\\n'
+ call.function.arguments + '\\n```<｜tool▁call▁end｜>' + ('' if loop.last else '\\n') }}{% endfor %}
{{- '<｜tool▁calls▁end｜></s>' }}{% else %}{{ '<｜User｜>' + m.content }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<｜Assistant｜><think>\\n' }}{% endif %}"""
GPT_OSS = """{%- for m in messages %}{% if m.tool_calls %}{% set call = m.tool_calls[0].function %}
{{- '<|start|>assistant to=functions.' + call.name + '<|channel|>commentary json<|message|>' + call.arguments|tojson
+ '<|call|>' }}{% elif m.thinking %}{{ '<|channel|>analysis<|message|>' }}
{%- else %}{{ '<|start|>user<|message|>' + m.content + '<|end|>' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"""

MISTRAL_TOKENS = ("[INST]", "[/INST]", "[TOOL_CALLS]", "[ARGS]", "</s>")
HARMONY_TOKENS = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>")
BARE = AnswerFormat(has_bare_calls=True)


@pytest.mark.parametrize(
    ("template", "special", "format", "num_answers"),
    [
        pytest.param(CHATML.replace("CALL", HERMES), (), AnswerFormat(), 1, id="hermes"),
        pytest.param(CHATML.replace("CALL", QWEN3_CODER), (), AnswerFormat(), 1, id="qwen3_coder"),
        pytest.param(CHATML.replace("CALL", GLM), ("<tool_call>", "</tool_call>"), AnswerFormat(), 1, id="glm"),
        pytest.param(LLAMA3_1, ("<s>",), BARE, 2, id="llama3_1"),
        pytest.param(MISTRAL_V3, MISTRAL_TOKENS, AnswerFormat(), 1, id="mistral_v3"),
        pytest.param(MISTRAL_V11, MISTRAL_TOKENS, AnswerFormat(), 1, id="mistral_v11"),
        pytest.param(DEEPSEEK_R1, ("</s>", "<｜User｜>", "<｜Assistant｜>"), AnswerFormat(), 1, id="deepseek_r1"),
        pytest.param(GPT_OSS, HARMONY_TOKENS, AnswerFormat(), 2, id="gpt_oss"),
    ],
)
def test_the_calls_of_a_template_are_read_back(
    make_fast: Callable[[str], tokenizers.Tokenizer],
    template: str,
    special: tuple[str, ...],
    format: AnswerFormat,
    num_answers: int,
) -> None:
    fast = make_fast("byte_level")
    fast.add_special_tokens(list(special))
    tokenizer = Tokenizer(fast, chat_template=template)
    answers = probe_tool_calls(tokenizer, format.for_tokens(tokenizer))
    assert [answer.found for answer in answers] == [answer.calls for answer in answers]
    assert len(answers) == num_answers
    assert sum(len(answer.calls) for answer in answers) == 2
    tokenizer = Tokenizer(fast, chat_template="{# tools #}" + template)
    assert tool_call_warning(tokenizer, format.for_tokens(tokenizer)) is None


def test_a_format_that_does_not_fit_the_template(make_fast: Callable[[str], tokenizers.Tokenizer]) -> None:
    tokenizer = Tokenizer(make_fast("byte_level"), chat_template=CHATML.replace("CALL", HERMES))
    (answer,) = probe_tool_calls(tokenizer, AnswerFormat())
    assert not answer.is_right
    assert answer.found == ()
    assert "<tool_call>" in answer.text


def test_a_template_that_refuses_calls(make_fast: Callable[[str], tokenizers.Tokenizer]) -> None:
    template = "{% for m in messages %}{% if m.tool_calls %}{{ raise_exception('no calls') }}{% endif %}{% endfor %}"
    with pytest.raises(TokenizerError, match="no calls"):
        probe_tool_calls(Tokenizer(make_fast("byte_level"), chat_template=template), AnswerFormat())


def test_the_warning_says_which_call_is_not_read_and_what_to_do(
    make_fast: Callable[[str], tokenizers.Tokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = CHATML.replace("CALL", HERMES.replace("tool_call>", "my_call>"))
    tokenizer = Tokenizer(make_fast("byte_level"), chat_template="{# tools #}" + unknown)
    warning = tool_call_warning(tokenizer, AnswerFormat().for_tokens(tokenizer))
    assert warning is not None
    assert "a call of get_weather with {'city': 'Rome', 'days': 3, 'metric': True}, and it is not read" in warning
    assert "<my_call>" in warning
    assert "--chat-template FILE" in warning
    monkeypatch.setattr(tool_call_probe, "probe_tool_calls", None)  # the result is kept
    assert tool_call_warning(tokenizer, AnswerFormat().for_tokens(tokenizer)) == warning


def test_a_lost_type_is_a_warning(make_fast: Callable[[str], tokenizers.Tokenizer]) -> None:
    quoted = HERMES.replace("call.function.arguments|tojson", "call.function.arguments|tojson|replace('3', '\"3\"')")
    tokenizer = Tokenizer(make_fast("byte_level"), chat_template="{# tools #}" + CHATML.replace("CALL", quoted))
    warning = tool_call_warning(tokenizer, AnswerFormat().for_tokens(tokenizer))
    assert warning is not None
    assert "its arguments are read as {'city': 'Rome', 'days': '3', 'metric': True}" in warning


@pytest.mark.parametrize("template", ["{{ messages }}", "{# tools #}{{ messages[0].content }}"])
def test_templates_that_write_no_calls_are_not_warned_of(
    make_fast: Callable[[str], tokenizers.Tokenizer], template: str
) -> None:
    tokenizer = Tokenizer(make_fast("byte_level"), chat_template=template)
    assert tool_call_warning(tokenizer, AnswerFormat().for_tokens(tokenizer)) is None
