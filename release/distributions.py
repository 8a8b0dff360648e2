"""The distributions of this tree, which are released together under one version."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ROOT", "Distribution", "distributions", "files_of"]

ROOT = Path(__file__).parents[1]
_NOT_SOURCE = {"__pycache__", "build", "dist", "node_modules"}
_BUILT = {".egg-info", ".pyc", ".so"}


@dataclass(frozen=True, slots=True)
class Distribution:
    """A distribution: one `pyproject.toml` of this tree."""

    name: str
    version: str
    folder: Path
    is_compiled: bool

    @classmethod
    def read(cls, folder: Path) -> Distribution:
        """Read a folder's `pyproject.toml`."""
        document = tomllib.loads((folder / "pyproject.toml").read_text())
        project = document["project"]
        is_compiled = document["build-system"]["build-backend"] != "setuptools.build_meta"
        return cls(project["name"], project["version"], folder, is_compiled)

    def digest(self) -> str:
        """A digest of all inputs of its wheel."""
        sum_ = hashlib.sha256()
        for path in self._inputs():
            sum_.update(str(path.relative_to(ROOT)).encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
        return sum_.hexdigest()

    def _inputs(self) -> Iterator[Path]:
        yield from files_of(self)
        if self.is_compiled:  # compiled against the kernel ABI
            yield from sorted((ROOT / "aethermind-core/src/aethermind/include").rglob("*.h"))


def distributions() -> list[Distribution]:
    """All distributions: `aethermind`, which requires the others, then those by name."""
    return [Distribution.read(folder) for folder in (ROOT, *sorted(ROOT.glob("aethermind-*")))]


def files_of(distribution: Distribution) -> list[Path]:
    """The source files of a distribution, without build outputs."""
    if distribution.folder == ROOT:
        return [ROOT / name for name in ("LICENSE", "README.md", "pyproject.toml")]
    found = (path for path in distribution.folder.rglob("*") if path.is_file())
    return sorted(path for path in found if not _is_built(path.relative_to(distribution.folder)))


def _is_built(path: Path) -> bool:
    return not _NOT_SOURCE.isdisjoint(path.parts) or any(Path(part).suffix in _BUILT for part in path.parts)
