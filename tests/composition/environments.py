"""Clean environments to install wheels into: only pip puts anything there, and nothing of this one is seen in it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from tests.architecture.sources import ROOT

__all__ = ["Environment", "Environments"]

_LONGEST_S = 1200


class Environment:
    """A virtual environment, and commands as its user would run them."""

    def __init__(self, folder: Path, wheelhouse: Path) -> None:
        self.folder = folder
        self._wheelhouse = wheelhouse

    def create(self) -> Environment:
        """Make it; without pip, which works on it from outside and so takes no time to be installed."""
        venv.create(self.folder, symlinks=True)
        return self

    @property
    def site_packages(self) -> Path:
        """Where pip installs to."""
        (folder,) = self.folder.glob("lib/python*/site-packages")
        return folder

    def install(self, *requirements: str | Path, may_fail: bool = False) -> subprocess.CompletedProcess[str]:
        """`pip install`: ours from the wheelhouse, all else from the machine's index in the versions tested here."""
        options = ("--find-links", str(self._wheelhouse), "--constraint", str(ROOT / "constraints.txt"))
        return self.pip("install", *options, *map(str, requirements), may_fail=may_fail)

    def would_install(self, *requirements: str) -> dict[str, str]:
        """What `pip install` would add: versions by name."""
        result = self.install("--quiet", "--dry-run", "--report", "-", *requirements)
        return _versions(package["metadata"] for package in json.loads(result.stdout)["install"])

    def uninstall(self, *names: str) -> None:
        """`pip uninstall`."""
        self.pip("uninstall", "--quiet", "--yes", *names)

    def packages(self) -> dict[str, str]:
        """What is installed: versions by name."""
        return _versions(json.loads(self.pip("list", "--format", "json").stdout))

    def pip(self, command: str, *args: str, may_fail: bool = False) -> subprocess.CompletedProcess[str]:
        """The pip of these tests, at work on that environment."""
        python = str(self.folder / "bin/python")
        options = ("--disable-pip-version-check", "--no-input")
        return self._run([sys.executable, "-m", "pip", *options, "--python", python, command, *args], may_fail)

    def run(self, program: str, *args: str | Path, may_fail: bool = False) -> subprocess.CompletedProcess[str]:
        """A program that is installed there, such as `aethermind`."""
        cache = {"XDG_CACHE_HOME": str(self.folder / "cache")}
        return self._run([str(self.folder / "bin" / program), *map(str, args)], may_fail, cache)

    def _run(
        self, command: list[str], may_fail: bool, variables: Mapping[str, str] = MappingProxyType({})
    ) -> subprocess.CompletedProcess[str]:
        """Run it without the variables that would let it see more than what is installed."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AETHERMIND_", "PYTHON"))}
        variables = {**kept, **variables}
        result = subprocess.run(
            command, cwd=self.folder, env=variables, capture_output=True, text=True, timeout=_LONGEST_S, check=False
        )
        assert may_fail or result.returncode == 0, f"{' '.join(command)}\n{result.stdout}{result.stderr}"
        return result


def _versions(packages: Iterable[dict[str, str]]) -> dict[str, str]:
    """By names as PEP 503 has them, however a package writes its own."""
    return {re.sub(r"[-_.]+", "-", package["name"]).lower(): package["version"] for package in packages}


class Environments:
    """Makes clean environments quickly: what the core requires is installed once, and linked into each."""

    def __init__(self, folder: Path, wheelhouse: Path) -> None:
        self._folder = folder
        self._wheelhouse = wheelhouse
        self._made = folder / f"of-{os.getpid()}"
        self._count = 0

    def make(self, *requirements: str | Path) -> Environment:
        """A new environment with these installed, by what pip makes of them."""
        libraries = self._libraries()
        self._count += 1
        environment = Environment(self._made / str(self._count), self._wheelhouse).create()
        # pip and Python replace files and never write into one that exists, so hard links serve as copies.
        shutil.copytree(libraries.site_packages, environment.site_packages, copy_function=os.link, dirs_exist_ok=True)
        environment.install(*requirements)
        return environment

    def remove(self) -> None:
        """Remove what was made."""
        shutil.rmtree(self._made, ignore_errors=True)

    def _libraries(self) -> Environment:
        """All that the core requires, without the core; kept from one run of the tests to the next."""
        asked = (ROOT / "aethermind-core/pyproject.toml").read_bytes() + (ROOT / "constraints.txt").read_bytes()
        digest = hashlib.sha256(sys.version.encode() + asked).hexdigest()[:16]
        folder = self._folder / f"libraries-{digest}"
        if not folder.exists():
            unfinished = Environment(self._made / "libraries", self._wheelhouse).create()
            unfinished.install("aethermind-core")
            unfinished.uninstall("aethermind-core")
            try:
                unfinished.folder.rename(folder)
            except OSError:  # unless another process was sooner
                if not folder.exists():
                    raise
        return Environment(folder, self._wheelhouse)
