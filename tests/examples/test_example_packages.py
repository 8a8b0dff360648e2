"""The example packages, installed from wheels into one environment: their own tests pass, with the public API only."""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.architecture.sources import ROOT
from tests.examples.example_packages import EXAMPLES, Environment, build_wheels, environment

from aethermind.plugins.hookspecs import HookSpecs

WITH_TESTS = [example.name for example in EXAMPLES if (example / "tests").is_dir()]
SHORT = ("aethermind-arena", "aethermind-olmo2")
MAX_LINES = 150


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment in which all examples are installed."""
    folder = tmp_path_factory.mktemp("examples")
    return environment(folder / "environment", build_wheels(EXAMPLES, folder))


@pytest.fixture(scope="module")
def results(installed: Environment, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[ElementTree.Element]]:
    """What became of the tests of each example, all of them run in one environment."""
    folder = tmp_path_factory.mktemp("results")
    report = folder / "report.xml"
    (nothing := folder / "pytest.ini").touch()
    options = ("-c", nothing, "--import-mode=importlib", "-p", "no:cacheprovider", "--junitxml", report)
    tests = [ROOT / "examples" / name / "tests" for name in WITH_TESTS]
    said = installed.run("-m", "pytest", *options, "--rootdir", ROOT / "examples", *tests, timeout=1800)
    assert report.is_file(), said.stdout + said.stderr
    found: dict[str, list[ElementTree.Element]] = {name: [] for name in WITH_TESTS}
    for case in ElementTree.parse(report).iter("testcase"):
        found[case.attrib["classname"].partition(".")[0]].append(case)
    return found


@pytest.mark.parametrize("name", WITH_TESTS)
def test_its_own_tests_pass(results: dict[str, list[ElementTree.Element]], name: str) -> None:
    cases = results[name]
    bad = [text for case in cases for outcome in case if (text := outcome.text or str(outcome.attrib))]
    assert cases
    assert not bad, "\n\n".join(bad)


def test_a_family_that_a_first_party_package_has_too_is_the_example_s(installed: Environment) -> None:
    listed = json.loads(installed.run("-m", "aethermind", "plugins", "list", "--json").stdout)
    (olmo2,) = [record for record in listed["plugins"] if record["name"] == "olmo2"]
    assert olmo2["status"] == "loaded"
    assert [sentence.split(" is this package")[0] for sentence in olmo2["replaced"]] == [
        "Olmo2ForCausalLM (architectures)",
        "olmo2 (gguf families)",
        "Olmo2ForCausalLM (answer formats)",
    ]
    assert "aethermind-llama's; to use that one, set AETHERMIND_PLUGINS" in olmo2["replaced"][0]


# What they import


def public_modules() -> set[str]:
    """The modules of the table in docs/extending/public-api.md."""
    lines = (ROOT / "docs" / "extending" / "public-api.md").read_text(encoding="utf-8").splitlines()
    return {line.split("`")[1] for line in lines if line.startswith("| `")}


def private_uses(path: Path) -> Iterator[str]:
    """What a file takes from AetherMind that is no name in `__all__` of a public module."""
    public, aliases = public_modules(), {}
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names if one.name.split(".")[0] == "aethermind" and one.asname is None)
            aliases |= {one.asname: one.name for one in node.names if one.name.startswith("aethermind") and one.asname}
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "aethermind":
            for one in node.names:
                if f"{node.module}.{one.name}" in public:
                    aliases[one.asname or one.name] = f"{node.module}.{one.name}"
                elif node.module not in public or one.name not in import_module(node.module).__all__:
                    yield f"{node.module}.{one.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in aliases:
            module = aliases[node.value.id]
            if module not in public or node.attr not in import_module(module).__all__:
                yield f"{module}.{node.attr}"


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_it_imports_the_public_api_only(example: Path) -> None:
    files = sorted(example.rglob("*.py"))
    assert files
    assert {str(path.relative_to(ROOT)): found for path in files if (found := sorted(private_uses(path)))} == {}


def test_a_private_import_is_detected(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    lines = (
        "from aethermind import hal, LLM",
        "from aethermind.hal import Buffer, mapped",
        "from aethermind.hal.memory import align_up",
        "import aethermind.engine",
        "hal.Tensor, hal.registry",
    )
    module.write_text("\n".join(lines))
    assert sorted(private_uses(module)) == [
        "aethermind.engine",
        "aethermind.hal.mapped",
        "aethermind.hal.memory.align_up",
        "aethermind.hal.registry",
    ]


@pytest.mark.parametrize("module", sorted(public_modules()))
def test_a_public_module_lists_its_names(module: str) -> None:
    face = import_module(module)
    assert face.__doc__
    assert face.__all__


HOOKS = [name for name, _ in inspect.getmembers(HookSpecs, inspect.isfunction)]
_ROW = re.compile(r"^\| `(\w+)` \| \[([\w-]+)\]\(\.\./\.\./examples/([\w-]+)\) \|", re.MULTILINE)


def test_every_hook_has_an_example() -> None:
    """One row a hook in docs/extending/examples.md, of a package that implements it."""
    rows = _ROW.findall((ROOT / "docs" / "extending" / "examples.md").read_text(encoding="utf-8"))
    assert sorted(hook for hook, _, _ in rows) == HOOKS
    for hook, name, folder in rows:
        assert name == folder
        (plugin,) = (ROOT / "examples" / name).glob("src/*/plugin.py")
        assert f"@hookimpl\ndef {hook}(" in plugin.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", SHORT)
def test_it_is_as_short_as_documented(name: str) -> None:
    files = (ROOT / "examples" / name / "src").rglob("*.py")
    lines = [line for path in files for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    assert len(lines) < MAX_LINES


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_it_has_a_page(example: Path) -> None:
    assert (example / "README.md").read_text(encoding="utf-8").startswith(f"# {example.name}\n")
