"""Rendering of chat templates in a sandbox.

A template is code that came with the weights, so it runs in jinja2's immutable sandbox, on plain data only, and with
limits on loops, output and time. It has the variables and functions of transformers: `messages`, `tools`, `documents`,
`add_generation_prompt`, `raise_exception`, `strftime_now`, `tojson`, `break`/`continue` and `generation` blocks. The
limits stop accidents and simple bombs; they do not make a hostile template safe to run on a shared server.
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

__all__ = ["MAX_OUTPUT_CHARS", "MAX_SECONDS", "render_chat", "tests_null_content", "variables_read"]

MAX_OUTPUT_CHARS = 1 << 25
"""The longest prompt that a template may write: 32 Mi characters, about eight million tokens."""

MAX_SECONDS = 10.0
"""The most CPU time that a template may take for one prompt; wall-clock time would depend on the load."""

_MAX_RANGE_STEPS = 1_000_000
_MAX_EXPONENT = 64
_MAX_INTEGER_BITS = 1 << 16
_MAX_CACHED_TEMPLATES = 16
_REASONING = ("reasoning_content", "thinking", "reasoning")
"""The keys under which clients and models pass the reasoning before an answer."""
_PADDING = ("center", "expandtabs", "format", "ljust", "rjust", "zfill")
_NUMBER = re.compile(r"\d+")
_TAKES_WIDTH = re.compile(r"\*|\{[^{}]*\{")

_deadline: ContextVar[float] = ContextVar("deadline")


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
        TokenizerError: the template does not compile, fails on these messages, refuses them, writes more than
            `MAX_OUTPUT_CHARS` or computes for longer than `MAX_SECONDS`.
        InvalidArgumentError: a message or extra value does not consist of JSON types.
    """
    names: dict[str, Any] = {"tools": None, "documents": None}
    kept = {"content"} if tests_null_content(template) else set()
    try:
        names |= {name: _plain(value, name) for name, value in extra.items()}
        names["messages"] = [
            _normalized(_plain(message, f"messages[{i}]"), kept=kept) for i, message in enumerate(messages)
        ]
    except RecursionError as error:
        raise InvalidArgumentError("A chat message is nested too deeply. Flatten its content.") from error
    names |= {"add_generation_prompt": add_generation_prompt, "range": _budgeted_range()}
    compiled = _compile(template)
    pieces, num_chars = [], 0
    running = _deadline.set(time.thread_time() + MAX_SECONDS)
    try:
        for piece in compiled.generate(names):
            num_chars += len(piece)
            if num_chars > MAX_OUTPUT_CHARS:
                raise SecurityError(f"it writes more than {MAX_OUTPUT_CHARS} characters")
            pieces.append(piece)
    except _RefusedError as error:
        raise TokenizerError(f"The chat template refuses these messages: {_flat(error)}.") from error
    except Exception as error:  # the template is arbitrary code: a TypeError in it is an error of its input
        raise TokenizerError(
            f"The chat template failed on {len(messages)} messages ({type(error).__name__}): {_flat(error)}. "
            "Check the messages' roles and contents, or the model's chat_template."
        ) from error
    finally:
        _deadline.reset(running)
    return "".join(pieces)


@lru_cache(maxsize=_MAX_CACHED_TEMPLATES)
def variables_read(template: str) -> frozenset[str]:
    """Return the variables that a template reads; others have no effect. TokenizerError as of `render_chat`."""
    _compile(template)
    return frozenset(meta.find_undeclared_variables(_environment().parse(template)))


@lru_cache(maxsize=_MAX_CACHED_TEMPLATES)
def tests_null_content(template: str) -> bool:
    """Whether a template tests if a message's content is none, as it is in messages that only call functions."""
    _compile(template)
    asked = (test.node for test in _environment().parse(template).find_all(nodes.Test) if test.name == "none")
    return any(
        (isinstance(node, nodes.Getattr) and node.attr == "content")
        or (isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const) and node.arg.value == "content")
        for node in asked
    )


class _RefusedError(TemplateError):
    """Raised by a template on purpose, with `raise_exception`."""


