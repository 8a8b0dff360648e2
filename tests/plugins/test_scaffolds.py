"""What `aethermind plugin new` writes works as it is: its tests pass, its linters are silent, and it does its work.

A backend's own tests are run by tests/documentation/test_extending.py, where the tutorial runs them.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Callable
from functools import cache
from glob import iglob
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import typer.testing
from tests.architecture.sources import ROOT
from tests.plugins.scaffolded import Scaffolded

import aethermind
from aethermind.cli.app import app
from aethermind.cli.plugin_new.kinds import KINDS, PackageKind, PackageNames

NAMES = {
    PackageKind.BACKEND: "my-chip",
    PackageKind.MODEL: "my-llm",
    PackageKind.OPERATOR: "squared-relu",
    PackageKind.KV_STORE: "my-store",
    PackageKind.POLICY: "my-policy",
}
by_kind = pytest.mark.parametrize("kind", PackageKind, ids=str)


@pytest.fixture(scope="module")
def scaffolded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[PackageKind], Scaffolded]:
    """A new package of each kind, as if it were installed."""
    return cache(lambda kind: Scaffolded(kind, NAMES[kind], tmp_path_factory.mktemp(kind)))


def plugin_new(*args: object) -> typer.testing.Result:
    return typer.testing.CliRunner().invoke(app, ["plugin", "new", *map(str, args)])


@pytest.mark.parametrize("kind", [kind for kind in PackageKind if kind is not PackageKind.BACKEND], ids=str)
def test_its_tests_pass(scaffolded: Callable[[PackageKind], Scaffolded], kind: PackageKind) -> None:
    result = scaffolded(kind).run("pytest", "-q", "-p", "no:cacheprovider")
    assert result.returncode == 0, result.stdout + result.stderr
    assert int(re.search(r"(\d+) passed", result.stdout)[1]) >= 2
    assert not re.search("skipped|xfailed|warning", result.stdout)


@by_kind
def test_it_is_formatted_and_has_no_lint(scaffolded: Callable[[PackageKind], Scaffolded], kind: PackageKind) -> None:
    options = ("--isolated", "--line-length", "120", "--target-version", "py311")
    for command in (("format", "--check"), ("check", "--select", "B,E,F,I,N8,UP,W,RUF100")):
        result = scaffolded(kind).run("ruff", *command, *options, ".")
        assert result.returncode == 0, result.stdout + result.stderr


@by_kind
def test_its_description_is_well_formed(scaffolded: Callable[[PackageKind], Scaffolded], kind: PackageKind) -> None:
    project = tomllib.loads((scaffolded(kind).folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    article = "an" if kind is PackageKind.OPERATOR else "a"
    assert project["description"] == f"{NAMES[kind]}: {article} {KINDS[kind].title} for AetherMind"


@by_kind
def test_the_command_line_suggests_the_next_steps(
    scaffolded: Callable[[PackageKind], Scaffolded], kind: PackageKind
) -> None:
    names = PackageNames.parse(NAMES[kind])
    of_readme = re.findall(r"^\$ (aethermind .*)$", (scaffolded(kind).folder / "README.md").read_text(), re.MULTILINE)
    assert of_readme
    spellings = {"name": names.name, "identifier": names.identifier, "class_name": names.class_name}
    for command in [line.format(**spellings) for line in KINDS[kind].commands] + of_readme:
        parse(shlex.split(command, comments=True)[1:])


def parse(arguments: list[str]) -> None:
    """Read a command's options without running it; one that it does not have raises."""
    group: Any = typer.main.get_command(app)
    context = group.make_context("aethermind", [], resilient_parsing=True)
    while hasattr(group, "resolve_command"):
        name, group, arguments = group.resolve_command(context, arguments)
    group.make_context(name, arguments, parent=context)


@by_kind
def test_it_sees_what_is_public_and_not_what_is_private(
    scaffolded: Callable[[PackageKind], Scaffolded], kind: PackageKind
) -> None:
    sources = [path.read_text() for path in scaffolded(kind).files if path.suffix == ".py"]
    imported = re.findall(r"from (aethermind[\w.]*) import (.*)", "\n".join(sources))
    assert imported
    assert not [line for line in imported if re.search(r"(\.|^|\s)_", " ".join(line))]


@pytest.fixture(scope="module")
def backend(scaffolded: Callable[[PackageKind], Scaffolded]) -> Scaffolded:
    return scaffolded(PackageKind.BACKEND)


