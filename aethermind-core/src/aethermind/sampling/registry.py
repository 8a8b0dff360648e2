"""Which package knows a logits processor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aethermind.errors import InvalidArgumentError
from aethermind.plugins.claims import Claims

if TYPE_CHECKING:
    from aethermind.sampling.controls import LogitsProcessorFactory

__all__ = ["LogitsProcessorRegistry"]


class LogitsProcessorRegistry(Claims):
    """Names that `SamplingParams.logits_processors` may hold, and who makes such processors."""

    kind = "Logits processor"

    def get(self, name: str) -> LogitsProcessorFactory:
        """Import a factory; InvalidArgumentError lists the installed ones when it is unknown."""
        factory: LogitsProcessorFactory | None = self.find_object(name)
        if factory is None:
            known = ", ".join(self.names()) or "none"
            raise InvalidArgumentError(
                f"Unknown logits processor {name!r}. Installed: {known}. Install the package that provides it."
            )
        return factory
