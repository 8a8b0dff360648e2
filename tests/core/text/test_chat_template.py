"""Chat templates against transformers' rendering, and what a template must not do."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
import tokenizers
import transformers
from transformers.utils.chat_template_utils import render_jinja_template

from aethermind.errors import InvalidArgumentError, TokenizerError
from aethermind.text import Tokenizer, chat_template, render_chat
from aethermind.text.chat_prompt import ContinuedChat, chat_prompt

USER = {"role": "user", "content": 'Tell me\nabout <foxes> & "owls" 👩‍👧 {{ 1 }}'}
CONVERSATIONS: list[list[dict[str, Any]]] = [
    [USER],
    [{"role": "system", "content": "Be brief."}, USER],
    [USER, {"role": "assistant", "content": "No."}, {"role": "user", "content": ""}],
    [],
]
TOOLS = [{"type": "function", "function": {"name": "find", "description": "größer <b>", "parameters": {}}}]

TEMPLATES = {
    "tools": "{% if tools %}\n  {% for t in tools %}\n{{ t | tojson }} {{ t | tojson(indent=2) }}\n"
    "{% endfor %}{% endif %}x",
    "tools_not_none": "{% if tools is not none %}T{% else %}-{% endif %}{{ documents is none }}",
    "whitespace": "  {%- for m in messages %}\n    {{ m.role }}\n  {% endfor %}\n\n  {# note #}\nend\n",
    "loop_controls": "{% for m in messages %}{% if loop.index == 2 %}{% break %}{% endif %}{{ m.role }}{% endfor %}",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "macro": "{% macro say(x) %}[{{ x }}]{% endmacro %}{% for i in range(3) %}{{ say(i) }}{% endfor %}",
    "undefined": "{{ nothing }}{{ bos_token }}{% if enable_thinking is defined %}think{% endif %}",
    "slices": "{% for m in messages[::-1] %}{{ m['content'].split('\n')[0] | trim }}{{ 'a' * 3 }}{% endfor %}"
    "{{ 2 ** 8 }}",
}


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES.keys())
@pytest.mark.parametrize("messages", CONVERSATIONS, ids=len)
@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("extra", [{}, {"tools": TOOLS}, {"enable_thinking": False, "bos_token": "<s>"}], ids=list)
def test_equals_transformers(
    template: str, messages: list[dict[str, Any]], add_generation_prompt: bool, extra: dict[str, Any]
) -> None:
    [reference], _ = render_jinja_template(
        [messages], chat_template=template, add_generation_prompt=add_generation_prompt, **extra
    )
    assert render_chat(template, messages, add_generation_prompt=add_generation_prompt, **extra) == reference


@pytest.mark.parametrize("messages", CONVERSATIONS[:-1], ids=len)
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_chatml_equals_apply_chat_template(
    make_fast: Callable[[str], tokenizers.Tokenizer],
    chatml: str,
    messages: list[dict[str, Any]],
    add_generation_prompt: bool,
) -> None:
    reference = transformers.PreTrainedTokenizerFast(tokenizer_object=make_fast("byte_level"), chat_template=chatml)
    assert render_chat(chatml, messages, add_generation_prompt=add_generation_prompt) == reference.apply_chat_template(
        messages, add_generation_prompt=add_generation_prompt, tokenize=False
    )


@pytest.mark.parametrize(
    "message",
    [
        {"content": None, "tool_calls": [{"type": "function", "function": None}]},
        {"content": "x", "tool_calls": None},
        {"content": "x", "reasoning": "because"},
        {"content": "x", "thinking": "because", "reasoning": "never"},
        {"content": "x", "reasoning_content": "because", "thinking": "aloud"},
        {"content": "x", "reasoning_content": None, "reasoning": ""},
    ],
)
def test_messages_are_seen_as_transformers_shows_them(
    make_fast: Callable[[str], tokenizers.Tokenizer], message: dict[str, Any]
) -> None:
    """Keys without a value are not there, and reasoning goes by the name that templates read."""
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", **message}]
    template = "{{ messages | tojson(sort_keys=true) }}"
    reference = transformers.PreTrainedTokenizerFast(tokenizer_object=make_fast("byte_level"), chat_template=template)
    assert render_chat(template, messages) == reference.apply_chat_template(messages, tokenize=False)


def test_today() -> None:
    assert render_chat("{{ strftime_now('%Y') }}", []) == str(datetime.now().year)


def test_a_template_is_compiled_once() -> None:
    template = "{{ messages | length }} of a template no other test uses"
    before = chat_template._compile.cache_info()
    assert [render_chat(template, [USER] * n) for n in (1, 2)] == [
        template.replace("{{ messages | length }}", n) for n in "12"
    ]
    after = chat_template._compile.cache_info()
    assert after.misses - before.misses == 1
    assert after.hits > before.hits


def test_messages_stay_as_they_were() -> None:
    message = {"role": "user", "content": ["a"]}
    with pytest.raises(TokenizerError, match=r"unsafe|not safely"):
        render_chat("{% set _ = messages[0].content.append('b') %}", [message])
    assert message == {"role": "user", "content": ["a"]}


def test_refusal_carries_the_template_s_words() -> None:
    template = "{% if messages|length > 1 %}{{ raise_exception('Only one\nmessage.') }}{% endif %}ok"
    assert render_chat(template, [USER]) == "ok"
    with pytest.raises(TokenizerError, match=r"^The chat template refuses these messages: Only one message\.$"):
        render_chat(template, [USER, USER])


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("a\n{% for %}", r"syntax error in line 2.*Correct chat_template"),
        ("{% if x %}", r"syntax error in line 1"),
        ("{{ " + "(" * 5000 + ")" * 5000 + " }}", r"cannot be compiled|syntax error"),
        ("{{ messages[0].content + 1 }}", r"failed on 1 messages \(TypeError\)"),
        ("{{ messages[0].missing.deeper }}", r"failed on 1 messages \(UndefinedError\).*missing"),
        ("{{ 1 // 0 }}", r"ZeroDivisionError"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", r"RecursionError"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", r"SecurityError"),
        ("{{ messages.append(1) }}", r"SecurityError"),
        ("{% set ns = namespace() %}{% set ns.__class__ = 1 %}", r"SecurityError.*underscore"),
        ("{% set ns = namespace(_x=1) %}", r"SecurityError.*underscore"),
        (
            "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
            r"more than 1000000 steps",
        ),
        ("{{ range(10 ** 12) | list }}", r"steps"),
        ("{{ 'a' * 10 ** 12 }}", r"repeats a value to more than"),
        ("{{ 10 ** 12 * [1] }}", r"repeats a value to more than"),
        ("{{ 10 ** 99 }}", r"to the power of"),
        (
            "{% set n = namespace(x=2) %}{% for i in range(64) %}{% set n.x = n.x * n.x %}{% endfor %}",
            r"a number of more than 65536 bits",
        ),
        ("{{ 'a'.center(10 ** 12) }}", r"pads a text"),
        ("{{ 'a'.zfill(width=10 ** 12) }}", r"pads a text"),
        ("{{ 'a' | center(10 ** 12) }}", r"pads a text"),
        ("{{ 'a' | indent(10 ** 12) }}", r"pads a text"),
        ("{{ '%999999999d' % 1 }}", r"pads a text"),
        ("{{ '%*d' % (10 ** 12, 1) }}", r"pads a text"),
        ("{{ '%999999999d' | format(1) }}", r"pads a text"),
        ("{{ '{:999999999}'.format(1) }}", r"pads a text"),
        ("{{ '{:{}}'.format(1, 10 ** 12) }}", r"pads a text"),
    ],
)
def test_bad_templates_are_one_sentence(template: str, says: str) -> None:
    with pytest.raises(TokenizerError, match=says) as caught:
        render_chat(template, [USER])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("template", "names"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", {"messages"}),
        (
            "{% for tools in messages %}{{ tools }}{% generation %}{{ mood }}{% endgeneration %}{% endfor %}",
            {"messages", "mood"},
        ),
        ("{% if not tools is defined %}{% set tools = none %}{% endif %}{% if tools %}x{% endif %}", {"tools"}),
        ("{% if enable_thinking is defined and not enable_thinking %}x{% endif %}", {"enable_thinking"}),
        ("{% macro tell() %}{{ tools | tojson }}{% endmacro %}{{ tell() }}{{ strftime_now('%Y') }}", {"tools"}),
    ],
)
def test_which_names_a_template_looks_at(template: str, names: set[str]) -> None:
    assert chat_template.variables_read(template) - {"strftime_now"} == names


def test_output_is_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "MAX_OUTPUT_CHARS", 100)
    template = "{% for i in range(messages[0].content) %}0123456789{% endfor %}"
    assert len(render_chat(template, [{"content": 10}])) == 100
    with pytest.raises(TokenizerError, match="writes more than 100 characters"):
        render_chat(template, [{"content": 11}])


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in messages %}{% endfor %}",
        "{% for a in messages[0].content recursive %}{{ loop('ab') }}{% endfor %}",
        "{% macro m() %}{% endmacro %}{{ m() }}",
    ],
)
def test_time_is_capped(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever repeats, a loop or a call, looks at the clock."""
    monkeypatch.setattr(chat_template, "MAX_SECONDS", -1)
    with pytest.raises(TokenizerError, match="longer than"):
        render_chat(template, [USER])