def test_a_new_backend_runs_the_demo_model(backend: Scaffolded) -> None:
    command = ("aethermind", "generate", "Once upon a time", "--max-tokens", "8", "--temperature", "0")
    ours, numpys = (backend.run(*command, "--device", device) for device in ("my-chip", "numpy"))
    assert ours.returncode == 0, ours.stderr
    assert ours.stdout == numpys.stdout
    assert "my-chip" in ours.stderr, "what NumPy computes instead is said"


def test_a_new_backend_reports_the_kernel_of_each_operator(backend: Scaffolded) -> None:
    result = backend.run("aethermind", "ops", "--json")
    pages = json.loads(result.stdout)["operators"]
    own = [page["name"] for page in pages if page["devices"]["my-chip"]["coverage"] == "python"]
    assert sorted(own) == ["add", "mul", "rms_norm", "silu"]


def test_pip_builds_a_wheel_that_holds_everything(backend: Scaffolded, tmp_path: Path) -> None:
    options = ("--no-build-isolation", "--no-deps", "--no-index", "--disable-pip-version-check")
    result = backend.run("pip", "wheel", "-q", *options, "-w", str(tmp_path), ".")
    assert result.returncode == 0, result.stderr
    (wheel,) = tmp_path.glob("*.whl")
    sources = backend.folder / "src"
    expected = {path.relative_to(sources).as_posix() for path in backend.files if path.is_relative_to(sources)}
    with ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
        points = archive.read("aethermind_my_chip-0.1.0.dist-info/entry_points.txt").decode()
    assert packed == expected
    assert "[aethermind.plugins.v2]\nmy-chip = aethermind_my_chip.plugin" in points


def test_the_templates_are_in_the_cores_wheel() -> None:
    package = Path(aethermind.__file__).parent
    project = tomllib.loads((ROOT / "aethermind-core" / "pyproject.toml").read_text())
    packed = {
        path
        for pattern in project["tool"]["setuptools"]["package-data"]["aethermind"]
        for path in iglob(pattern, root_dir=package, recursive=True)
    }
    templates = {path.relative_to(package).as_posix() for path in package.rglob("*.jinja")}
    assert len(templates) > 30
    assert templates <= packed


def test_the_command_writes_a_package_and_prints_the_next_commands(tmp_path: Path) -> None:
    result = plugin_new("policy", "aethermind-round-robin", "--directory", tmp_path / "new")
    folder = tmp_path / "new" / "aethermind-round-robin"
    assert result.exit_code == 0
    written = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert {".github/workflows/tests.yml", ".gitignore", "README.md", "pyproject.toml"} < written
    listed, _, steps = result.stdout.partition("\nNext:\n")
    assert {line.strip() for line in listed.splitlines()[1:]} == written
    assert [line.strip() for line in steps.splitlines()] == [
        f"cd {folder}",
        "pip install -e '.[test]'",
        "pytest",
        "aethermind simulate TRACE --policy fcfs,round-robin  # README.md writes a small trace",
        "aethermind serve --scheduling-policy round-robin",
    ]


def test_the_printed_commands_work(tmp_path: Path) -> None:
    result = plugin_new("policy", "mine", "--directory", tmp_path / "my 'packages'")
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("  cd ")]
    assert shlex.split(line) == ["cd", str(tmp_path / "my 'packages'" / "aethermind-mine")]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("backend", "My Chip"), "'My Chip' cannot name a package; write lower-case letters"),
        (("backend", "1chip"), "cannot name a package"),
        (("backend", "my--chip"), "cannot name a package"),
        (("operator", "lambda"), "no word of Python's own"),
        (("backend", "../chip"), "cannot name a package"),
        (("backend", "cpu"), "a plugin called 'cpu', is installed already"),
        (("model", "core"), "a plugin called 'core', is installed already"),
        (("backend", "null"), "'null' names an installed backend already"),
        (("backend", "auto"), "'auto' names an installed backend already"),
        (("policy", "fcfs"), "'fcfs' names an installed scheduling policy already"),
        (("kv-store", "disk"), "'disk' names an installed KV store already"),
        (("operator", "rms-norm"), "'rms_norm' names an installed operator already"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_a_bad_name_is_refused_in_a_sentence(tmp_path: Path, args: tuple[str, ...], message: str) -> None:
    result = plugin_new(*args, "--directory", tmp_path)
    assert result.exit_code == 2
    assert re.search(message, result.stderr)
    assert not list(tmp_path.iterdir())


def test_nothing_that_exists_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "aethermind-mine").mkdir()
    result = plugin_new("backend", "mine", "--directory", tmp_path)
    assert result.exit_code == 2
    assert "aethermind-mine exists already; choose another name or another --directory" in result.stderr
