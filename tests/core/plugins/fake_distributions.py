"""Installed packages that exist for one test only."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from aethermind.plugins import API_VERSION, doctor_checks, sandbox_load
from aethermind.runtime import isolated_devices, kernel_hints

__all__ = ["FakeDistributions", "write_distribution"]


_LIMITS = (
    *((isolated_devices, name) for name in ("START_LIMIT_S", "PROBE_LIMIT_S", "OPEN_LIMIT_S")),
    *((kernel_hints, name) for name in ("START_LIMIT_S", "LOAD_LIMIT_S")),
    *((sandbox_load, name) for name in ("START_LIMIT_S", "LOAD_LIMIT_S")),
    *((doctor_checks, name) for name in ("START_LIMIT_S", "CHECK_LIMIT_S")),
)
_PATIENCE_S = 120.0


class FakeDistributions:
    """Writes modules and `*.dist-info` folders into a folder that is first on sys.path.

    Python writes no bytecode for them, because it would be taken for that of another module of the same length written
    in the same second. The sandbox of third-party plugins, which costs a process each, is off unless `is_sandboxed`.
    Child processes have generous time limits for busy machines; a test about hanging ones sets its own.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *, is_sandboxed: bool = False) -> None:
        self.folder = folder
        self._monkeypatch = monkeypatch
        monkeypatch.syspath_prepend(folder)
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
        for module, name in _LIMITS:
            monkeypatch.setattr(module, name, _PATIENCE_S)
        if not is_sandboxed:
            monkeypatch.setattr(sandbox_load, "sandbox_load", lambda _: None)

    def install(
        self,
        plugin: str,
        source: str,
        *,
        distribution: str | None = None,
        api_versions: tuple[int, ...] = (API_VERSION,),
        version: str = "9.9",
        requires: str = "",
    ) -> str:
        """Install a plugin called `plugin`, whose module is `source`; returns the module's name."""
        distribution = distribution or f"fake-{plugin}"
        module = f"plugin_of_{distribution.replace('-', '_')}_{plugin}"
        (self.folder / f"{module}.py").write_text(PREAMBLE + dedent(source))
        groups = "".join(f"[aethermind.plugins.v{number}]\n{plugin} = {module}\n" for number in api_versions)
        self.write(distribution, groups, version=version, requires=requires)
        self._monkeypatch.delitem(sys.modules, module, raising=False)
        return module

    def write(
        self,
        distribution: str,
        entry_points: str,
        *,
        version: str = "9.9",
        requires: str = "",
        folder: Path | None = None,
    ) -> None:
        """Write a distribution's metadata with this text as its entry points."""
        write_distribution(folder or self.folder, distribution, entry_points, version=version, requires=requires)


def write_distribution(folder: Path, distribution: str, entry_points: str, *, version: str, requires: str = "") -> None:
    """Write a distribution's metadata, with this text as its entry points, into a folder that is on sys.path."""
    info = folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    metadata = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
    (info / "METADATA").write_text(metadata + (f"Requires-Dist: {requires}\n" if requires else ""))
    (info / "entry_points.txt").write_text(entry_points)
    importlib.invalidate_caches()  # which hold what is in a folder until its time changes, and that may stand still


PREAMBLE = """\
from aethermind.hal import Probe
from aethermind.hal.builtin_backends import NullBackend
from aethermind.plugins import hookimpl


def claim_device(registry, name, provider):
    registry.register(name, probe=lambda: Probe(1, "it is a fake."), open=NullBackend, priority=-5, provider=provider)


"""
