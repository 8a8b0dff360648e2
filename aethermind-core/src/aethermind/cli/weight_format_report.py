"""Reports which weight formats a model uses, as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from aethermind.cli import console

if TYPE_CHECKING:
    from aethermind.engine.loading.weight_formats import FormatUsage

__all__ = ["as_record", "describe"]


def as_record(use: FormatUsage) -> dict[str, Any]:
    """Return one format's entry of `--json`: how many parameters use it, and their size."""
    return {
        "name": use.name,
        "num_parameters": use.num_parameters,
        "num_dequantized": use.num_dequantized,
        "num_values": use.num_values,
        "nbytes": use.nbytes,
        "bits_per_weight": use.bits_per_weight,
    }


def describe(records: Sequence[dict[str, Any]]) -> str:
    """Return text such as `168 matrices in int4: 201 MB, 4.50 bits per weight; …`; empty if all weights are dense."""
    return "; ".join(map(_describe_one, records))


def _describe_one(record: dict[str, Any]) -> str:
    count, num_dequantized = record["num_parameters"], record["num_dequantized"]
    text = (
        f"{count} {'matrix' if count == 1 else 'matrices'} in {record['name']}: "
        f"{console.quantity(record['nbytes'], 'B')}, {record['bits_per_weight']:.2f} bits per weight"
    )
    if num_dequantized:
        text += (
            ", dequantized to float32"
            if num_dequantized == count
            else f", {num_dequantized} of them dequantized to float32"
        )
    return text