def test_loops_know_where_they_are() -> None:
    """A loop that is watched still has its length, its ends and its neighbours."""
    template = (
        "{% for a in x %}{{ loop.index }}/{{ loop.length }}{{ loop.previtem }}{{ a }}{{ loop.nextitem }}"
        "{{ '.' if loop.last else ',' }}{% else %}none{% endfor %}"
    )
    assert render_chat(template, [], x=["a", "b"]) == "1/2ab,2/2ab."
    assert render_chat(template, [], x=[]) == "none"


def test_only_plain_values_enter() -> None:
    class Name(str):
        def escape(self) -> str:
            return "escaped"

    class Count(int):
        pass

    class Share(float):
        pass

    assert render_chat("{{ x.escape }}{{ x }}", [], x=Name("n")) == "n"
    assert render_chat("{{ x | tojson }}", [], x=(Count(3), Share(0.5), True, None)) == "[3, 0.5, true, null]"
    with pytest.raises(InvalidArgumentError, match=re.escape("messages[0].content[1] is a object")):
        render_chat("x", [{"role": "user", "content": ["a", object()]}])
    with pytest.raises(InvalidArgumentError, match=re.escape("messages[0].content has the key 3")):
        render_chat("x", [{"role": "user", "content": {3: "a"}}])


def test_endless_nesting_is_refused() -> None:
    content: list[Any] = []
    content.append(content)
    with pytest.raises(InvalidArgumentError, match="nested too deeply"):
        render_chat("x", [{"role": "user", "content": content}])


