"""Settings: frozen dataclasses whose fields have a default, a help text, a check and names.

Each field is a key of a configuration file, an environment variable and a flag of the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, NamedTuple, cast, get_type_hints

from aethermind.errors import InvalidArgumentError

__all__ = ["Check", "Section", "Setting", "check_fields", "one_of", "setting", "settings_of", "within"]


class Check(NamedTuple):
    """The values that a setting accepts: a predicate, and `requirement`, the words after `should be` in messages.

    `choices` lists the values where there are few; `minimum` and `maximum` are inclusive bounds of a number.
    """

    accepts: Callable[[Any], bool]
    requirement: str
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None


def one_of(*choices: str) -> Check:
    """Accept these strings."""
    return Check(lambda value: value in choices, f"one of {', '.join(choices)}", choices)


def within(minimum: float, maximum: float | None, requirement: str) -> Check:
    """Accept numbers from `minimum` to `maximum`, both included, with None for no maximum; NaN is refused."""
    bound = float("inf") if maximum is None else maximum
    return Check(lambda value: minimum <= value <= bound, requirement, (), minimum, maximum)


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting.

    `help` is a sentence with the unit; `details` continue it in the Python reference. `unset` describes the effect of a
    default of None. `parameter` is the name that commands and Python callers use, `flags` are its spellings on the
    command line if they do not follow from that name, `metavar` is the placeholder of its value there. `variable` is a
    short environment variable besides the regular one. `old_names` are deprecated keys with the same meaning. The value
    of a setting that `is_secret` is never printed.
    """

    default: Any
    help: str
    check: Check | None = None
    unset: str = ""
    details: str = ""
    parameter: str = ""
    flags: tuple[str, ...] = ()
    metavar: str | None = None
    variable: str | None = None
    old_names: tuple[str, ...] = ()
    is_secret: bool = False
    section: str = ""
    key: str = ""
    type: Any = None

    @property
    def name(self) -> str:
        """`engine.block_size`."""
        return f"{self.section}.{self.key}"

    @property
    def variables(self) -> tuple[str, ...]:
        """The environment variables that set it: `AETHERMIND_ENGINE__BLOCK_SIZE`, a short one, deprecated ones."""
        keys = (self.key, *self.old_names)
        regular, *old = (f"AETHERMIND_{self.section}__{key}".upper() for key in keys)
        return (regular, *(() if self.variable is None else (self.variable,)), *old)


def setting(default: Any, help: str, **attributes: Any) -> Any:
    """Return a field of a settings dataclass; `attributes` are further attributes of its `Setting`."""
    return field(default=default, metadata={"setting": Setting(default, help, **attributes)})


@cache
def settings_of(cls: Any) -> Mapping[str, Setting]:
    """Return the settings of a dataclass by field name, in the order of its fields."""
    types = get_type_hints(cls)
    found = {}
    for field_ in fields(cast(Any, cls)):
        name, declared = field_.name, field_.metadata["setting"]
        found[name] = replace(declared, key=name, type=types[name], parameter=declared.parameter or name)
    return found


def check_fields(settings: Any) -> None:
    """Check every field of an instance by its setting. None is accepted where it is the default.

    Raises InvalidArgumentError for the first value that is refused.
    """
    for field_ in fields(settings):
        value, check = getattr(settings, field_.name), field_.metadata["setting"].check
        is_unset = value is None and field_.default is None
        if not (check is None or is_unset or check.accepts(value)):
            raise InvalidArgumentError(f"{field_.name} should be {check.requirement}, got {value!r}.")


@dataclass(frozen=True, slots=True)
class Section:
    """A table (section) of the configuration file: its name, and the dataclasses whose fields are its keys.

    Every field comes from `setting`. A dataclass's `__post_init__` raises ValueError for values out of range.
    """

    name: str
    types: tuple[Any, ...]

    @property
    def settings(self) -> Mapping[str, Setting]:
        """The settings by key, in the order of the dataclasses."""
        found = {key: setting for cls in self.types for key, setting in settings_of(cls).items()}
        return {key: replace(setting, section=self.name) for key, setting in found.items()}
