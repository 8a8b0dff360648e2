"""Packages from templates: a folder of plain files for each kind, and one that all kinds have.

`templates/KIND/src/package/plugin.py.jinja` becomes `src/aethermind_NAME/plugin.py`; names that begin with `dot_`
become hidden.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from aethermind.cli.plugin_new.kinds import KINDS, Kind
from aethermind.cli.plugin_new.names import Names
from aethermind.cli.writable import writing

__all__ = ["render", "write"]

_TEMPLATES = Path(__file__).parent / "templates"
_SUFFIX = ".jinja"


def write(kind: Kind, names: Names, folder: Path, version: str) -> list[Path]:
    """Write a package into a folder that does not exist yet; returns its files, sorted.

    InvalidArgumentError where it cannot be written; nothing of it is left then.
    """
    files = []
    try:
        with writing(folder, "Folder"):
            folder.mkdir(parents=True)
            for name, text in render(kind, names, version):
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
                files.append(path)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return sorted(files)


def render(kind: Kind, names: Names, version: str) -> Iterator[tuple[Path, str]]:
    """The files of a package: where each goes, and its text. `version` is that of the core it is written for."""
    import jinja2

    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True, trim_blocks=True)
    for root in (_TEMPLATES / "common", _TEMPLATES / kind):
        for path in sorted(root.rglob(f"*{_SUFFIX}")):
            template = environment.from_string(path.read_text(encoding="utf-8"))
            text = template.render(names=names, kind=kind, package=KINDS[kind], version=version)
            yield _target(path.relative_to(root), names), text


def _target(template: Path, names: Names) -> Path:
    """Where the file of a template goes."""
    parts = (names.module if part == "package" else part for part in template.parts)
    return Path(*(f".{part[4:]}" if part.startswith("dot_") else part for part in parts)).with_suffix("")
