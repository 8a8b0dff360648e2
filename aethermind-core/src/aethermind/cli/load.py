"""Opening a model for a command, and a progress bar for what takes long enough to be noticed."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from aethermind.cli import console
from aethermind.cli.groups import as_arguments

if TYPE_CHECKING:
    from types import TracebackType

    from aethermind.llm import LLM

__all__ = ["LoadProgress", "PATIENCE_S", "open_llm"]

PATIENCE_S = 0.5
"""Seconds of silence that need no explanation."""


class LoadProgress:
    """Called with (done, total), draws on a terminal's stderr once PATIENCE_S have passed. Mutable."""

    def __init__(self, title: str = "Loading") -> None:
        self._title = title
        self._started = time.monotonic()
        self._bar: Any = None
        self._task: Any = None
        self._is_over = False

    def __enter__(self) -> LoadProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def __call__(self, done: int, total: int) -> None:
        if self._bar is None:
            if self._is_over or time.monotonic() - self._started < PATIENCE_S or not console.can_redraw(sys.stderr):
                return
            self._draw(total)
        self._bar.update(self._task, completed=done, total=total)
        if done == total:
            self._stop()  # here, because two bars cannot be drawn at once and another model may come next

    def _stop(self) -> None:
        self._is_over = True
        if self._bar is not None:
            self._bar.stop()

    def _draw(self, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

        parts = (TextColumn(self._title), BarColumn(), TaskProgressColumn())
        self._bar = Progress(*parts, console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task("", total=total)
        self._bar.start()


def open_llm(model: str, *groups: Any, **options: Any) -> LLM:
    """An LLM with the options of these groups and more, its progress shown."""
    from aethermind.llm import LLM

    with LoadProgress() as progress:
        return LLM(model, on_progress=progress, **as_arguments(*groups), **options)
