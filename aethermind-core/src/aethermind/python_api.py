"""Signatures, docstrings, tracebacks and the progress bar of the Python API.

Options of a TypedDict are shown in signatures and in `help`; tracebacks of errors end in the caller's line.
"""

from __future__ import annotations

import inspect
import logging
import re
import sys
from collections.abc import Callable, Generator, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, TextIO, TypeVar

from aethermind.errors import AetherMindError, did_you_mean
from aethermind.log import get_logger

__all__ = [
    "ProgressBar",
    "append_options",
    "document_fields",
    "field_docs",
    "format_options",
    "short_traceback",
    "with_options",
]

_F = TypeVar("_F", bound=Callable[..., Any])
_FIELD = re.compile(r'^    (\w+): [^\n]+\n    """(.*?)"""', re.DOTALL | re.MULTILINE)
_UNEXPECTED = re.compile(r"got an unexpected keyword argument '(\w+)'")


def field_docs(cls: type) -> dict[str, str]:
    """Return the docstrings of a class's fields by name: the string literals below the fields in the source."""
    try:
        source = Path(str(sys.modules[cls.__module__].__file__)).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return {}
    found = re.search(rf"^class {cls.__name__}\b.*?(?=^\S|\Z)", source, re.DOTALL | re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in _FIELD.findall(found[0])} if found else {}


def format_options(docs: Mapping[str, str], defaults: Mapping[str, Any]) -> str:
    """Return the lines of a docstring's section on options: name, default and description of each."""
    lines = (
        f"    {name}{f' (default {defaults[name]!r})' if name in defaults else ''}: {text}"
        for name, text in docs.items()
    )
    return "\n".join(lines)


def document_fields(cls: type) -> None:
    """Add the docstrings of fields to that of their class, for `help` and notebooks."""
    docs = {name: text for name, text in field_docs(cls).items() if not text.startswith("Derived")}
    append_options(cls, docs, _constructor_defaults(cls), title="Fields")


def append_options(cls: type, docs: Mapping[str, str], defaults: Mapping[str, Any], *, title: str) -> None:
    """Append a section to a class's docstring: options with their defaults and descriptions."""
    cls.__doc__ = f"{inspect.cleandoc(cls.__doc__ or '')}\n\n{title}:\n{format_options(docs, defaults)}"


def with_options(
    options: type, defaults: Mapping[str, Any], *, docs: Mapping[str, str] | None = None, title: str = "Options"
) -> Callable[[_F], _F]:
    """Show the keys of a TypedDict in the signature and the docstring of a function that takes them as `**options`.

    `docs` describes them by name; None takes the docstrings of the TypedDict's fields.
    """
    descriptions = field_docs(options) if docs is None else docs

    def decorate(function: _F) -> _F:
        original = inspect.signature(function)
        kept = [
            parameter
            for parameter in original.parameters.values()
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        added = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=defaults.get(name),
                annotation=_annotation_text(annotation),
            )
            for name, annotation in options.__annotations__.items()
        ]
        function.__signature__ = original.replace(parameters=[*kept, *added])  # type: ignore[attr-defined]
        text = inspect.cleandoc(function.__doc__ or "")
        function.__doc__ = f"{text}\n\n{title}:\n{format_options(descriptions, defaults)}"
        return function

    return decorate


def short_traceback(function: _F) -> _F:
    """Make tracebacks of AetherMindErrors end in the caller's line; with AETHERMIND_LOG=debug they are complete.

    Errors about unknown keyword arguments suggest the nearest name.
    """
    if inspect.isgeneratorfunction(function):

        @wraps(function)
        def generate(*args: Any, **options: Any) -> Generator[Any, Any, Any]:
            try:
                return (yield from function(*args, **options))
            except AetherMindError as error:
                _drop_traceback(error)
                raise

        return generate  # type: ignore[return-value]

    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except AetherMindError as error:
            _drop_traceback(error)
            raise  # adds no entry for this frame
        except TypeError as error:
            _suggest_argument(error, function)
            raise

    return call  # type: ignore[return-value]


def _drop_traceback(error: AetherMindError) -> None:
    if not get_logger("aethermind").isEnabledFor(logging.DEBUG):
        error.__traceback__ = None
        error.__cause__, error.__suppress_context__ = None, True


def _suggest_argument(error: TypeError, function: Callable[..., Any]) -> None:
    """Add the nearest argument to the message of a TypeError about an unknown one."""
    trace = error.__traceback__
    unexpected = _UNEXPECTED.search(str(error))
    if unexpected is None or trace is None or trace.tb_next is not None:
        return
    names = [name for name in inspect.signature(function).parameters if name != "self"]
    owner = function.__qualname__.removesuffix(".__init__")
    error.args = (f"{owner}() has no argument {unexpected[1]!r}{did_you_mean(unexpected[1], names)}",)
    error.__traceback__ = None


def _annotation_text(annotation: Any) -> Any:
    """Return the source text of an annotation that is a forward reference; others unchanged."""
    return getattr(annotation, "__forward_arg__", annotation)


def _constructor_defaults(cls: type) -> dict[str, Any]:
    parameters = inspect.signature(cls).parameters.values()
    return {
        parameter.name: parameter.default
        for parameter in parameters
        if parameter.default is not inspect.Parameter.empty
    }


_BAR_WIDTH = 40


class ProgressBar:
    """A progress bar of `total` steps on stderr, drawn if `is_shown`. Mutable.

    Entering it returns a function that advances it by one.

    In a notebook the bar is a line of text, because rich draws nothing there without ipywidgets.
    """

    def __init__(self, total: int, is_shown: bool) -> None:
        self._total = total
        self._is_shown = is_shown
        self._bar: Any = None

    def __enter__(self) -> Callable[[], None]:
        if not self._is_shown:
            return lambda: None
        if _is_notebook(sys.stderr):
            self._bar = _TextBar(self._total, sys.stderr)
            self._bar.start()
            return self._bar.advance  # type: ignore[no-any-return]
        from rich.console import Console
        from rich.progress import Progress

        self._bar = Progress(console=Console(stderr=True))
        self._bar.start()
        task = self._bar.add_task("Processed prompts", total=self._total)
        return lambda: self._bar.advance(task)

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()


class _TextBar:
    """A bar drawn as a line of text, which is rewritten at each step. Mutable."""

    def __init__(self, total: int, stream: TextIO) -> None:
        self._total = total
        self._stream = stream
        self._done = 0

    def start(self) -> None:
        """Draw the bar."""
        num_full = _BAR_WIDTH * self._done // max(self._total, 1)
        bar = "#" * num_full + "." * (_BAR_WIDTH - num_full)
        self._stream.write(f"\rProcessed prompts [{bar}] {self._done} of {self._total}")
        self._stream.flush()

    def advance(self) -> None:
        """Count one step and draw the bar again."""
        self._done += 1
        self.start()

    def stop(self) -> None:
        """End the line."""
        self._stream.write("\n")
        self._stream.flush()


def _is_notebook(stream: TextIO) -> bool:
    """Whether a stream is shown in a Jupyter notebook, which is not a terminal but handles carriage returns."""
    return not stream.isatty() and type(stream).__module__.startswith("ipykernel.")
