"""Which architectures a name means, and what is to be tried of them."""

from __future__ import annotations

from collections.abc import Sequence

from aethermind.runtime import Runtime
from aethermind.testing.families.case import ModelCase, standard_cases

__all__ = ["architectures_of", "cases_of"]


def architectures_of(runtime: Runtime, name: str) -> Sequence[str]:
    """Those that a plugin or package of this name registers, or the one so called; none where there is no such name."""
    if name in runtime.architectures.names():
        return [name]
    of_packages = [record for record in runtime.plugins if name in (record.name, record.distribution)]
    return [one for record in of_packages for one in record.registered.get("architectures", ())]


def cases_of(runtime: Runtime, architecture: str) -> Sequence[ModelCase]:
    """The declared cases of an architecture, or the standard ones where its package declares none."""
    declared = runtime.architectures.find_cases(architecture)
    if declared is None:
        return standard_cases(architecture)
    return [case for case in declared if case.architecture == architecture]
