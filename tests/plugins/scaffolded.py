"""Packages that `aethermind plugin new` wrote, as visible to other processes as installed ones."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.core.plugins.fake_distributions import write_distribution

from aethermind.cli.plugin_new.kinds import Kind
from aethermind.cli.plugin_new.names import Names
from aethermind.cli.plugin_new.scaffold import write

__all__ = ["Scaffolded"]


class Scaffolded:
    """A new package, beside metadata such as pip would write for it."""

    def __init__(self, kind: Kind, name: str, folder: Path) -> None:
        self.names = Names.parse(name)
        self.folder = folder / self.names.distribution
        self.files = write(kind, self.names, self.folder, "0.1.0")
        self.project = tomllib.loads((self.folder / "pyproject.toml").read_text())["project"]
        self._metadata = folder / "metadata"
        ((group, points),) = self.project["entry-points"].items()
        lines = [f"[{group}]", *(f"{point} = {target}" for point, target in points.items())]
        write_distribution(self._metadata, self.names.distribution, "\n".join(lines), version="0.1.0")

    def run(self, *command: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        """Run `python -m COMMAND` in the package's folder, where the package is found."""
        paths = [str(self.folder / "src"), str(self._metadata), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "COLUMNS": "100"}
        return subprocess.run(
            [sys.executable, "-m", *command],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
