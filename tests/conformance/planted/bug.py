"""One bug: a text that stands once in a file of a vehicle, and what it becomes."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Bug"]


@dataclass(frozen=True, slots=True)
class Bug:
    """`old` stands once in `file` and becomes `new`, and that breaks something.

    `cases` is what the runner gives `aethermind conform` besides the device: the part of the kit that is about the
    place of the bug. `survives` says why, where the kit does not find it.
    """

    name: str
    breaks: str
    file: str
    old: str
    new: str
    cases: tuple[str, ...]
    survives: str = ""

    @property
    def device(self) -> str:
        """The device that has it."""
        return "cpu" if self.file == "kernels.cpp" else "planted"

    def planted_in(self, text: str) -> str:
        """A file's text with the bug; AssertionError where it has no such place."""
        assert text.count(self.old) == 1, f"{self.name}: {self.old!r} is {text.count(self.old)} times in {self.file}"
        return text.replace(self.old, self.new)
