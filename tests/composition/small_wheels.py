"""Wheels of packages that exist for one test only, and wheels of ours under another version."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent
from zipfile import ZipFile

from aethermind.plugins import API_VERSION

__all__ = ["of_api_versions", "plugin_wheel", "under_version"]


def plugin_wheel(
    folder: Path,
    distribution: str,
    source: str,
    *,
    api_versions: tuple[int, ...] = (API_VERSION,),
    requires: str = "aethermind-core",
    version: str = "1.0",
) -> Path:
    """Write the wheel of a plugin of one module, called as its distribution is."""
    stem = distribution.replace("-", "_")
    points = "".join(f"[aethermind.plugins.v{number}]\n{distribution} = {stem}\n" for number in api_versions)
    metadata = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\nRequires-Dist: {requires}\n"
    info = f"{stem}-{version}.dist-info"
    path = folder / f"{stem}-{version}-py3-none-any.whl"
    files = {
        f"{stem}.py": dedent(source),
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": points,
    }
    _write(path, {name: text.encode() for name, text in files.items()}, info)
    return path


def under_version(wheel: Path, version: str, folder: Path) -> Path:
    """The same package as if it had been released, together with its siblings, as `version`."""
    name, old, *tags = wheel.stem.split("-")
    info, old_info = f"{name}-{version}.dist-info", f"{name}-{old}.dist-info"
    path = folder / f"{'-'.join([name, version, *tags])}.whl"
    files = {member.replace(old_info, info): content for member, content in _read(wheel).items()}
    metadata = files[f"{info}/METADATA"].decode()
    metadata = re.sub(r"^Version: .*$", f"Version: {version}", metadata, count=1, flags=re.MULTILINE)
    files[f"{info}/METADATA"] = re.sub(rf"=={re.escape(old)}\b", f"=={version}", metadata).encode()
    _write(path, files, info)
    return path


def of_api_versions(core: Path, oldest: int, newest: int, folder: Path) -> Path:
    """A core that supports other versions of the plugin API."""
    files, specs = _read(core), "aethermind/plugins/hookspecs.py"
    text = files[specs].decode()
    for name, value in (("API_VERSION", newest), ("OLDEST_API_VERSION", oldest)):
        text, count = re.subn(rf"^{name} = \d+$", f"{name} = {value}", text, flags=re.MULTILINE)
        assert count == 1
    path = folder / core.name
    _write(path, files | {specs: text.encode()}, _info_of(files))
    return path


def _info_of(files: dict[str, bytes]) -> str:
    (metadata,) = [name for name in files if name.endswith(".dist-info/METADATA")]
    return metadata.partition("/")[0]


def _read(wheel: Path) -> dict[str, bytes]:
    with ZipFile(wheel) as archive:
        return {member: archive.read(member) for member in archive.namelist()}


def _write(path: Path, files: dict[str, bytes], info: str) -> None:
    files.pop(f"{info}/RECORD", None)
    path.parent.mkdir(parents=True, exist_ok=True)
    with ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        archive.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"]))
