"""Which executors are installed, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aethermind.errors import ConfigError
from aethermind.plugins.claims import Claims

if TYPE_CHECKING:
    from aethermind.engine.executors.executor import ExecutorFactory

__all__ = ["ExecutorRegistry"]


class ExecutorRegistry(Claims):
    """Names of places where steps run, and what opens them."""

    kind = "Executor"

    def get(self, name: str) -> ExecutorFactory:
        """Import a factory; ConfigError lists the installed ones when the name is unknown."""
        factory: ExecutorFactory | None = self.find_object(name)
        if factory is None:
            raise ConfigError(
                f"Unknown executor {name!r}. Installed: {', '.join(self.names())}. Choose one of them, or install the "
                "package that provides it."
            )
        return factory
