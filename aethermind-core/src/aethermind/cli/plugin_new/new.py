"""`aethermind plugin new`: a package whose tests pass, to be filled with one's own code."""

from __future__ import annotations

import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from aethermind.cli import console
from aethermind.cli.plugin_new.kinds import KINDS, Kind
from aethermind.cli.plugin_new.names import Names
from aethermind.errors import InvalidArgumentError

__all__ = ["EXAMPLES", "new"]

EXAMPLES = console.examples(
    "aethermind plugin new backend my-chip",
    "aethermind plugin new model my-llm --directory packages",
    "aethermind plugin new operator squared-relu",
    "aethermind plugin new kv-store my-store",
    "aethermind plugin new policy my-policy",
)


_CORE = "aethermind-core"


def new(
    kind: Annotated[
        Kind,
        typer.Argument(metavar="KIND", help="What it provides: backend, model, operator, kv-store or policy."),
    ],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name; the package is called aethermind-NAME.")],
    directory: Annotated[Path, typer.Option(help="Where to create the package's directory.")] = Path(),
) -> None:
    """Create a package that AetherMind finds once it is installed, with tests that pass."""
    from aethermind.cli.plugin_new.scaffold import write

    names = Names.parse(name)
    folder = directory / names.distribution
    _check(kind, names, folder)
    files = write(kind, names, folder, console.version())
    print(f"Wrote {folder} ({KINDS[kind].title}, {len(files)} files):")
    print("\n".join(f"  {path.relative_to(folder)}" for path in files))
    steps = (f"cd {shlex.quote(str(folder))}", "pip install -e '.[test]'", "pytest", *KINDS[kind].commands)
    spellings = {"name": names.name, "identifier": names.identifier, "class_name": names.class_name}
    print("\nNext:\n" + "\n".join(f"  {step.format(**spellings)}" for step in steps))


def _check(kind: Kind, names: Names, folder: Path) -> None:
    """InvalidArgumentError where the folder, the package or what it would register exists already."""
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
