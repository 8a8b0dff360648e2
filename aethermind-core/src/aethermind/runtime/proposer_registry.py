"""Which ways of guessing tokens are installed, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aethermind.plugins.claims import Claims

if TYPE_CHECKING:
    from aethermind.engine.speculative.proposer import ProposerFactory

__all__ = ["ProposerRegistry"]


class ProposerRegistry(Claims):
    """Names of proposers of speculative decoding, and what makes them."""

    kind = "Proposer"

    def get(self, name: str) -> ProposerFactory:
        """Import a factory; ConfigError lists the installed ones when the name is unknown."""
        factory: ProposerFactory = self.chosen_object(name, "speculative method")
        return factory
