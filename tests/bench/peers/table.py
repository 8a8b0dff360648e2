"""From samples to the table: medians, spreads, and ratios to the best peer of the same precision."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from tests.bench.peers.columns import COLUMNS, Column

__all__ = ["Cell", "Sample", "best_peer", "cells", "render"]


@dataclass(frozen=True, slots=True)
class Sample:
    """What one engine reached in one round. `round` is when that began, the same for all who took part;
    `limit_fraction` is None where nobody counted what the job needs at least; `limits` are those before and after it.
    """

    round: str
    model: str
    precision: str
    engine: str
    is_ours: bool
    column: str
    value: float
    limit_fraction: float | None
    limits: Sequence[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Cell:
    """The samples of one engine in one column. `ratio` is above one where ours is better than the best peer: the median
    over rounds of the ratios in each, so that what slows a whole round down cancels.
    """

    engine: str
    median: float
    spread: float
    rounds: int
    limit_fraction: float | None
    ratio: float | None = None
    best_peer: str | None = None


def cells(samples: Sequence[Sample], column: Column) -> list[Cell]:
    """One cell for each engine among samples of one model, precision and column, in the order of appearance."""
    rival = best_peer(samples, column)
    return [_cell(engine, samples, column, rival) for engine in dict.fromkeys(sample.engine for sample in samples)]


def best_peer(samples: Sequence[Sample], column: Column) -> str | None:
    """The peer of the best median; None where no peer was measured."""
    medians = {
        engine: median(_values(samples, engine)) for engine in {one.engine for one in samples if not one.is_ours}
    }
    if not medians:
        return None
    return (max if column.more_is_better else min)(sorted(medians), key=lambda engine: medians[engine])


def _cell(engine: str, samples: Sequence[Sample], column: Column, rival: str | None) -> Cell:
    own = [one for one in samples if one.engine == engine]
    values = [one.value for one in own]
    fractions = [one.limit_fraction for one in own if one.limit_fraction is not None]
    middle = median(values)
    ratio = None
    if own[0].is_ours and rival is not None:
        ratio = _ratio(own, [one for one in samples if one.engine == rival], column)
    return Cell(
        engine,
        middle,
        (max(values) - min(values)) / middle,
        len(values),
        median(fractions) if fractions else None,
        ratio,
        rival if ratio is not None else None,
    )


def _ratio(ours: Sequence[Sample], theirs: Sequence[Sample], column: Column) -> float | None:
    """The median over the rounds in which both took part."""
    rival = {one.round: one.value for one in theirs}
    ratios = [one.value / rival[one.round] for one in ours if one.round in rival]
    if not ratios:
        return None
    return median(ratios if column.more_is_better else [1 / ratio for ratio in ratios])


def _values(samples: Iterable[Sample], engine: str) -> list[float]:
    return [one.value for one in samples if one.engine == engine]


def render(samples: Sequence[Sample]) -> str:
    """Markdown: one table for each model and precision, a row for each figure, and the limits it was measured under."""
    parts = []
    for model, precision in dict.fromkeys((one.model, one.precision) for one in samples):
        lines = [
            f"## {model}, {precision}",
            "",
            "| | engine | median | spread | of the limit | to the best peer | memory GB/s |",
            "|---|---|---|---|---|---|---|",
        ]
        for column in COLUMNS:
            own = [one for one in samples if (one.model, one.precision, one.column) == (model, precision, column.name)]
            for index, cell in enumerate(cells(own, column)):
                lines.append(_row(column.title if index == 0 else "", cell, _bandwidths(own) if index == 0 else ""))
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _row(title: str, cell: Cell, bandwidths: str) -> str:
    ratio = "" if cell.ratio is None else f"**{cell.ratio:.2f} ×** {cell.best_peer}"
    fraction = "" if cell.limit_fraction is None else f"{cell.limit_fraction:.0%}"
    spread = f"{cell.spread:.0%} of {cell.rounds}"
    return f"| {title} | {cell.engine} | {_number(cell.median)} | {spread} | {fraction} | {ratio} | {bandwidths} |"


def _number(value: float) -> str:
    """Three digits that mean something, never an exponent."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _bandwidths(samples: Iterable[Sample]) -> str:
    """The least and the most memory bandwidth measured around a column's rounds."""
    rates = [limits["memory_bytes_per_s"] / 1e9 for one in samples for limits in one.limits]
    return f"{min(rates):.0f} to {max(rates):.0f}" if rates else ""
