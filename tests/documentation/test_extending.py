"""The pages for authors of packages: the tutorial does what it says, and references are today's, promises kept."""

from __future__ import annotations

import re
import subprocess
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from tests.documentation.commands import ROOT
from tests.plugins.scaffolded import environment, install

import aethermind
from aethermind import Runtime
from aethermind.cli.commands import COMMANDS
from aethermind.dispatch import Dispatcher
from aethermind.dispatch.reference import reference_kernels
from aethermind.engine.loading.loader import compile_model
from aethermind.engine.loading.model_graph import GraphKey, GraphKind, StepGraphs
from aethermind.graph.lowering import lower

PAGES = ROOT / "docs" / "extending"
_FENCE = r"```\w+\n(?P<{}>.*?)^```$"
_STEP = re.compile(
    r"^```console\n(?P<session>.*?)^```$"
    rf"|^Write `(?P<new>[^`]+)`:\n\n{_FENCE.format('content')}"
    rf"|^Append to `(?P<grown>[^`]+)`:\n\n{_FENCE.format('appended')}"
    rf"|^Replace in `(?P<changed>[^`]+)`:\n\n{_FENCE.format('before')}\n\nby\n\n{_FENCE.format('after')}",
    re.MULTILINE | re.DOTALL,
)


class Reader:
    """Somebody who follows a page in a folder about a package: types its commands, writes its code."""

    def __init__(self, folder: Path, package: str) -> None:
        self._folder = folder
        self._package, self._metadata = folder / package, folder / "metadata"

    def follow(self, page: Path) -> None:
        steps = list(_STEP.finditer(page.read_text(encoding="utf-8")))
        assert len(steps) >= 6
        for step in steps:
            if step["session"] is not None:
                for command, printed in re.findall(r"^\$ (.*)\n((?:[^$].*\n|\n)*)", step["session"], re.MULTILINE):
                    self._type(command, printed)
                continue
            path = self._folder / (step["new"] or step["grown"] or step["changed"])
            if step["new"] is not None:
                assert not path.exists()
                path.write_text(step["content"])
            elif step["grown"] is not None:
                path.write_text(f"{path.read_text()}\n\n{step['appended']}")
            else:
                assert path.read_text().count(step["before"]) == 1
                path.write_text(path.read_text().replace(step["before"], step["after"]))

    def _type(self, command: str, printed: str) -> None:
        """Run a command and compare what it prints; `cd` is played by a new folder, `pip install` by metadata, after
        it has built what there is to be built.
        """
        if command.startswith("cd "):
            self._folder /= command.removeprefix("cd ")
            return
        is_install = command.startswith("pip install ")
        if is_install:
            install(self._package, self._metadata)
        if not is_install or (self._package / "setup.py").exists():
            result = subprocess.run(
                ["bash", "-c", "python setup.py -q build_ext --inplace" if is_install else command],
                cwd=self._folder,
                env=environment(self._package, self._metadata),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=600,
                check=False,
            )
            assert result.returncode == 0, f"{command}\n{result.stdout}"
            assert re.fullmatch(as_pattern(printed), result.stdout), f"{command}\n{result.stdout}"


def as_pattern(printed: str) -> str:
    """What is shown as a pattern: `…` alone stands for any lines, at the end of a line for the rest of it.

    Numbers of two digits or more stand for any, since the conformance kit gains cases.
    """
    lines = []
    for line in printed.rstrip().splitlines():
        rest = r"[^\n]*" if line.endswith("…") else ""
        shown = re.sub(r"\d\d+", r"\\d+", re.escape(line.removesuffix("…")))
        lines.append(r"(?:[^\n]*\n)*?" if line == "…" else f"{shown}{rest}\n")
    return "".join(lines) + r"\n*"


@pytest.mark.parametrize(
    ("page", "package"),
    [
        ("your-own-backend", "aethermind-my-chip"),
        ("your-own-model", "aethermind-my-llm"),
        ("native-kernels", "aethermind-squared-relu"),
    ],
)
def test_the_tutorial_does_what_it_says(tmp_path: Path, page: str, package: str) -> None:
    Reader(tmp_path, package).follow(PAGES / f"{page}.md")


@pytest.mark.parametrize("name", ["write_hooks", "write_operators"])
def test_the_references_are_todays(name: str) -> None:
    path = PAGES / f"{name}.py"
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    script = module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.PAGE.read_text(encoding="utf-8") == script.text(), f"run python {path.relative_to(ROOT)}"


def public_modules() -> set[str]:
    """Those of the table in public-api.md."""
    page = (PAGES / "public-api.md").read_text(encoding="utf-8")
    return set(re.findall(r"^\| `(aethermind.*?)` \|", page, re.MULTILINE))


def test_what_is_public_is_there() -> None:
    for name in public_modules():
        module = import_module(name)
        assert all(hasattr(module, exported) for exported in module.__all__)


def test_packages_of_others_can_be_written_with_what_is_public() -> None:
    """As those are that `aethermind plugin new` writes, the examples, and our families of models."""
    templates = Path(aethermind.__file__).parent / "cli" / "plugin_new" / "templates"
    families = [*ROOT.glob("aethermind-*/src/*/architecture.py"), *ROOT.glob("aethermind-*/src/*/conformance.py")]
    files = [*templates.rglob("*.py.jinja"), *ROOT.glob("examples/*/src/**/*.py"), *families]
    imports = re.compile(r"^from (aethermind(?:\.\w+)*) import", re.MULTILINE)
    found = {name for file in files for name in imports.findall(file.read_text(encoding="utf-8"))}
    assert found <= public_modules()
    assert len(found) > 10


def test_porting_names_commands_and_operators_that_exist() -> None:
    page = (PAGES / "porting.md").read_text(encoding="utf-8")
    verbs = set(re.findall(r"aethermind ([a-z]+)[ `]", page))
    assert verbs - {"plugins"} <= set(COMMANDS)
    assert len(verbs) > 5
    operators = {operator.name for operator in Runtime.boot().operators}
    (listed,) = re.findall(r"made of: (.*?)\. \[", page, re.DOTALL)
    assert set(re.findall(r"`(\w+)`", listed)) <= operators


def test_porting_lists_the_operators_that_steps_are_made_of() -> None:
    page = (PAGES / "porting.md").read_text(encoding="utf-8")
    usual, more = (
        set(re.findall(r"`([a-z_]+)`", found))
        for found in re.findall(r"(?s)made of: (.*?)\. \[.*?required level: (.*?)\. Where", page)[0]
    )
    runtime = Runtime.boot()
    compiled = compile_model(runtime, "demo", device="numpy", dtype="float32")
    graphs = StepGraphs(compiled.model, runtime.operators, compiled.cache_spec, 4, 64, compiled.dtype)
    references = Dispatcher(reference_kernels(runtime.operators, "numpy"))

    def parts(key: GraphKey) -> set[str]:
        lowered = lower(graphs.build(key).finish(), runtime.operators, references, "numpy", fuse=False)
        return {one.signature.operator for one in lowered.resolutions if one is not None}

    assert parts(GraphKey()) == usual
    others = (GraphKey(True, True, True), GraphKey(kind=GraphKind.SCORES), GraphKey(kind=GraphKind.KEY_SHIFT))
    assert set().union(*map(parts, others)) - usual == more
    compiled.open_device.backend.close()
