"""Rendering of chat templates in a sandbox.

A template is code that came with the weights, so it runs in jinja2's immutable sandbox, on plain data only, and with
limits on loops, output and time. It has the variables and functions of transformers: `messages`, `tools`, `documents`,
`add_generation_prompt`, `raise_exception`, `strftime_now`, `tojson`, `break`/`continue` and `generation` blocks. The
limits stop accidental and simple deliberate overuse; they do not make a hostile template safe on a shared server.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from functools import lru_cache, wraps
from typing import Any

from jinja2 import Template, TemplateError, TemplateSyntaxError, meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from aethermind.errors import InvalidArgumentError, TokenizerError

__all__ = [
    "MAX_OUTPUT_CHARS",
    "MAX_SECONDS",
    "RefusedMessagesError",
    "render_chat",
    "tests_null_content",
    "variables_read",
]

MAX_OUTPUT_CHARS = 1 << 25
"""The longest prompt that a template may write: 32 Mi characters, about eight million tokens."""

MAX_SECONDS = 10.0
"""The most CPU time that a template may take for one prompt; wall-clock time would depend on the load."""

_MAX_RANGE_STEPS = 1_000_000
_MAX_EXPONENT = 64
_MAX_INTEGER_BITS = 1 << 16
_MAX_CACHED_TEMPLATES = 16
_REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")
"""The keys under which clients and models pass the reasoning before an answer."""
_PADDING_METHODS = ("center", "expandtabs", "format", "ljust", "rjust", "zfill")
_NUMBER = re.compile(r"\d+")
_VARIABLE_WIDTH = re.compile(r"\*|\{[^{}]*\{")

_deadline: ContextVar[float] = ContextVar("deadline")


class RefusedMessagesError(TokenizerError):
    """A template refuses a conversation (`raise_exception`), most often because of the order of its roles."""


def render_chat(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    /,
    *,
    add_generation_prompt: bool = True,
    **extra: Any,
) -> str:
    """Return the prompt that `template` makes of `messages`, as transformers' `apply_chat_template` would.

    Args:
        template: Jinja source, `Tokenizer.chat_template`. Compiled templates are cached.
        messages: `{"role": ..., "content": ...}` in order, of JSON types. Values of None are dropped, except a content
            that the template tests for none; `thinking` and `reasoning` are also passed as `reasoning_content`.
        add_generation_prompt: end with the header of the assistant's turn, so that the model answers.
        extra: further variables for the template, of JSON types: special tokens (`eos_token=...`), `tools`,
            `documents`, `enable_thinking`.

    Raises:
        TokenizerError: the template does not compile, fails on these messages, refuses them (RefusedMessagesError),
            writes more than `MAX_OUTPUT_CHARS` or computes for longer than `MAX_SECONDS`.
        InvalidArgumentError: a message or extra value does not consist of JSON types.
    """
    names: dict[str, Any] = {"tools": None, "documents": None}
    keys_with_null = {"content"} if tests_null_content(template) else set()
    try:
        names |= {name: _as_json_types(value, name) for name, value in extra.items()}
        names["messages"] = [
            _normalized(_as_json_types(message, f"messages[{i}]"), keys_with_null=keys_with_null)
            for i, message in enumerate(messages)
        ]
    except RecursionError as error:
        raise InvalidArgumentError("A chat message is nested too deeply. Flatten its content.") from error
    names |= {"add_generation_prompt": add_generation_prompt, "range": _limited_range()}
    compiled = _compile(template)
    pieces, num_chars = [], 0
    deadline_token = _deadline.set(time.thread_time() + MAX_SECONDS)
    try:
        for piece in compiled.generate(names):
            num_chars += len(piece)
            if num_chars > MAX_OUTPUT_CHARS:
                raise SecurityError(f"it writes more than {MAX_OUTPUT_CHARS} characters")
            pieces.append(piece)
    except _RefusedError as error:
        raise RefusedMessagesError(f"The chat template refuses these messages: {_one_line(error)}.") from error
    except Exception as error:  # the template is arbitrary code, which may raise anything
        raise TokenizerError(
            f"The chat template failed on {len(messages)} messages ({type(error).__name__}): {_one_line(error)}. "
            "Check the messages' roles and contents, or the model's chat_template."
        ) from error
    finally:
        _deadline.reset(deadline_token)
    return "".join(pieces)


@lru_cache(maxsize=_MAX_CACHED_TEMPLATES)
def variables_read(template: str) -> frozenset[str]:
    """Return the variables that a template reads; others have no effect. TokenizerError if it does not compile."""
    _compile(template)
    return frozenset(meta.find_undeclared_variables(_environment().parse(template)))


@lru_cache(maxsize=_MAX_CACHED_TEMPLATES)
def tests_null_content(template: str) -> bool:
    """Whether a template tests if a message's content is none, as it is in messages that only call functions."""
    _compile(template)
    tested = (test.node for test in _environment().parse(template).find_all(nodes.Test) if test.name == "none")
    return any(
        (isinstance(node, nodes.Getattr) and node.attr == "content")
        or (isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const) and node.arg.value == "content")
        for node in tested
    )


