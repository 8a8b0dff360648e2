"""A spare engine process that has started and loaded the plugins, but no model: the next engine takes it at once.

Starting Python and importing the packages takes longer than mapping the packed weights of a small model.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from aethermind.engine.process.protocol import EngineOutputs
from aethermind.engine.process.supervisor import Child

__all__ = ["StandbyProcess"]

_DELAY_S = 1.5
"""Seconds after which the next spare process is started: the first answer of a model needs the CPU before that."""


class StandbyProcess:
    """Keeps one spare process while the context is open; belongs to an event loop. Mutable."""

    def __init__(self) -> None:
        self._spare: asyncio.Task[Child] | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> StandbyProcess:
        self._start()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        spare, self._spare = self._spare, None
        if spare is not None:
            with suppress(OSError):
                await (await spare).close(0.0)

    async def launch(self, on_outputs: Callable[[EngineOutputs], None], directory: Path) -> Child:
        """Hand over the spare process, and start the next one soon; a new one if there is none. OSError if the system
        starts none.
        """
        spare, self._spare = self._spare, None
        if spare is not None:
            with suppress(OSError):
                child = await spare
                if child.is_running:
                    child.pass_outputs_to(on_outputs)
                    self._start_later()
                    return child
                await child.close(0.0)
        self._start_later()
        return await Child.launch(on_outputs, directory)

    def _start_later(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(_DELAY_S, self._start)

    def _start(self) -> None:
        self._timer = None
        if self._spare is None:
            self._spare = asyncio.create_task(Child.launch(_ignore, Path.cwd()), name="standby engine process")


def _ignore(_: EngineOutputs) -> None:
    """A spare process has nothing to say."""
