"""The scenarios by name, each with the server that it wants and how much of it is a full run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from tests.soak import abuse, crash, fair, load, long, models, sessions
from tests.soak.report import Figure
from tests.soak.server import Server

__all__ = ["SCENARIOS", "Scenario", "ScenarioWithRestarts"]

_ROOMY = ("--max-model-len", "512", "--max-concurrent-requests", "512")


@dataclass(frozen=True, slots=True)
class Scenario:
    """`full` is the amount of a full run, in `unit`; `least` is what makes sense at all. `flags` are the server's."""

    run: Callable[[Server, int], Awaitable[list[Figure]]]
    full: int
    least: int
    unit: str
    flags: tuple[str, ...] = _ROOMY
    more_flags: Callable[[], tuple[str, ...]] = tuple
    """Flags that need files, which are written when this is called."""

    @property
    def all_flags(self) -> tuple[str, ...]:
        """The flags of its server."""
        return (*self.flags, *self.more_flags())


@dataclass(frozen=True, slots=True)
class ScenarioWithRestarts:
    """One that starts its servers itself, with further flags."""

    run: Callable[[Sequence[str], int], list[Figure]]
    full: int
    least: int
    unit: str


SCENARIOS: dict[str, Scenario | ScenarioWithRestarts] = {
    "hostile": Scenario(abuse.hostile, 20, 1, "rounds"),
    "schema": Scenario(abuse.schema, 1000, 20, "examples an operation", ("--max-model-len", "64")),
    "streams": Scenario(load.streams, 20, 1, "rounds of 64 streams"),
    "overload": Scenario(
        load.overload,
        600,
        3,
        "seconds",
        ("--max-model-len", "512", "--max-concurrent-requests", str(load.OVERLOAD_ROOM)),
    ),
    "disconnects": Scenario(load.disconnects, 10_000, 100, "clients that leave"),
    "cancel": Scenario(load.cancel, 200, 5, "cancelled answers"),
    "stalled": Scenario(load.stalled_reader, 12, 1, "pairs of rounds"),
    "fair": Scenario(fair.fair, 12, 1, "rounds", fair.FLAGS),
    "crash": Scenario(crash.crash, 10, 1, "times killed"),
    "growth": Scenario(long.growth, 300, 4, "seconds"),
    "sessions": ScenarioWithRestarts(sessions.sessions, 2000, 20, "sessions"),
    "models": Scenario(models.models, 600, 8, "seconds", (), models.flags),
}
