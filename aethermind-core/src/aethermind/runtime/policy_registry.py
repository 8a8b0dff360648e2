"""Which scheduling policies are installed, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aethermind.plugins.claims import Claims

if TYPE_CHECKING:
    from aethermind.engine.policies import SchedulingPolicy

__all__ = ["PolicyRegistry"]


class PolicyRegistry(Claims):
    """Names of scheduling policies, and what makes them."""

    kind = "Scheduling policy"

    def make(self, name: str) -> SchedulingPolicy:
        """A new policy of this name; ConfigError lists the installed ones when it is unknown."""
        policy: SchedulingPolicy = self.chosen_object(name, "scheduling policy")()
        return policy