def test_padding_and_large_numbers_have_their_uses() -> None:
    template = (
        "{{ 'a'.center(3) }}{{ '%3d' % 10 ** 12 }}{{ '{:>4}'.format(n) }}{{ messages[0].content.strip() | indent }}"
    )
    messages = [{"role": "user", "content": " %s {:{ 99999999999999 "}]
    assert render_chat(template, messages, n=10**12) == " a " + f"{10**12}" * 2 + "%s {:{ 99999999999999"


@pytest.mark.parametrize("content", ["Yes, it", " spaces stay ", "<think>Hm", [{"type": "text", "text": "parts"}]])
@pytest.mark.parametrize("template", ["chatml", "trimmed"])
def test_a_continued_message_equals_transformers(
    make_fast: Callable[[str], tokenizers.Tokenizer], chatml: str, content: Any, template: str
) -> None:
    source = chatml if template == "chatml" else chatml.replace("message['content'] +", "message['content'] | trim +")
    fast = make_fast("byte_level")
    reference = transformers.PreTrainedTokenizerFast(tokenizer_object=fast, chat_template=source)
    messages = [{"role": "user", "content": "Is it?"}, {"role": "assistant", "content": content}]
    plain = [messages[0], {"role": "assistant", "content": content if isinstance(content, str) else "parts"}]
    expected = reference.apply_chat_template(plain, continue_final_message=True, tokenize=False)
    ours = chat_prompt(Tokenizer(fast, chat_template=source), messages, continue_final_message=True)
    assert ours.rstrip() == expected.rstrip()  # white space before the end stays ours, where a template trims it
    assert isinstance(ours, ContinuedChat)


def test_a_template_that_drops_the_message_cannot_continue_it(make_fast: Callable[[str], tokenizers.Tokenizer]) -> None:
    tokenizer = Tokenizer(make_fast("byte_level"), chat_template="{{ messages[0].content }}")
    messages = [{"role": "user", "content": "Is it?"}, {"role": "assistant", "content": "Yes"}]
    with pytest.raises(TokenizerError, match="does not write the last message's content as it is"):
        chat_prompt(tokenizer, messages, continue_final_message=True)
