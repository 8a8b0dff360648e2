"""Progress on a terminal while a model is loaded and while a prompt is computed."""

from __future__ import annotations

import sys
import time
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from aethermind.cli import console
from aethermind.cli.settings import as_arguments

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from aethermind.engine.requests.request import Request
    from aethermind.llm import LLM

__all__ = ["LoadProgress", "PrefillProgress", "SHOW_AFTER_S", "describe_prefill", "open_llm"]


SHOW_AFTER_S = 0.5
"""Seconds before progress is shown."""


class LoadProgress:
    """A progress bar, called with (done, total). It is drawn on a terminal's stderr after SHOW_AFTER_S. Mutable."""

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
            if self._is_over or time.monotonic() - self._started < SHOW_AFTER_S or not console.can_redraw(sys.stderr):
                return
            from aethermind.model.hub_arrival import is_any_arriving

            if is_any_arriving():  # its client draws the progress of the download
                return
            self._draw(total)
        self._bar.update(self._task, completed=done, total=total)
        if done == total:
            self._stop()  # two bars cannot be drawn at once, and another model may be loaded next

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
    """Load an LLM with the options of settings dataclasses and further ones, and show a progress bar."""
    from aethermind.llm import LLM

    with LoadProgress() as progress:
        return LLM(model, on_progress=progress, **as_arguments(*groups), **options)


_REFRESH_S = 0.1


class PrefillProgress:
    """The progress of prefill as a line on stderr, if that is a terminal, from SHOW_AFTER_S seconds on.

    A thread updates the line; `stop` removes it.
    """

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self._is_over = Event()
        self._thread: Thread | None = None

    def __enter__(self) -> PrefillProgress:
        if console.can_redraw(sys.stderr):
            self._thread = Thread(target=self._draw, name="prefill-progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Remove the line; nothing is drawn after this returns. Further calls do nothing."""
        if self._thread is not None:
            self._is_over.set()
            self._thread.join()
            self._thread = None

    def _draw(self) -> None:
        if self._is_over.wait(SHOW_AFTER_S):
            return
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn

        with Progress(
            SpinnerColumn("line"),
            TextColumn("{task.description}"),
            console=Console(stderr=True),
            transient=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        ) as line:
            task = line.add_task("")
            while True:
                line.update(task, description=describe_prefill(list(self._llm.engine.running)), refresh=True)
                if self._is_over.wait(_REFRESH_S):
                    return


def describe_prefill(running: Sequence[Request]) -> str:
    """Return how much of the requests' prompts is computed: `Reading the prompt: 5,120 of 20,000 tokens`."""
    total = sum(request.num_prompt_tokens for request in running)
    done = sum(min(request.num_computed_tokens, request.num_prompt_tokens) for request in running)
    return f"Reading the prompt: {done:,} of {total:,} tokens" if total else "Reading the prompt"
