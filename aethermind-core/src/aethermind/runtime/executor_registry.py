"""Which executors are installed, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aethermind.plugins.claims import Claims

if TYPE_CHECKING:
    from aethermind.engine.executors.executor import ExecutorFactory

__all__ = ["ExecutorRegistry"]


class ExecutorRegistry(Claims):
    """Names of places where steps run, and what opens them."""

    kind = "Executor"

    def get(self, name: str) -> ExecutorFactory:
        """Import a factory; ConfigError lists the installed ones when the name is unknown."""
        factory: ExecutorFactory = self.chosen_object(name, "executor")
        return factory
