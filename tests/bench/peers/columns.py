"""What is measured: the columns of the table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["COLUMNS", "Column"]


@dataclass(frozen=True, slots=True)
class Column:
    """One job that every engine does, and how its result reads.

    `work` is the number of tokens that the job is worth, so that seconds become tokens per second; None leaves what was
    measured as it is (seconds, or bytes), and less is better. A `fresh` job gets a process of its own in each round.
    """

    name: str
    title: str
    job: Mapping[str, Any]
    work: int | None = None
    max_context: int = 2304
    max_batch: int = 1
    fresh: bool = False

    @property
    def more_is_better(self) -> bool:
        """Whether a ratio above one means faster."""
        return self.work is not None

    def value(self, seconds: float) -> float:
        """What the table shows for a job of so many seconds (or bytes)."""
        return seconds if self.work is None else self.work / seconds


def _prefill(tokens: int) -> Column:
    job = {"measure": "prefill", "tokens": tokens}
    return Column(f"prefill{tokens}", f"prefill {tokens:,}, tokens/s", job, work=tokens)


def _decode(context: int, tokens: int) -> Column:
    job = {"measure": "decode", "context": context, "tokens": tokens}
    title = f"decode after {context:,}, tokens/s"
    return Column(f"decode{context}", title, job, work=tokens, max_context=max(2304, context + 256))


def _batched(batch: int, tokens: int = 32) -> Column:
    job = {"measure": "batched", "batch": batch, "context": 128, "tokens": tokens}
    title = f"decode of {batch} requests, tokens/s in total"
    return Column(f"batched{batch}", title, job, work=batch * tokens, max_context=512, max_batch=32)


COLUMNS = [
    _prefill(512),
    _prefill(2048),
    _decode(128, tokens=48),
    _decode(2048, tokens=32),
    _decode(16384, tokens=16),
    _batched(8),
    _batched(16),
    _batched(32),
    Column("start", "start to first token, s", {"measure": "start"}, fresh=True),
    Column("memory", "peak memory, 2,048 in, MiB", {"measure": "memory"}, fresh=True),
]
