"""Rounds: every engine does each job in turn, between two measurements of what the machine allows."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from itertools import count, groupby
from typing import Any

from tests.bench.peers.columns import Column
from tests.bench.peers.roster import Contestant
from tests.bench.peers.table import Sample
from tests.bench.peers.worker import EngineError, Worker, start_to_first_token

__all__ = ["Limits", "measure", "measure_limits"]

Limits = dict[str, Any]
# No prompt of a run begins like another, of whatever length: an engine that caches prefixes has to compute all of it.
_NONCES = count()
MEMORY_JOB = {"measure": "prefill", "tokens": 2048, "nonce": 0}
MIB = 2**20


def measure(
    model: str,
    contestants: Sequence[Contestant],
    columns: Iterable[Column],
    rounds: int,
    limits: Callable[[], Limits],
    say: Callable[[str], None],
) -> Iterator[Sample]:
    """Samples of one precision of one model. What fails is said and left out.

    Columns that need the same room share processes, and the engines' order is another one in each round.
    """
    for room, group in groupby(columns, key=lambda column: (column.fresh, column.max_context, column.max_batch)):
        with _workers([] if room[0] else contestants, room[1], room[2], say) as workers:
            taking_part = [one for one in contestants if room[0] or one.name in workers]
            for column in group:
                able = [one for one in taking_part if _do(one, workers, column, say) is not None]
                for number in range(rounds):
                    yield from _round(model, _rotated(able, number), workers, column, limits, say)


def _round(
    model: str,
    contestants: Sequence[Contestant],
    workers: dict[str, Worker],
    column: Column,
    limits: Callable[[], Limits],
    say: Callable[[str], None],
) -> Iterator[Sample]:
    began = datetime.now(UTC).isoformat(timespec="microseconds")
    before = limits()
    done = [(one, _do(one, workers, column, say)) for one in contestants]
    around = [before, limits()]
    for one, seconds in done:
        if seconds is not None:
            worker = workers.get(one.name) if one.is_ours else None
            fraction = _limit_fraction(worker, column, around, seconds) if worker else None
            value = column.value(seconds)
            yield Sample(began, model, one.precision, one.name, one.is_ours, column.name, value, fraction, around)


def _do(contestant: Contestant, workers: dict[str, Worker], column: Column, say: Callable[[str], None]) -> float | None:
    """Seconds (or MiB) of one job; None where the engine cannot do it."""
    try:
        if column.name == "start":
            return start_to_first_token(contestant)
        if column.name == "memory":
            with Worker(contestant, column.max_context, column.max_batch) as worker:
                return float(worker.run(MEMORY_JOB)["peak_rss_bytes"]) / MIB
        job = dict(column.job)
        if job["measure"] == "prefill":
            job["nonce"] = next(_NONCES)
        return float(workers[contestant.name].run(job)["seconds"])
    except EngineError as error:
        say(f"{contestant.name}: no {column.title} ({error})")
        return None


def _limit_fraction(worker: Worker, column: Column, around: Sequence[Limits], seconds: float) -> float | None:
    """The least time that the job takes under the limits around it, over the time that it took."""
    rates = [limits["flops_per_s"] for limits in around]
    names = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "int8": "int8"}
    flops = {
        long: sum(rate[short] for rate in rates) / len(rates) for short, long in names.items() if rates[0].get(short)
    }
    bandwidth = sum(limits["memory_bytes_per_s"] for limits in around) / len(around)
    try:
        least = worker.run(
            {"measure": "least", "job": column.job, "memory_bytes_per_s": bandwidth, "flops_per_s": flops}
        )
    except EngineError:
        return None
    return float(least["seconds"]) / seconds


@contextmanager
def _workers(
    contestants: Sequence[Contestant], max_context: int, max_batch: int, say: Callable[[str], None]
) -> Iterator[dict[str, Worker]]:
    with ExitStack() as stack:
        started: dict[str, Worker] = {}
        for one in contestants:
            try:
                started[one.name] = stack.enter_context(Worker(one, max_context, max_batch))
            except EngineError as error:
                say(f"{one.name} did not start: {error}")
        yield started


def _rotated(contestants: Sequence[Contestant], by: int) -> list[Contestant]:
    start = by % len(contestants) if contestants else 0
    return [*contestants[start:], *contestants[:start]]


def measure_limits(threads: int) -> Limits:
    """What `aethermind bench limits` measures now."""
    command = [sys.executable, "-m", "aethermind", "bench", "limits", "--json", "--threads", str(threads)]
    limits: Limits = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return limits
