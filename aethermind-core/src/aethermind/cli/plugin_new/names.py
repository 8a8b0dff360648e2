"""What a new package is called: one name, and the distribution, module and class that follow from it."""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass

from aethermind.errors import InvalidArgumentError

__all__ = ["Names"]

_PREFIX = "aethermind-"
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


@dataclass(frozen=True, slots=True)
class Names:
    """The spellings of a name such as `my-chip`."""

    name: str

    @classmethod
    def parse(cls, text: str) -> Names:
        """Take `my-chip` or `aethermind-my-chip`; InvalidArgumentError for what cannot name distribution and module."""
        name = text.removeprefix(_PREFIX)
        if not _NAME.fullmatch(name) or keyword.iskeyword(name):
            raise InvalidArgumentError(
                f"{text!r} cannot name a package; write lower-case letters, digits and single dashes, beginning with "
                "a letter and no word of Python's own, such as my-chip."
            )
        return cls(name)

    @property
    def distribution(self) -> str:
        """What pip installs."""
        return f"{_PREFIX}{self.name}"

    @property
    def module(self) -> str:
        """What Python imports."""
        return self.distribution.replace("-", "_")

    @property
    def identifier(self) -> str:
        """The name where dashes are not allowed."""
        return self.name.replace("-", "_")

    @property
    def class_name(self) -> str:
        """The name as classes begin."""
        return "".join(part.capitalize() for part in self.name.split("-"))
