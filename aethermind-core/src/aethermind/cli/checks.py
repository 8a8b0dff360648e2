"""Numbers from the command line, checked before anything is loaded for them."""

from __future__ import annotations

from aethermind.errors import InvalidArgumentError

__all__ = ["check_numbers", "check_sizes"]


def check_numbers(**values: float | None) -> None:
    """InvalidArgumentError for the first option whose value is given and not a number above 0."""
    for name, value in values.items():
        if value is not None and not 0 < value < 1e9:
            raise InvalidArgumentError(f"--{name.replace('_', '-')} is {value} but must be a number above 0.")


def check_sizes(**values: int | None) -> None:
    """InvalidArgumentError for the first option whose value is given and not an integer from 1 on."""
    for name, value in values.items():
        if value is not None and not 0 < value < 2**31:
            raise InvalidArgumentError(f"--{name.replace('_', '-')} is {value} but must be an integer of 1 or more.")
