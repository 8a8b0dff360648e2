"""`python -m release.python_reference` writes docs/python-api.md, the reference of what `import aethermind` offers.

Everything in it comes from signatures and docstrings; a test compares the page with what this program would write.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from release.distributions import ROOT

import aethermind
from aethermind import errors

__all__ = ["PAGE", "reference"]

PAGE = ROOT / "docs/python-api.md"

_INTRODUCTION = """# Python API

What `import aethermind` offers. `help(aethermind.LLM)` shows the same, and `LLM(` completes in a notebook.
[Generate](using/generate.md) and [chat](using/chat.md) have examples. This page is written by
`python -m release.python_reference` from the code; edit docstrings instead.
"""

_ORDER = (
    "LLM",
    "SamplingParams",
    "StructuredOutputs",
    "RequestOptions",
    "EngineOptions",
    "RequestOutput",
    "CompletionOutput",
    "Logprob",
    "AsyncEngine",
    "SessionInfo",
    "KVCache",
    "Runtime",
)
"""In which order readers look for them; the errors follow."""

_INHERITED = (dict, Exception, object)
_OPTION = re.compile(r"^    (\w+)( \(default (.*?)\))?: ", re.MULTILINE)
_SECTION = re.compile(r"^(Args|Fields|Options|Raises|Template options):\n", re.MULTILINE)


def reference() -> str:
    """The page."""
    assert set(_ORDER) | {"AetherMindError", "__version__"} == set(aethermind.__all__)
    parts = [_INTRODUCTION]
    for name in _ORDER:
        parts += _class(name, getattr(aethermind, name))
    parts += ["## Errors\n", *_errors()]
    return "\n".join(parts).rstrip() + "\n"


def _class(name: str, cls: type) -> Iterator[str]:
    yield f"## {name}\n"
    if not issubclass(cls, dict) and cls.__init__ is not object.__init__:  # type: ignore[misc]
        yield f"```text\n{_signature(name, cls)}\n```\n"
    yield _prose(cls.__doc__)
    init = vars(cls).get("__init__")
    if init is not None and init.__doc__ and not init.__doc__.startswith("Initialize self"):
        yield _prose(init.__doc__)
    members: dict[str, Any] = {}
    for base in cls.__mro__:
        if base.__module__.startswith("aethermind"):
            members = members | {member: value for member, value in vars(base).items() if member not in members}
    for member, value in members.items():
        if member.startswith("_") or not _doc_of(value):
            continue
        if isinstance(value, property | FunctionType | classmethod):
            yield from _member(name, member, value)


def _member(owner: str, name: str, value: Any) -> Iterator[str]:
    if isinstance(value, property):
        yield f"### {owner}.{name}\n"
    else:
        function = value.__func__ if isinstance(value, classmethod) else value
        yield f"### {owner}.{name}()\n"
        yield f"```text\n{_signature(name, function)}\n```\n"
    yield _prose(_doc_of(value))


def _doc_of(value: Any) -> str | None:
    if isinstance(value, classmethod):
        return value.__func__.__doc__
    return value.__doc__ if isinstance(value, property | FunctionType) else None


def _signature(name: str, function: Any) -> str:
    """A formatted signature: on a single line, or parameter argument per line if it is too long."""
    signature = inspect.signature(function)
    arguments = [text for text in _format_parameters(signature) if text not in ("self", "cls")]
    end = "" if signature.return_annotation in (signature.empty, "None") else f" -> {signature.return_annotation}"
    line = f"{name}({', '.join(arguments)}){end}"
    if len(line) <= 100:
        return line
    return "\n".join((f"{name}(", *(f"    {text}," for text in arguments), f"){end}"))


def _format_parameters(signature: inspect.Signature) -> Iterator[str]:
    is_keyword_only = False
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not is_keyword_only:
            is_keyword_only = True
            yield "*"
        if parameter.annotation is parameter.empty:
            yield (
                parameter.name
                if parameter.default is parameter.empty
                else f"{parameter.name}={_value(parameter.default)}"
            )
        else:
            default = "" if parameter.default is parameter.empty else f" = {_value(parameter.default)}"
            yield f"{parameter.name}: {parameter.annotation}{default}"


def _value(default: Any) -> str:
    """A default; of objects and functions only what they are called, which is the same everywhere."""
    if callable(default):
        return str(getattr(default, "__qualname__", type(default).__name__))
    text = repr(default)
    return "..." if "<" in text else text


def _prose(docstring: str | None) -> str:
    """A docstring as Markdown: its sections become lists."""
    text = inspect.cleandoc(docstring or "")
    text = _SECTION.sub(r"\1:\n\n", text)
    return _OPTION.sub(lambda found: f"- `{found[1]}`{f' (default `{found[3]}`)' if found[2] else ''}: ", text) + "\n"


def _errors() -> Iterator[str]:
    yield "Everything that AetherMind raises on purpose is an `AetherMindError`, whose message says what to do.\n"
    for name in errors.__all__:
        cls = getattr(errors, name)
        bases = ", ".join(f"`{base.__name__}`" for base in cls.__bases__ if base not in _INHERITED)
        yield f"- `{name}`{f' ({bases})' if bases else ''}: {inspect.cleandoc(cls.__doc__ or '').splitlines()[0]}"


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
