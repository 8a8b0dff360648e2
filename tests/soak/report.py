"""Figures with the bars that they have to keep, as a table and as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Figure", "as_record", "as_table", "percentile"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure. `most` is the bar, None where it only informs; a timing depends on the machine, too."""

    name: str
    value: float
    most: float | None = None
    is_timing: bool = False

    @property
    def is_kept(self) -> bool:
        """Whether the bar is kept."""
        return self.most is None or self.value <= self.most


def percentile(values: Sequence[float], share: float) -> float:
    """The value that this share of them does not exceed; nan of none."""
    ordered = sorted(values)
    return ordered[min(math.ceil(share * len(ordered)) - 1, len(ordered) - 1)] if ordered else math.nan


def as_record(figures: Sequence[Figure]) -> list[dict[str, Any]]:
    """For JSON."""
    return [{**asdict(one), "is_kept": one.is_kept} for one in figures]


def as_table(results: dict[str, Sequence[Figure]]) -> str:
    """For people."""
    rows = [("scenario", "figure", "measured", "bar", "")]
    for scenario, figures in results.items():
        for one in figures:
            bar = "" if one.most is None else f"≤ {one.most:g}"
            rows.append((scenario, one.name, f"{one.value:.4g}", bar, "" if one.is_kept else "MISSED"))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, [*widths, 0], strict=True)) for row in rows
    )
