"""This tree as if it were installed, whatever else may be: its packages are found by their own pyproject files."""

from __future__ import annotations

import tomllib
from pathlib import Path

__all__ = ["PACKAGES", "python_path"]

PACKAGES = (
    "aethermind-core",
    "aethermind-cuda",
    "aethermind-deepseek",
    "aethermind-gemma",
    "aethermind-glm",
    "aethermind-gpt-oss",
    "aethermind-gpt2",
    "aethermind-llama",
    "aethermind-mamba",
    "aethermind-phi",
    "aethermind-qwen2",
)
"""All that the check needs; none of them has to be compiled for the host."""


def python_path(root: Path, site: Path) -> list[Path]:
    """Folders for PYTHONPATH: the tree's sources and, in `site`, who they are."""
    for name in PACKAGES:
        _write_metadata(root / name / "pyproject.toml", site)
    return [site, *(root / name / "src" for name in PACKAGES)]


def _write_metadata(pyproject: Path, site: Path) -> None:
    project = tomllib.loads(pyproject.read_text())["project"]
    folder = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    requires = "".join(f"Requires-Dist: {requirement}\n" for requirement in project.get("dependencies", ()))
    about = f"Metadata-Version: 2.4\nName: {project['name']}\nVersion: {project['version']}\n{requires}"
    (folder / "METADATA").write_text(about)
    groups = {**project.get("entry-points", {}), "console_scripts": project.get("scripts", {})}
    lines = [
        line
        for group, entries in groups.items()
        for line in (f"[{group}]", *(f"{key} = {value}" for key, value in entries.items()))
    ]
    (folder / "entry_points.txt").write_text("\n".join(lines))
