"""The alphabet of byte-level vocabularies: a printable character for each of the 256 bytes."""

from __future__ import annotations

__all__ = ["BYTE_OF_CHAR"]

_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS = sorted(frozenset(range(0x100)).difference(_PRINTABLE))

BYTE_OF_CHAR = {chr(byte): byte for byte in _PRINTABLE} | {chr(0x100 + i): byte for i, byte in enumerate(_OTHERS)}
"""The byte behind each char: those that print in Latin-1 stand for themselves, the others take U+0100 on, in order."""
