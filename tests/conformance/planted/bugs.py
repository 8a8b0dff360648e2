"""The bugs that the kit has to find. Each is a text that stands once in a file of a subject, and what it becomes.

@ device.py --suite hal              of the bugs below: the file, and what `aethermind conform` is given
= leak | buffers are never freed     a name, and what it breaks
-release=host.free                   what stands there
+release=kept.append                 what takes its place
! nobody looks                       why the kit does not find it, if so
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["BUGS", "Bug"]

_TABLES = ("device.bugs", "kernels.bugs", "native.bugs")


@dataclass(frozen=True, slots=True)
class Bug:
    """`old` stands once in `file` and becomes `new`; `cases` are the part of the kit that is about that place."""

    name: str
    breaks: str
    file: str
    cases: tuple[str, ...]
    old: str
    new: str
    survives: str = ""

    @property
    def device(self) -> str:
        """The device that has it."""
        return "cpu" if self.file == "kernels.cpp" else "planted"

    def planted_in(self, text: str) -> str:
        """A file's text with the bug; AssertionError where it has no such place."""
        assert text.count(self.old) == 1, f"{self.name}: {self.old!r} is {text.count(self.old)} times in {self.file}"
        return text.replace(self.old, self.new)


def _read(path: Path) -> Iterator[Bug]:
    file, cases = "", ()
    name = breaks = survives = ""
    old: list[str] = []
    new: list[str] = []
    for line in [*path.read_text(encoding="utf-8").splitlines(), ""]:
        mark, rest = line[:1], line[1:]
        if mark == "@":
            file, *words = shlex.split(rest)
            cases = tuple(words)
        elif mark == "=":
            name, _, breaks = (part.strip() for part in rest.partition("|"))
        elif mark == "-":
            old.append(rest)
        elif mark == "+":
            new.append(rest)
        elif mark == "!":
            survives = rest.strip()
        elif not mark and old:
            yield Bug(name, breaks, file, cases, "\n".join(old), "\n".join(new), survives)
            old, new, survives = [], [], ""
        else:
            assert mark in ("", "#"), f"{path.name}: what is {line!r}?"


BUGS: tuple[Bug, ...] = tuple(bug for table in _TABLES for bug in _read(Path(__file__).with_name(table)))
