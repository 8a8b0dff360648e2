"""The kinds of packages that `aethermind plugin new` writes, and the names of a new package."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from aethermind.errors import InvalidArgumentError

if TYPE_CHECKING:
    from aethermind.runtime import Runtime

__all__ = ["KINDS", "KindInfo", "PackageKind", "PackageNames"]


_PREFIX = "aethermind-"
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


@dataclass(frozen=True, slots=True)
class PackageNames:
    """The spellings of a name such as `my-chip`."""

    name: str

    @classmethod
    def parse(cls, text: str) -> PackageNames:
        """Parse `my-chip` or `aethermind-my-chip`; InvalidArgumentError for what is no name of a module."""
        name = text.removeprefix(_PREFIX)
        if not _NAME.fullmatch(name) or keyword.iskeyword(name):
            raise InvalidArgumentError(
                f"{text!r} cannot name a package; write lower-case letters, digits and single dashes, beginning with "
                "a letter and no word of Python's own, such as my-chip."
            )
        return cls(name)

    @property
    def distribution(self) -> str:
        """The distribution, which pip installs."""
        return f"{_PREFIX}{self.name}"

    @property
    def module(self) -> str:
        """The module, which Python imports."""
        return self.distribution.replace("-", "_")

    @property
    def identifier(self) -> str:
        """The name with underscores instead of dashes."""
        return self.name.replace("-", "_")

    @property
    def class_name(self) -> str:
        """The prefix of class names."""
        return "".join(part.capitalize() for part in self.name.split("-"))


class PackageKind(StrEnum):
    """The kinds of packages, by the command line's names; each has a folder below `templates`."""

    BACKEND = "backend"
    MODEL = "model"
    OPERATOR = "operator"
    KV_STORE = "kv-store"
    POLICY = "policy"


class KindInfo(NamedTuple):
    """A kind of package: its title, the requirements of its tests, and commands that use it.

    `claimed` returns the name that the package will register, `taken` the names that are registered already.
    """

    title: str
    test_requirements: tuple[str, ...]
    commands: tuple[str, ...]
    claimed: Callable[[PackageNames], str]
    taken: Callable[[Runtime], Iterable[str]]

    @property
    def article(self) -> str:
        """The title's indefinite article: `a backend`, `an operator`."""
        return "an" if self.title[0] in "aeiou" else "a"


_DEMO_MODEL = ("aethermind-qwen2",)

KINDS: dict[PackageKind, KindInfo] = {
    PackageKind.BACKEND: KindInfo(
        "backend",
        ("aethermind-core[testing]", *_DEMO_MODEL),
        (
            'aethermind generate "Once upon a time" --device {name}',
            "aethermind explain --model demo --device {name}",
            "aethermind conform {name}",
        ),
        lambda names: names.name,
        lambda runtime: ["auto", *(entry.name for entry in runtime.devices)],
    ),
    PackageKind.MODEL: KindInfo(
        "model family",
        ("aethermind-core[testing]",),
        (
            "aethermind conform {name}",
            "aethermind generate --model DIRECTORY  # of a checkpoint whose architecture is {class_name}ForCausalLM",
        ),
        lambda names: f"{names.class_name}ForCausalLM",
        lambda runtime: runtime.architectures.names(),
    ),
    PackageKind.OPERATOR: KindInfo(
        "operator",
        (),
        ("aethermind ops {identifier}",),
        lambda names: names.identifier,
        lambda runtime: [operator.name for operator in runtime.operators],
    ),
    PackageKind.KV_STORE: KindInfo(
        "KV store",
        _DEMO_MODEL,
        ('aethermind generate "Once upon a time" --kv-store {name}:/tmp/{name}',),
        lambda names: names.name,
        lambda runtime: runtime.kv_stores.names(),
    ),
    PackageKind.POLICY: KindInfo(
        "scheduling policy",
        _DEMO_MODEL,
        (
            "aethermind simulate TRACE --policy fcfs,{name}  # README.md writes a small trace",
            "aethermind serve --scheduling-policy {name}",
        ),
        lambda names: names.name,
        lambda runtime: runtime.policies.names(),
    ),
}
