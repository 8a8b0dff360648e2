"""A small table of settings with one of each type; `heat` has an earlier name."""

from __future__ import annotations

from dataclasses import dataclass

from aethermind.config import Section, setting


@dataclass(frozen=True, slots=True)
class Oven:
    """An oven."""

    heat: int = setting(180, "degrees", variable="AETHERMIND_HEAT", old_names=("temperature",))
    rate: float | None = setting(None, "degrees a second", unset="the oven's")
    door: bool = setting(False, "open")

    def __post_init__(self) -> None:
        if self.heat < 0:
            raise ValueError(f"heat should be positive, got {self.heat}.")
        if self.door and self.heat > 200:
            raise ValueError("The door is open: lower heat.")


@dataclass(frozen=True, slots=True)
class Bread:
    """A bread."""

    name: str = setting("rye", "its name", parameter="bread")
    seeds: tuple[str, ...] = setting((), "on top")


SECTIONS = (Section("oven", (Oven,)), Section("bread", (Bread,)))
