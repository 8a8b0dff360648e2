"""Which contract a plugin and this core speak with each other.

A contract is a number, in the name of an entry point's group. This core speaks `OLDEST_CONTRACT` to `CONTRACT_VERSION`;
a plugin offers those it was made for, each as an entry point, and the newest that both know is taken. A new contract
may add hooks, and arguments to hooks, which an older plugin need not name; a hook that it gives up stays in `HookSpecs`
until `OLDEST_CONTRACT` has passed the last contract that had it. So a plugin for contract N-1 works with a core of
contract N as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aethermind.plugins import hookspecs

__all__ = ["Negotiation", "negotiate"]


@dataclass(frozen=True, slots=True)
class Negotiation:
    """What came of it: the contract to use, or else the reason why there is none and what to do; and both in words."""

    contract: str
    words: str
    error: str | None = None
    advice: str = ""


def negotiate(offered: Sequence[str], distribution: str) -> Negotiation:
    """Choose among the contracts that a plugin of this package offers. What is not a number is from the future."""
    oldest, newest = hookspecs.OLDEST_CONTRACT, hookspecs.CONTRACT_VERSION
    numbers = sorted(int(contract) for contract in offered if contract.isdecimal())
    spoken = [number for number in numbers if oldest <= number <= newest]
    offer = f"it speaks plugin contract {_listed([str(number) for number in numbers] or sorted(offered))}"
    ours = f"this core speaks {newest}" if oldest == newest else f"this core speaks {oldest} to {newest}"
    if spoken:
        chosen = spoken[-1]
        age = "" if chosen == newest else ", an older one, which still works"
        return Negotiation(str(chosen), f"{offer}, {ours}; they use {chosen}{age}.")
    error = f"{offer}, {ours}."
    if numbers and numbers[-1] < oldest:
        advice = f"Install a newer {distribution}, made for contract {newest}: pip install --upgrade {distribution}."
    else:
        advice = (
            "Install a newer core (pip install --upgrade aethermind-core), or a version of "
            f"{distribution} made for contract {newest}."
        )
    return Negotiation(str(numbers[-1]) if numbers else offered[0], error, error, advice)


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
