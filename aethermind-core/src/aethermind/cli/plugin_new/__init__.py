"""`aethermind plugin new`: writes a package that extends AetherMind from templates, with tests that pass."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from aethermind.cli import console
from aethermind.cli.commands import SummaryGroup
from aethermind.cli.output_files import writing
from aethermind.cli.plugin_new.kinds import KINDS, PackageKind, PackageNames
from aethermind.errors import InvalidArgumentError

__all__ = ["EXAMPLES", "app", "new", "render", "write"]


EXAMPLES = console.examples(
    "aethermind plugin new backend my-chip",
    "aethermind plugin new model my-llm --directory packages",
    "aethermind plugin new operator squared-relu",
    "aethermind plugin new kv-store my-store",
    "aethermind plugin new policy my-policy",
)


_CORE = "aethermind-core"

app = typer.Typer(
    cls=SummaryGroup,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Write packages that extend AetherMind.",
    epilog=EXAMPLES,
)


@app.callback()
def _root() -> None:
    """Write packages that extend AetherMind."""


@app.command("new", epilog=EXAMPLES)
def new(
    kind: Annotated[
        PackageKind,
        typer.Argument(metavar="KIND", help="What it provides: backend, model, operator, kv-store or policy."),
    ],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name; the package is called aethermind-NAME.")],
    directory: Annotated[Path, typer.Option(help="Where to create the package's directory.")] = Path(),
) -> None:
    """Create a package that AetherMind finds once it is installed, with tests that pass."""
    names = PackageNames.parse(name)
    folder = directory / names.distribution
    _check(kind, names, folder)
    files = write(kind, names, folder, console.version())
    print(f"Wrote {folder} ({KINDS[kind].title}, {len(files)} files):")
    print("\n".join(f"  {path.relative_to(folder)}" for path in files))
    steps = (f"cd {shlex.quote(str(folder))}", "pip install -e '.[test]'", "pytest", *KINDS[kind].commands)
    spellings = {"name": names.name, "identifier": names.identifier, "class_name": names.class_name}
    print("\nNext:\n" + "\n".join(f"  {step.format(**spellings)}" for step in steps))


def _check(kind: PackageKind, names: PackageNames, folder: Path) -> None:
    """Raise InvalidArgumentError if the folder, the package, or the name that it would register exists already."""
    from aethermind.runtime import Runtime

    if folder.exists():
        raise InvalidArgumentError(f"{folder} exists already; choose another name or another --directory.")
    runtime = Runtime.boot()
    installed = {spelling for record in runtime.plugins for spelling in (record.name, record.distribution)}
    if {names.name, names.distribution} & {*installed, _CORE} or find_spec(names.module):
        raise InvalidArgumentError(
            f"{names.distribution}, or a plugin called {names.name!r}, is installed already; choose another name."
        )
    claimed = KINDS[kind].claimed(names)
    if claimed in KINDS[kind].taken(runtime):
        raise InvalidArgumentError(f"{claimed!r} names an installed {KINDS[kind].title} already; choose another name.")


_TEMPLATES = Path(__file__).parent / "templates"
_SUFFIX = ".jinja"


def write(kind: PackageKind, names: PackageNames, folder: Path, version: str) -> list[Path]:
    """Write a package into a folder that does not exist yet; returns its files, sorted.

    InvalidArgumentError if it cannot be written; partial files are then removed.
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


def render(kind: PackageKind, names: PackageNames, version: str) -> Iterator[tuple[Path, str]]:
    """Yield the path and text of each file of a package. `version` is that of the core it is written for."""
    import jinja2

    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True, trim_blocks=True)
    for root in (_TEMPLATES / "common", _TEMPLATES / kind):
        for path in sorted(root.rglob(f"*{_SUFFIX}")):
            template = environment.from_string(path.read_text(encoding="utf-8"))
            text = template.render(names=names, kind=kind, package=KINDS[kind], version=version)
            yield _target(path.relative_to(root), names), text


def _target(template: Path, names: PackageNames) -> Path:
    """Return the path of a template's file.

    `src/package/plugin.py.jinja` becomes `src/aethermind_NAME/plugin.py`; names that begin with `dot_` become hidden.
    """
    parts = (names.module if part == "package" else part for part in template.parts)
    return Path(*(f".{part[4:]}" if part.startswith("dot_") else part for part in parts)).with_suffix("")
