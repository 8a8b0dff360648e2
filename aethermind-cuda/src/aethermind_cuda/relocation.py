"""Symbolic addresses: steps that differ in their addresses only are bound once over these, and then relocated.

A symbolic address names an operand of a call and is aligned as that operand is. What a kernel adds to it (a part of an
operand or of the workspace) stays apart from the operand's number, like the addend of a relocation in an object file.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["ALIGNMENT", "find_operand", "relocated_address", "symbolic_address"]

ALIGNMENT = 256
"""A symbolic address equals its operand's address modulo this."""

_OPERAND_BITS = 48
_FIRST = 0x6B00
"""The upper 16 bits of a symbolic address are this and the operand's number, which those of no real address are."""

_MOST_OPERANDS = 256
_MIDDLE = 1 << (_OPERAND_BITS - 1)
"""Of the lower bits, so that addends may be negative."""


def symbolic_address(index: int, misalignment: int) -> int:
    """That of operand number `index`, whose address modulo ALIGNMENT is `misalignment`."""
    assert 0 <= index < _MOST_OPERANDS
    return (_FIRST + index << _OPERAND_BITS) + _MIDDLE + misalignment


def find_operand(address: int) -> tuple[int, int] | None:
    """The number of the operand that a symbolic address belongs to, and its distance from the last multiple of
    ALIGNMENT at or before that operand; None for every other address.
    """
    index = (address >> _OPERAND_BITS) - _FIRST
    return (index, (address & (1 << _OPERAND_BITS) - 1) - _MIDDLE) if 0 <= index < _MOST_OPERANDS else None


def relocated_address(address: int, bases: Sequence[int]) -> int:
    """The real address for a symbolic one; `bases` are operands' addresses, rounded down to multiples of ALIGNMENT."""
    found = find_operand(address)
    return address if found is None else bases[found[0]] + found[1]
