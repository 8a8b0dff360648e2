"""The wheels hold all that is in the sources, nothing else, and what pip has to know about them."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from email.message import Message
from email.parser import Parser
from pathlib import Path
from threading import Semaphore
from zipfile import ZipFile

import pytest
from release import wheels
from release.distributions import ROOT, Distribution, distributions, files_of
from release.version import VersionError, change, current

from aethermind import __version__

BUILT = r"\.so$|\.cubin$|/cubins/manifest\.json$"


def wheel_of(distribution: Distribution, wheelhouse: Path) -> ZipFile:
    (path,) = wheelhouse.glob(f"{distribution.name.replace('-', '_')}-{distribution.version}-*.whl")
    return ZipFile(path)


def metadata_of(distribution: Distribution, wheelhouse: Path) -> Message:
    with wheel_of(distribution, wheelhouse) as wheel:
        (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
        return Parser().parsestr(wheel.read(name).decode())


each = pytest.mark.parametrize("distribution", distributions(), ids=lambda one: one.name)


@each
def test_a_wheel_holds_its_sources(distribution: Distribution, wheelhouse: Path) -> None:
    with wheel_of(distribution, wheelhouse) as wheel:
        packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
        assert [name for name in wheel.namelist() if re.search(r"\.dist-info/(licenses/)?LICENSE$", name)]
    sources = distribution.folder / "src"
    expected = {path.relative_to(sources).as_posix() for path in files_of(distribution) if path.is_relative_to(sources)}
    assert {name for name in packed if not re.search(BUILT, name)} == {
        name for name in expected if not re.search(BUILT, name)
    }


@each
def test_siblings_are_required_in_the_same_version(distribution: Distribution, wheelhouse: Path) -> None:
    metadata = metadata_of(distribution, wheelhouse)
    assert metadata["Version"] == __version__
    required = [line for line in metadata.get_all("Requires-Dist", []) if line.startswith("aethermind-")]
    assert [
        line for line in required if not re.match(rf"[a-z0-9-]+(\[[a-z,]+\])?=={re.escape(__version__)}\b", line)
    ] == []
    assert required or distribution.name == "aethermind-core"


def test_every_package_is_an_extra(wheelhouse: Path) -> None:
    (whole,) = [distribution for distribution in distributions() if distribution.folder == ROOT]
    extras = set(metadata_of(whole, wheelhouse).get_all("Provides-Extra", []))
    siblings = {one.name.removeprefix("aethermind-") for one in distributions()} - {"aethermind", "core"}
    assert siblings | {"serve", "all"} <= extras
    table = re.findall(r"^\| (`.*?`) \| ", (ROOT / "docs/using/install.md").read_text(), re.MULTILINE)
    assert {name.strip("`") for row in table[: len(extras)] for name in row.split(", ")} >= extras


def test_one_wheelhouse_is_filled_by_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_it, most = Semaphore(1), []

    def build(*_: object) -> dict[str, Path]:
        most.append(at_it.acquire(blocking=False))
        os.sched_yield()
        at_it.release()
        return {}

    monkeypatch.setattr(wheels, "_build_all", build)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: wheels.build_all(tmp_path), range(40)))
    assert most == [True] * 40


def test_all_stand_under_one_license() -> None:
    texts = {(distribution.folder / "LICENSE").read_text() for distribution in distributions()}
    assert texts == {(ROOT / "LICENSE").read_text()}


def test_one_program_writes_the_version_wherever_it_stands(tmp_path: Path) -> None:
    assert current() == __version__
    patterns = ("pyproject.toml", "*/pyproject.toml", "examples/*/pyproject.toml")
    sources = [path for pattern in patterns for path in ROOT.glob(pattern)]
    for path in [*sources, ROOT / "aethermind-core/src/aethermind/__init__.py"]:
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(path.read_text())
    core = tmp_path / "aethermind-core/pyproject.toml"
    core.write_text(core.read_text().replace(f'version = "{__version__}"', 'version = "7.8"'))
    with pytest.raises(VersionError, match=r"Versions differ.*(?s:.*)7\.8  aethermind-core/pyproject\.toml"):
        current(tmp_path)
    change("9.8.7rc1", tmp_path)
    assert current(tmp_path) == "9.8.7rc1"
    left = [path for path in tmp_path.rglob("*.toml") if re.search(rf"=={re.escape(__version__)}", path.read_text())]
    assert left == []
    with pytest.raises(VersionError, match="'next' is no version"):
        change("next", tmp_path)
