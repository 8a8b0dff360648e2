"""Version conflicts among installed packages of this project.

pip chooses compatible versions when it installs packages together. When it installs one package, it only warns if that
conflicts with packages which are installed already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distributions, version

from aethermind.plugins.hookspecs import ENTRY_POINT_PREFIX

__all__ = ["UnmetRequirement", "how_to_meet", "unmet_requirements"]


@dataclass(frozen=True, slots=True)
class UnmetRequirement:
    """A package whose requirement of a first-party package is not met; `installed` is None if that one is missing."""

    distribution: str
    version: str
    requires: str
    installed: str | None

    @property
    def summary(self) -> str:
        """`requires aethermind-core==0.1.0, but 0.2.0 is installed`."""
        state = "it is not installed" if self.installed is None else f"{self.installed} is installed"
        return f"requires {self.requires}, but {state}"


def unmet_requirements() -> list[UnmetRequirement]:
    """List the unmet requirements that first-party packages and plugins have of first-party packages, by name."""
    found: dict[str, list[UnmetRequirement]] = {}
    for distribution in distributions():
        name = str(distribution.name)
        is_shadowed = name in found  # Python imports the first distribution on sys.path
        if not is_shadowed and (_is_first_party(name) or _is_plugin(distribution)):
            found[name] = _unmet(distribution)
    return [unmet for name in sorted(found) for unmet in found[name]]


def how_to_meet(unmet: Sequence[UnmetRequirement]) -> str:
    """Return the advice to update all packages together, so that pip chooses compatible versions."""
    names = sorted({"aethermind-core"} | {requirement.distribution for requirement in unmet})
    return f"Let pip choose versions that fit: pip install --upgrade {' '.join(names)}"


def _unmet(distribution: Distribution) -> list[UnmetRequirement]:
    from packaging.requirements import InvalidRequirement, Requirement

    unmet = []
    for line in distribution.requires or ():
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        if not _is_first_party(requirement.name) or (requirement.marker and not requirement.marker.evaluate()):
            continue
        installed = _version(requirement.name)
        if installed is None or not requirement.specifier.contains(installed, prereleases=True):
            wanted = f"{requirement.name}{requirement.specifier}"
            unmet.append(UnmetRequirement(str(distribution.name), str(distribution.version), wanted, installed))
    return unmet


def _is_first_party(name: str) -> bool:
    return name == "aethermind" or name.startswith("aethermind-")


def _is_plugin(distribution: Distribution) -> bool:
    try:
        return any(point.group.startswith(ENTRY_POINT_PREFIX) for point in distribution.entry_points)
    except Exception:  # an unrelated package may have unreadable metadata
        return False


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
