"""Output of commands: aligned columns, units, colours (on terminals only) and streamed text."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from aethermind.engine.loading.weight_formats import FormatUsage

__all__ = [
    "TextWriter",
    "can_redraw",
    "columns",
    "describe_weight_formats",
    "examples",
    "has_colour",
    "is_terminal",
    "print_json",
    "print_note",
    "printable",
    "quantity",
    "style",
    "version",
    "weight_format_record",
    "without_nan",
]


_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}

_CONTROLS = {
    **{code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"},
    **dict.fromkeys(range(0x80, 0xA0), 0xFFFD),
    0x0D: None,
    0x7F: 0x2421,
}
"""Replacements of control characters: ASCII's by their pictures, Latin-1's by U+FFFD; carriage returns vanish."""


def is_terminal(stream: TextIO) -> bool:
    """Whether a stream is a terminal."""
    return stream.isatty()


def can_redraw(stream: TextIO) -> bool:
    """Whether a stream is a terminal that can move its cursor, so that a progress bar can be drawn and removed."""
    return is_terminal(stream) and os.environ.get("TERM") not in ("dumb", "unknown")


def has_colour(stream: TextIO) -> bool:
    """Whether a stream is a terminal with colours, and NO_COLOR is not set."""
    return can_redraw(stream) and not os.environ.get("NO_COLOR")


def style(text: str, name: str, stream: TextIO) -> str:
    """Return the text in a style if the stream supports colours, else unchanged."""
    return f"\x1b[{_CODES[name]}m{text}\x1b[0m" if has_colour(stream) else text


def printable(text: str) -> str:
    """Replace control characters, which a terminal would interpret, by printable ones; Escape becomes U+241B."""
    return text.translate(_CONTROLS)


def print_note(text: str) -> None:
    """Print a note on stderr, dimmed on a terminal."""
    print(style(text, "dim", sys.stderr), file=sys.stderr)


def columns(rows: Iterable[Sequence[str]], indent: str = "  ") -> str:
    """Return rows as aligned lines; every column but the last is as wide as its widest cell. Lengths may differ."""
    rows = [tuple(row) for row in rows]
    widths: dict[int, int] = {}
    for row in rows:
        for position, cell in enumerate(row[:-1]):
            widths[position] = max(widths.get(position, 0), len(cell))
    lines = (indent + "  ".join(cell.ljust(widths.get(i, 0)) for i, cell in enumerate(row)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def quantity(value: float, unit: str) -> str:
    """Return a number with a decimal prefix: `quantity(2.5e9, "B/s") == "2.50 GB/s"`."""
    for prefix, factor in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= factor:
            return f"{value / factor:.2f} {prefix}{unit}"
    return f"{value:g} {unit}"


def examples(*lines: str) -> str:
    """Return the Examples section of a help page; typer leaves its lines as they are."""
    return "\n".join(("\b", "Examples:", *(f"  {line}" for line in lines)))


def print_json(value: Any) -> None:
    """Print one JSON object on standard output; values of types that JSON lacks, such as paths, become strings; NaN and
    infinity become null.

    Characters outside of ASCII are escaped unless the output's encoding is a Unicode one.
    """
    import json

    is_unicode = (sys.stdout.encoding or "utf-8").lower().startswith("utf")
    indent = 2 if is_terminal(sys.stdout) else None
    text = json.dumps(without_nan(value), indent=indent, default=str, ensure_ascii=not is_unicode, allow_nan=False)
    print(text)


def without_nan(value: Any) -> Any:
    """Return a value with NaN and infinity, which JSON lacks, replaced by None."""
    if isinstance(value, Mapping):
        return {name: without_nan(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(inner) for inner in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def version() -> str:
    """Return the installed version of aethermind-core."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as version_of

    try:
        return version_of("aethermind-core")
    except PackageNotFoundError:
        return "(run from a source tree that is not installed)"


class TextWriter:
    """Prints a growing text, only the new part each time; on a terminal, control characters are replaced. Mutable."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_terminal = is_terminal(stream)
        self._num_written = 0

    def show(self, text: str) -> None:
        """Print the part of `text` that has not been printed yet; `text` is the whole text so far."""
        if len(text) > self._num_written:
            part = text[self._num_written :]
            self._write(printable(part) if self._is_terminal else part)
            self._stream.flush()
            self._num_written = len(text)

    def finish(self, text: str) -> None:
        """Print the rest of `text`, and end the line."""
        self.show(text)
        if not text.endswith("\n"):
            self.show(text + "\n")

    def _write(self, part: str) -> None:
        self._stream.write(part)


def weight_format_record(use: FormatUsage) -> dict[str, Any]:
    """Return one format's entry of `--json`: how many parameters use it, and their size."""
    return {
        "name": use.name,
        "num_parameters": use.num_parameters,
        "num_dequantized": use.num_dequantized,
        "num_values": use.num_values,
        "nbytes": use.nbytes,
        "bits_per_weight": use.bits_per_weight,
    }


def describe_weight_formats(records: Sequence[dict[str, Any]]) -> str:
    """Return text such as `168 matrices in int4: 201 MB, 4.50 bits per weight; …`; empty if all weights are dense."""
    return "; ".join(map(_describe_weight_format, records))


def _describe_weight_format(record: dict[str, Any]) -> str:
    count, num_dequantized = record["num_parameters"], record["num_dequantized"]
    text = (
        f"{count} {'matrix' if count == 1 else 'matrices'} in {record['name']}: "
        f"{quantity(record['nbytes'], 'B')}, {record['bits_per_weight']:.2f} bits per weight"
    )
    if num_dequantized:
        text += (
            ", dequantized to float32"
            if num_dequantized == count
            else f", {num_dequantized} of them dequantized to float32"
        )
    return text
