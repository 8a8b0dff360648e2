"""The packages in `examples/` as their users have them: built as wheels, installed beside AetherMind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from tests.architecture.sources import ROOT

__all__ = ["EXAMPLES", "Environment", "build_wheels", "environment"]

EXAMPLES = tuple(sorted(path.parent for path in (ROOT / "examples").glob("*/pyproject.toml")))

_BUILD = """
import os
import sys
from setuptools import build_meta

_, wheels, *packages = sys.argv
for package in packages:
    os.chdir(package)
    build_meta.build_wheel(wheels)
"""
"""What pip would call, all in one process."""
_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")


class Environment:
    """A Python environment of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.python = folder / "bin" / "python"

    def run(self, *arguments: object, timeout: float = 600) -> subprocess.CompletedProcess[str]:
        """Run its interpreter with these arguments."""
        command = [str(self.python), *map(str, arguments)]
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(self._folder / "cache")}
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, env=variables)


def build_wheels(packages: tuple[Path, ...], folder: Path) -> list[Path]:
    """Wheels of these packages, from copies: building leaves traces where the sources are."""
    ignored = shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
    copies = [shutil.copytree(package, folder / "sources" / package.name, ignore=ignored) for package in packages]
    subprocess.run([sys.executable, "-c", _BUILD, folder, *copies], check=True, stdout=subprocess.DEVNULL)
    return sorted(folder.glob("*.whl"))


def environment(folder: Path, wheels: list[Path]) -> Environment:
    """An environment that sees what this one sees, with these wheels installed."""
    venv.create(folder, symlinks=True)
    made = Environment(folder)
    (site_packages,) = folder.glob("lib/python*/site-packages")
    seen = [path for path in sys.path if path and Path(path).is_dir() and Path(path) != ROOT]
    (site_packages / "seen.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in seen))
    subprocess.run([*_PIP, "--python", made.python, "install", "--no-deps", "--no-index", *wheels], check=True)
    return made
