"""What this package registers: a scheduling policy."""

from __future__ import annotations

from typing import Any

from aethermind.plugins import hookimpl


@hookimpl
def register_policies(registry: Any) -> None:
    registry.register("lanes", "aethermind_lanes.policy:TwoLanes", provider="aethermind-lanes")
