"""A progress bar on stderr, for scripts that ask for one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["ProgressBar"]


class ProgressBar:
    """A bar of `total` steps on stderr, or nothing; entering gives the function that advances it. Mutable."""

    def __init__(self, total: int, is_shown: bool) -> None:
        self._total = total
        self._is_shown = is_shown
        self._bar: Any = None

    def __enter__(self) -> Callable[[], None]:
        if not self._is_shown:
            return lambda: None
        from rich.console import Console
        from rich.progress import Progress

        self._bar = Progress(console=Console(stderr=True))
        self._bar.start()
        task = self._bar.add_task("Processed prompts", total=self._total)
        return lambda: self._bar.advance(task)

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()