class _RefusedError(TemplateError):
    """The error of a template that calls `raise_exception`."""


class _PlainNamespace(Namespace):
    """`namespace()` without attributes that begin with an underscore, which would expose Python's internals."""

    def __init__(*args: Any, **attributes: Any) -> None:
        # `self` is in args, so that namespace(self=...) is a legal attribute.
        values = dict(*args[1:], **attributes)
        for name in values:
            _check_attribute_name(name)
        Namespace.__init__(args[0], values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_attribute_name(name)
        super().__setitem__(name, value)


class _GenerationBlock(Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's text for training; here it renders its body."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it on the instance)

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _ChatEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox: repeated strings and powers cannot exhaust memory, and loops have a time limit."""

    intercepted_binops = frozenset({"*", "**", "%"})

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        for loop in template.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, _time_limited.__name__, [], [], None, None, lineno=loop.lineno)
        return template

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*" and isinstance(left, int) and isinstance(right, int):
            _check_product(left, right)
        if operator == "**" and isinstance(right, int) and right > _MAX_EXPONENT:
            raise SecurityError(f"it raises a number to the power of {right}, more than {_MAX_EXPONENT}")
        if operator == "%" and isinstance(left, str):
            _check_format_width(left, right)
        for value, times in ((left, right), (right, left)):
            is_repetition = operator == "*" and isinstance(value, (str, list, tuple)) and isinstance(times, int)
            if is_repetition and len(value) * times > MAX_OUTPUT_CHARS:
                raise SecurityError(f"it repeats a value to more than {MAX_OUTPUT_CHARS} items")
        return super().call_binop(context, operator, left, right)

    def call(*args: Any, **names: Any) -> Any:
        # `self`, the context and the function are in args, as in jinja2, so that a template may use any name.
        _check_time()
        method = getattr(args[2], "__wrapped__", args[2])
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if isinstance(owner, str) and name in _PADDING_METHODS:
            (_check_format_width if name == "format" else _check_width)(owner, [*args[3:], *names.values()])
        return ImmutableSandboxedEnvironment.call(*args, **names)


@lru_cache(maxsize=1)
def _environment() -> _ChatEnvironment:
    environment = _ChatEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationBlock])
    environment.filters["tojson"] = _to_json
    environment.filters[_time_limited.__name__] = _time_limited
    for name, check in (("center", _check_width), ("format", _check_format_width), ("indent", _check_width)):
        environment.filters[name] = _with_width_limit(environment.filters[name], check)
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.globals["namespace"] = _PlainNamespace
    return environment


@lru_cache(maxsize=_MAX_CACHED_TEMPLATES)
def _compile(template: str) -> Template:
    try:
        return _environment().from_string(template)
    except TemplateSyntaxError as error:
        raise TokenizerError(
            f"The chat template has a syntax error in line {error.lineno}: {_one_line(error.message)}. "
            "Correct chat_template in the model's tokenizer_config.json or chat_template.jinja."
        ) from error
    except Exception as error:  # such as RecursionError for deep nesting
        raise TokenizerError(f"The chat template cannot be compiled: {_one_line(error)}.") from error


def _raise_exception(message: object) -> None:
    raise _RefusedError(str(message))


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON without the HTML escapes of Jinja's `tojson`."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _time_limited(items: Iterable[Any]) -> Iterator[Any]:
    """Yield the items of a `for` loop; SecurityError when the time limit is exceeded."""
    for item in items:
        _check_time()
        yield item


def _check_time() -> None:
    """SecurityError if the rendering has used up its CPU time."""
    if time.thread_time() > _deadline.get():
        raise SecurityError(f"it computes for longer than {MAX_SECONDS:g} s")


def _check_product(left: int, right: int) -> None:
    """SecurityError for a product of integers that would have too many bits."""
    if left.bit_length() + right.bit_length() > _MAX_INTEGER_BITS:
        raise SecurityError(f"it multiplies to a number of more than {_MAX_INTEGER_BITS} bits")


def _limited_range() -> Callable[..., range]:
    """Return a `range` with a limit on the steps of all ranges of one rendering, nested ones included."""
    num_left = _MAX_RANGE_STEPS

    def limited_range(*bounds: int) -> range:
        nonlocal num_left
        steps = range(*bounds)
        num_left -= len(steps)
        if num_left < 0:
            raise SecurityError(f"its ranges add up to more than {_MAX_RANGE_STEPS} steps")
        return steps

    return limited_range


def _normalized(message: dict[str, Any], *, keys_with_null: Collection[str] = ()) -> dict[str, Any]:
    """Drop the keys of a message with None, except `keys_with_null`; pass reasoning as `reasoning_content`, too."""
    present = {key: value for key, value in message.items() if value is not None or key in keys_with_null}
    reasoning = next((present[key] for key in _REASONING_KEYS if key in present), None)
    return present if reasoning is None else {"thinking": reasoning, **present, "reasoning_content": reasoning}


def _as_json_types(value: Any, where: str) -> Any:
    """Copy a value as JSON types, so that no objects with methods and no lists of the caller enter the sandbox."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Mapping):
        return {_as_string_key(key, where): _as_json_types(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_json_types(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    raise InvalidArgumentError(
        f"A chat template sees JSON types only, and {where} is a {type(value).__name__}. "
        "Pass strings, numbers, booleans, None, lists or dicts of them."
    )


def _as_string_key(key: Any, where: str) -> str:
    if not isinstance(key, str):
        raise InvalidArgumentError(f"Keys in chat messages are strings, and {where} has the key {key!r}.")
    return str.__str__(key)


def _check_attribute_name(name: object) -> None:
    """SecurityError for a name of an attribute of a namespace that begins with an underscore."""
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot hold {name!r}, because its name begins with an underscore")


def _with_width_limit(filter: Callable[..., Any], check: Callable[[Any, Sequence[Any]], None]) -> Callable[..., Any]:
    """Return a padding filter that calls `check` with its value and arguments before."""

    @wraps(filter)
    def limited(value: Any, *args: Any, **names: Any) -> Any:
        check(value, [*args, *names.values()])
        return filter(value, *args, **names)

    return limited


def _check_format_width(text: Any, values: Any) -> None:
    """Raise SecurityError for a format whose width, in the format or among the values, is beyond the limit."""
    numbers = [int(digits[:20]) for digits in _NUMBER.findall(str(text))]
    if _VARIABLE_WIDTH.search(str(text)):
        numbers += values if isinstance(values, (list, tuple)) else [values]
    _check_width(text, numbers)


def _check_width(_: Any, numbers: Sequence[Any]) -> None:
    """Raise SecurityError for a width beyond the limit of the output."""
    for number in numbers:
        if isinstance(number, int) and number > MAX_OUTPUT_CHARS:
            raise SecurityError(f"it pads a text to {number} characters, more than {MAX_OUTPUT_CHARS}")


def _one_line(error: object) -> str:
    return " ".join(str(error).split()).rstrip(".")
