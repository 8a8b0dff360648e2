"""Symbolic addresses: steps that differ in their addresses only are bound once with these and then relocated.

A symbolic address encodes the number of a call's operand and has the operand's alignment. Offsets that a kernel adds to
it do not overlap the number, like the addend of a relocation in an object file.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["ALIGNMENT", "find_operand", "relocated_address", "symbolic_address"]

ALIGNMENT = 256
"""A symbolic address equals its operand's address modulo this."""

_OPERAND_BITS = 48
_FIRST_TAG = 0x6B00
"""Tag in the upper 16 bits of a symbolic address, with the operand's number; no real address has it."""

_MAX_OPERANDS = 256
_ADDEND_BIAS = 1 << (_OPERAND_BITS - 1)
"""Bias of the lower bits, so that addends may be negative."""


def symbolic_address(index: int, misalignment: int) -> int:
    """The symbolic address of operand `index`, whose address modulo ALIGNMENT is `misalignment`."""
    assert 0 <= index < _MAX_OPERANDS
    return (_FIRST_TAG + index << _OPERAND_BITS) + _ADDEND_BIAS + misalignment


def find_operand(address: int) -> tuple[int, int] | None:
    """Decode a symbolic address: the operand's number, and the offset from the operand's address rounded down to
    ALIGNMENT. None for other addresses.
    """
    index = (address >> _OPERAND_BITS) - _FIRST_TAG
    return (index, (address & (1 << _OPERAND_BITS) - 1) - _ADDEND_BIAS) if 0 <= index < _MAX_OPERANDS else None


def relocated_address(address: int, bases: Sequence[int]) -> int:
    """The real address for a symbolic one; `bases` are operands' addresses, rounded down to multiples of ALIGNMENT."""
    found = find_operand(address)
    return address if found is None else bases[found[0]] + found[1]
