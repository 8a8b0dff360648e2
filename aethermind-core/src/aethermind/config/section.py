"""One component's settings: a frozen dataclass, each field of which is a key of a file, a variable and a flag."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, cast, get_type_hints

__all__ = ["Section", "Setting", "setting"]


def setting(
    default: Any,
    meaning: str,
    *,
    unset: str = "",
    parameter: str | None = None,
    variable: str | None = None,
    is_secret: bool = False,
) -> Any:
    """A field of a section's dataclass.

    `unset` says what a default of None leads to. `parameter` is the name that commands have for it, where that is not
    the field's; `variable` a short environment variable besides the regular one.
    The value of one that `is_secret` is never printed.
    """
    return field(
        default=default,
        metadata={
            "meaning": meaning,
            "unset": unset,
            "parameter": parameter,
            "variable": variable,
            "is_secret": is_secret,
        },
    )


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of a section."""

    section: str
    key: str
    type: Any
    default: Any
    meaning: str
    unset: str
    parameter: str
    short_variable: str | None
    is_secret: bool

    @property
    def name(self) -> str:
        """`engine.block_size`."""
        return f"{self.section}.{self.key}"

    @property
    def variables(self) -> tuple[str, ...]:
        """The environment variables that set it: `AETHERMIND_ENGINE__BLOCK_SIZE`, and a short one if there is."""
        regular = f"AETHERMIND_{self.section}__{self.key}".upper()
        return (regular,) if self.short_variable is None else (regular, self.short_variable)


@dataclass(frozen=True, slots=True)
class Section:
    """A table of the file: its name, and the dataclass whose fields are its keys.

    Every field comes from `setting`. The dataclass's `__post_init__` says what is out of range, by a ValueError.
    """

    name: str
    type: type[Any]

    @property
    def settings(self) -> Mapping[str, Setting]:
        """The settings by key, in the order of the dataclass."""
        types = get_type_hints(self.type)
        found = {}
        for one in fields(cast(Any, self.type)):
            about = one.metadata
            found[one.name] = Setting(
                self.name,
                one.name,
                types[one.name],
                one.default,
                about["meaning"],
                about["unset"],
                about["parameter"] or one.name,
                about["variable"],
                about["is_secret"],
            )
        return found
