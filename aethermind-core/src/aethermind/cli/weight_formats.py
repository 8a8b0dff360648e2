"""How a model's weight formats are told, to people and in JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from aethermind.cli import console

if TYPE_CHECKING:
    from aethermind.engine.weight_formats import FormatUse

__all__ = ["as_record", "describe"]


def as_record(use: FormatUse) -> dict[str, Any]:
    """One format's share of a model, for `--json`."""
    return {
        "name": use.name,
        "num_parameters": use.num_parameters,
        "num_values": use.num_values,
        "nbytes": use.nbytes,
        "bits_per_weight": use.bits_per_weight,
    }


def describe(records: Sequence[dict[str, Any]]) -> str:
    """`168 matrices in int4, 4.50 bits a weight, 201 MB; …`, or nothing where all is dense."""
    return "; ".join(
        f"{one['num_parameters']} {'matrix' if one['num_parameters'] == 1 else 'matrices'} in {one['name']}, "
        f"{one['bits_per_weight']:.2f} bits a weight, {console.quantity(one['nbytes'], 'B')}"
        for one in records
    )
