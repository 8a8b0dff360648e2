"""Where a store is, as one writes it: `disk:/var/cache/kv?size=20GiB`, `redis://host:6379/0`, `host:2GiB`, a name."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from aethermind.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["StoreAddress", "parse_size"]

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]i?)?B?", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.+-]*")


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """An address in its parts: `name:location?option=value&…`."""

    name: str
    """Which kind of store; kinds are registered by name."""
    location: str = ""
    options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def parse(cls, text: str) -> StoreAddress:
        """Take an address apart. InvalidArgumentError where it has no name or says an option twice."""
        name, _, rest = text.partition(":")
        name, _, bare_options = name.partition("?")
        if not _NAME.fullmatch(name):
            raise InvalidArgumentError(
                f"{text!r} is no address of a KV store; write disk:/path, redis://host:6379/0, host:2GiB, or a name."
            )
        location, _, options = rest.partition("?")
        pairs = parse_qsl(options or bare_options, keep_blank_values=True)
        if len(dict(pairs)) != len(pairs):
            raise InvalidArgumentError(f"{text!r} says one option of a KV store twice; keep one of them.")
        return cls(name, location, MappingProxyType(dict(pairs)))

    def __str__(self) -> str:
        """The address for people: without options, and without a user's name and password."""
        location = re.sub(r"//[^@/]*@", "//", self.location)
        return f"{self.name}:{location}" if location else self.name

    def check_options(self, known: Iterable[str]) -> None:
        """InvalidArgumentError for an option that is none of `known`."""
        unknown = sorted(self.options.keys() - set(known))
        if unknown:
            raise InvalidArgumentError(
                f"KV store {self} has no option {unknown[0]!r}; it has {', '.join(sorted(known)) or 'none'}."
            )

    def size_option(self, name: str, default: int) -> int:
        """The bytes that an option says, or `default`; InvalidArgumentError for what is no size."""
        return parse_size(self.options[name]) if name in self.options else default


def parse_size(text: str) -> int:
    """The bytes in `512MiB`, `10GB` or `4096`: powers of 1024 with an i, of 1000 without.

    InvalidArgumentError for anything else, and for less than a byte.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise InvalidArgumentError(f"{text!r} is no size; write one such as 10GiB, 512MiB or a number of bytes.")
    number, unit = match.groups()
    exponent = " KMGT".index(unit[0].upper()) if unit else 0
    num_bytes = int(float(number) * (1024 if unit and len(unit) == 2 else 1000) ** exponent)
    if num_bytes < 1:
        raise InvalidArgumentError(f"A KV store of {text} holds nothing; give it more.")
    return num_bytes
