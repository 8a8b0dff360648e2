"""A simulation as a picture, by matplotlib."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aethermind.cli.picture import COLORS, picture

if TYPE_CHECKING:
    from aethermind.engine.simulation import Simulation

__all__ = ["draw"]

_NUM_CLASSES = 4
_NUM_SPANS = 100


def draw(runs: Mapping[str, Simulation], path: Path) -> None:
    """Times to first token, the queue over time, and whom the waiting falls on; one colour a policy."""
    with picture(path, num_axes=3) as (figure, (left, middle, right)):
        for index, (name, run) in enumerate(runs.items()):
            color = COLORS[index % len(COLORS)]
            _draw_first_tokens(left, run, name, color)
            middle.plot(*_mean_queue(run), color=color, linewidth=1.5)
            _draw_classes(right, run, index, len(runs), color)
        left.set(title="Time to first token", xlabel="seconds", ylabel="share of requests", xscale="log", ylim=(0, 1))
        middle.set(title="Requests waiting", xlabel="minutes", ylabel="requests", ylim=(0, None))
        right.set(title="Time to first token by size of request, p90", ylabel="seconds")
        right.set_xticks(range(_NUM_CLASSES), ["shortest ¼", "2nd", "3rd", "longest ¼"])
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=len(runs), frameon=False)


def _draw_first_tokens(axes: Any, run: Simulation, name: str, color: str) -> None:
    waits = sorted(
        record.first_token_s - record.trace.arrival_s for record in run.records if record.first_token_s is not None
    )
    step = max(len(waits) // 200, 1)  # as many points as a picture can show
    shares = [(index + 1) / len(waits) for index in range(len(waits))]
    axes.plot(waits[::step] or [0.0], shares[::step] or [0.0], color=color, linewidth=2, label=name)


def _mean_queue(run: Simulation) -> tuple[list[float], list[float]]:
    """Minutes, and how many requests waited then: means over as many spans of time as can be told apart."""
    span = max(run.makespan_s, 1e-9) / _NUM_SPANS
    waited = [0.0] * (_NUM_SPANS + 1)
    ends = [*(time for time, _ in run.queue[1:]), run.makespan_s]
    for (start, length), end in zip(run.queue, ends, strict=True):
        while start < end:
            index = min(int(start / span), _NUM_SPANS - 1)
            upto = end if index == _NUM_SPANS - 1 else min(end, (index + 1) * span)
            waited[index] += length * (upto - start)
            if upto <= start:
                break
            start = upto
    minutes = [(index + 0.5) * span / 60 for index in range(_NUM_SPANS)]
    return minutes, [total / span for total in waited[:_NUM_SPANS]]


def _draw_classes(axes: Any, run: Simulation, index: int, count: int, color: str) -> None:
    from aethermind.engine.simulation import percentile

    done = sorted(
        (record.trace.num_prompt_tokens + record.trace.num_output_tokens, record.first_token_s - record.trace.arrival_s)
        for record in run.records
        if record.first_token_s is not None
    )
    bounds = [len(done) * part // _NUM_CLASSES for part in range(_NUM_CLASSES + 1)]
    heights = [percentile([wait for _, wait in done[start:end]], 90) for start, end in pairwise(bounds)]
    width = 0.8 / count
    places = [part - 0.4 + width * (index + 0.5) for part in range(_NUM_CLASSES)]
    axes.bar(places, heights, width=width * 0.9, color=color)