class _PlainNamespace(Namespace):
    """`namespace()` without attributes that begin with an underscore, which would expose Python's internals."""

    def __init__(*args: Any, **attributes: Any) -> None:
        # `self` is in args, so that namespace(self=...) is a legal attribute.
        values = dict(*args[1:], **attributes)
        for name in values:
            _require_plain_name(name)
        Namespace.__init__(args[0], values)

    def __setitem__(self, name: str, value: Any) -> None:
        _require_plain_name(name)
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
            loop.iter = nodes.Filter(loop.iter, _within_time.__name__, [], [], None, None, lineno=loop.lineno)
        return template

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*" and isinstance(left, int) and isinstance(right, int):
            _require_narrow_integer(left, right)
        if operator == "**" and isinstance(right, int) and right > _MAX_EXPONENT:
            raise SecurityError(f"it raises a number to the power of {right}, more than {_MAX_EXPONENT}")
        if operator == "%" and isinstance(left, str):
            _require_narrow_format(left, right)
        for value, times in ((left, right), (right, left)):
            is_repetition = operator == "*" and isinstance(value, (str, list, tuple)) and isinstance(times, int)
            if is_repetition and len(value) * times > MAX_OUTPUT_CHARS:
                raise SecurityError(f"it repeats a value to more than {MAX_OUTPUT_CHARS} items")
        return super().call_binop(context, operator, left, right)

    def call(*args: Any, **names: Any) -> Any:
        # `self`, the context and the function are in args, as in jinja2, so that a template may use any name.
        _require_time()
        method = getattr(args[2], "__wrapped__", args[2])
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if isinstance(owner, str) and name in _PADDING:
            (_require_narrow_format if name == "format" else _require_narrow)(owner, [*args[3:], *names.values()])
        return ImmutableSandboxedEnvironment.call(*args, **names)


@lru_cache(maxsize=1)
def _environment() -> _ChatEnvironment:
    environment = _ChatEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationBlock])
    environment.filters["tojson"] = _to_json
    environment.filters[_within_time.__name__] = _within_time
    for name, require in (("center", _require_narrow), ("format", _require_narrow_format), ("indent", _require_narrow)):
        environment.filters[name] = _narrow(environment.filters[name], require)
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
            f"The chat template has a syntax error in line {error.lineno}: {_flat(error.message)}. "
            "Correct chat_template in the model's tokenizer_config.json or chat_template.jinja."
        ) from error
    except Exception as error:  # RecursionError and the like: nesting that no real template has
        raise TokenizerError(f"The chat template cannot be compiled: {_flat(error)}.") from error


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


def _within_time(items: Iterable[Any]) -> Iterator[Any]:
    """Yield the items of a `for` loop; SecurityError when the time limit is exceeded."""
    for item in items:
        _require_time()
        yield item


def _require_time() -> None:
    if time.thread_time() > _deadline.get():
        raise SecurityError(f"it computes for longer than {MAX_SECONDS:g} s")


def _require_narrow_integer(left: int, right: int) -> None:
    if left.bit_length() + right.bit_length() > _MAX_INTEGER_BITS:
        raise SecurityError(f"it multiplies to a number of more than {_MAX_INTEGER_BITS} bits")


def _budgeted_range() -> Callable[..., range]:
    """Return a `range` with a limit on the steps of all ranges of one rendering, nested ones included."""
    num_left = _MAX_RANGE_STEPS

    def budgeted_range(*bounds: int) -> range:
        nonlocal num_left
        steps = range(*bounds)
        num_left -= len(steps)
        if num_left < 0:
            raise SecurityError(f"its ranges add up to more than {_MAX_RANGE_STEPS} steps")
        return steps

    return budgeted_range


def _normalized(message: dict[str, Any], *, kept: Collection[str] = ()) -> dict[str, Any]:
    """Drop the keys of a message whose value is None, except `kept` ones, and pass reasoning under its common key."""
    given = {key: value for key, value in message.items() if value is not None or key in kept}
    reasoning = next((given[key] for key in _REASONING if key in given), None)
    return given if reasoning is None else {"thinking": reasoning, **given, "reasoning_content": reasoning}


def _plain(value: Any, where: str) -> Any:
    """Copy a value as JSON types: objects with methods do not enter the sandbox, and callers' lists are not shared."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Mapping):
        return {_plain_key(key, where): _plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
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


def _plain_key(key: Any, where: str) -> str:
    if not isinstance(key, str):
        raise InvalidArgumentError(f"Keys in chat messages are strings, and {where} has the key {key!r}.")
    return str.__str__(key)


def _require_plain_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot hold {name!r}, because its name begins with an underscore")


def _narrow(filter: Callable[..., Any], require: Callable[[Any, Sequence[Any]], None]) -> Callable[..., Any]:
    """Return a padding filter with a limit on the width."""

    @wraps(filter)
    def narrow(value: Any, *args: Any, **names: Any) -> Any:
        require(value, [*args, *names.values()])
        return filter(value, *args, **names)

    return narrow


def _require_narrow_format(text: Any, values: Any) -> None:
    """Raise SecurityError for a format whose width, in the format or among the values, is beyond the limit."""
    numbers = [int(digits[:20]) for digits in _NUMBER.findall(str(text))]
    if _TAKES_WIDTH.search(str(text)):
        numbers += values if isinstance(values, (list, tuple)) else [values]
    _require_narrow(text, numbers)


def _require_narrow(_: Any, numbers: Sequence[Any]) -> None:
    """Raise SecurityError for a width beyond the limit of the output."""
    for number in numbers:
        if isinstance(number, int) and number > MAX_OUTPUT_CHARS:
            raise SecurityError(f"it pads a text to {number} characters, more than {MAX_OUTPUT_CHARS}")


def _flat(error: object) -> str:
    return " ".join(str(error).split()).rstrip(".")
