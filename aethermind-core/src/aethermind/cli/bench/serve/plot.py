"""A server under load as a picture: how long answers took, and what came when."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aethermind.cli.picture import COLORS, picture

if TYPE_CHECKING:
    from aethermind.cli.bench.serve.outcome import Outcome

__all__ = ["draw"]

_NUM_SPANS = 60


def draw(outcomes: Sequence[Outcome], path: Path) -> None:
    """The shares of answers with at most this time to first token, and per token; tokens a second over time."""
    done = [one for one in outcomes if one.failure is None]
    with picture(path, num_axes=3) as (_, (left, middle, right)):
        _draw_shares(left, [one.ttft_s for one in done])
        _draw_shares(middle, [tpot * 1e3 for one in done if (tpot := one.tpot_s) is not None])
        _draw_rate(right, done)
        left.set(title="Time to first token", xlabel="seconds", ylabel="share of answers", ylim=(0, 1))
        middle.set(title="Time per output token", xlabel="milliseconds", ylabel="share of answers", ylim=(0, 1))
        right.set(title="Output", xlabel="seconds", ylabel="tokens a second", ylim=(0, None))


def _draw_shares(axes: Any, values: list[float]) -> None:
    shares = [(index + 1) / len(values) for index in range(len(values))]
    axes.step(sorted(values) or [0.0], shares or [0.0], where="post", color=COLORS[0], linewidth=2)


def _draw_rate(axes: Any, done: Sequence[Outcome]) -> None:
    """Tokens of answers, each piece of text standing for as many as the others of its answer."""
    if not done:
        return
    start = min(one.due_s for one in done)
    span = max(max(one.finished_s for one in done) - start, 1e-9) / _NUM_SPANS
    tokens = [0.0] * _NUM_SPANS
    for one in done:
        for time in one.texts_s:
            tokens[min(int((time - start) / span), _NUM_SPANS - 1)] += one.num_output_tokens / len(one.texts_s)
    middles = [(index + 0.5) * span for index in range(_NUM_SPANS)]
    axes.plot(middles, [count / span for count in tokens], color=COLORS[0], linewidth=1.5)
