"""A progress bar on stderr, for scripts and notebooks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TextIO

__all__ = ["ProgressBar"]

_WIDTH = 40


class ProgressBar:
    """A bar of `total` steps on stderr, or nothing. Entering it returns the function that advances it. Mutable.

    In a notebook it is a line of text that is rewritten, because rich shows nothing there without ipywidgets.
    """

    def __init__(self, total: int, is_shown: bool) -> None:
        self._total = total
        self._is_shown = is_shown
        self._bar: Any = None

    def __enter__(self) -> Callable[[], None]:
        if not self._is_shown:
            return lambda: None
        if _is_notebook(sys.stderr):
            self._bar = _TextBar(self._total, sys.stderr)
            self._bar.start()
            return self._bar.advance  # type: ignore[no-any-return]
        from rich.console import Console
        from rich.progress import Progress

        self._bar = Progress(console=Console(stderr=True))
        self._bar.start()
        task = self._bar.add_task("Processed prompts", total=self._total)
        return lambda: self._bar.advance(task)

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()


class _TextBar:
    """A line of text that is rewritten at each step. Mutable."""

    def __init__(self, total: int, stream: TextIO) -> None:
        self._total = total
        self._stream = stream
        self._done = 0

    def start(self) -> None:
        num_full = _WIDTH * self._done // max(self._total, 1)
        bar = "#" * num_full + "." * (_WIDTH - num_full)
        self._stream.write(f"\rProcessed prompts [{bar}] {self._done} of {self._total}")
        self._stream.flush()

    def advance(self) -> None:
        self._done += 1
        self.start()

    def stop(self) -> None:
        self._stream.write("\n")
        self._stream.flush()


def _is_notebook(stream: TextIO) -> bool:
    """Whether a stream is shown in a Jupyter notebook, which is not a terminal but handles carriage returns."""
    return not stream.isatty() and type(stream).__module__.startswith("ipykernel.")
