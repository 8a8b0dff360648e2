"""Packages that `aethermind plugin new` wrote, as visible to other processes as installed ones."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.core.plugins.fake_distributions import write_distribution

from aethermind.cli.plugin_new import write
from aethermind.cli.plugin_new.kinds import PackageKind, PackageNames

__all__ = ["Scaffolded", "environment", "install"]


def install(package: Path, metadata: Path) -> None:
    """Write what pip would, for a package to be found by processes in `environment(package, metadata)`."""
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    ((group, points),) = project["entry-points"].items()
    lines = [f"[{group}]", *(f"{point} = {target}" for point, target in points.items())]
    write_distribution(metadata, project["name"], "\n".join(lines), version=project["version"])


def environment(package: Path, metadata: Path) -> dict[str, str]:
    """Variables of processes that import from a package's sources."""
    paths = [str(package / "src"), str(metadata), os.environ.get("PYTHONPATH", "")]
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "PATH": programs}


class Scaffolded:
    """A new package, beside metadata such as pip would write for it."""

    def __init__(self, kind: PackageKind, name: str, folder: Path) -> None:
        names = PackageNames.parse(name)
        self.folder = folder / names.distribution
        self.files = write(kind, names, self.folder, "0.1.0")
        self._metadata = folder / "metadata"
        install(self.folder, self._metadata)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run `python -m COMMAND` in the package's folder, where the package is found."""
        return subprocess.run(
            [sys.executable, "-m", *command],
            cwd=self.folder,
            env=environment(self.folder, self._metadata),
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
