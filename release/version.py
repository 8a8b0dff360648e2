"""`python -m release.version 0.2.0` sets the version of every package of this tree; without an argument it is printed.

The version is in many files, because each package must be buildable alone and requires its siblings in exactly its own
version. A test checks that all agree.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from release.distributions import ROOT

__all__ = ["VersionError", "change", "current", "places"]

# What precedes our version in a file: the project's own, a required sibling's, or the core's attribute.
_BEFORE = r'(^version = "|"aethermind(?:-[a-z0-9-]+)?(?:\[[a-z0-9,]+\])?==|^__version__ = ")'
_VERSION = r"([0-9][0-9A-Za-z.]*)"
_RELEASE = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+((a|b|rc)[0-9]+)?(\.dev[0-9]+)?")


class VersionError(Exception):
    """Versions differ, or an invalid version was requested; the message states the remedy."""


def places(root: Path = ROOT) -> Iterator[tuple[Path, str]]:
    """Each occurrence of our version: the file and the version."""
    for path in _files(root):
        for _, version in re.findall(_BEFORE + _VERSION, path.read_text(), flags=re.MULTILINE):
            yield path, version


def current(root: Path = ROOT) -> str:
    """The common version; VersionError if files differ."""
    found = list(places(root))
    versions = sorted({version for _, version in found})
    if len(versions) == 1:
        return versions[0]
    files = "\n".join(f"  {version}  {path.relative_to(root)}" for path, version in found)
    raise VersionError(f"Versions differ; run `make version V=…` with the right one of them.\n{files}")


def change(version: str, root: Path = ROOT) -> list[Path]:
    """Write a new version to all files; returns them. VersionError for an invalid version."""
    if not _RELEASE.fullmatch(version):
        raise VersionError(f"{version!r} is no version such as 0.2.0, 0.2.0rc1 or 0.2.0.dev1.")
    changed = sorted({path for path, _ in places(root)})
    for path in changed:
        path.write_text(re.sub(_BEFORE + _VERSION, rf"\g<1>{version}", path.read_text(), flags=re.MULTILINE))
    return changed


def _files(root: Path) -> list[Path]:
    folders = (root, *root.glob("aethermind-*"), *root.glob("examples/*"))
    projects = (folder / "pyproject.toml" for folder in folders)
    return sorted([*filter(Path.exists, projects), root / "aethermind-core/src/aethermind/__init__.py"])


def main() -> None:
    """Print or change the version."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("version", nargs="?")
    args = parser.parse_args()
    try:
        if args.version is None:
            print(current())
        else:
            for path in change(args.version):
                print(f"{args.version}  {path.relative_to(ROOT)}")
    except VersionError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
