"""How far an engine has read a prompt, shown on a terminal until the first token is there."""

from __future__ import annotations

import sys
from threading import Event, Thread
from typing import TYPE_CHECKING

from aethermind.cli import console
from aethermind.cli.load import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from aethermind.engine.requests.request import Request
    from aethermind.llm import LLM

__all__ = ["PrefillProgress", "describe_prefill"]

_REFRESH_S = 0.1


class PrefillProgress:
    """A line on stderr, drawn by a thread once PATIENCE_S have passed, and only on a terminal. `stop` removes it."""

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
        """Remove the line; when this returns, nothing is drawn any more. Further calls do nothing."""
        if self._thread is not None:
            self._is_over.set()
            self._thread.join()
            self._thread = None

    def _draw(self) -> None:
        if self._is_over.wait(PATIENCE_S):
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
    """How much of their prompts these requests have computed: `Reading the prompt: 5,120 of 20,000 tokens`."""
    total = sum(request.num_prompt_tokens for request in running)
    done = sum(min(request.num_computed_tokens, request.num_prompt_tokens) for request in running)
    return f"Reading the prompt: {done:,} of {total:,} tokens" if total else "Reading the prompt"
