"""How a weight's values are stored: bits, blocks and scales.

Dispatch keys on it; packing into a kernel's layout is the kernel's affair.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DENSE", "WeightFormat"]


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """`bits` per value; `block` values share a scale (0: none); `has_zero_point` for asymmetric blocks.

    DENSE holds plain floats, whose dtype says how many bits they have: its `bits` are 0.
    """

    name: str
    bits: int
    block: int = 0
    has_zero_point: bool = False


DENSE = WeightFormat("dense", 0)
"""Plain values of the activation dtype."""
