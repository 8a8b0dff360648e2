"""Every command, request, name and test in the table of requirements exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any

import pytest
import typer.main
from fastapi.routing import APIRoute
from tests.documentation.commands import ROOT

from aethermind.cli.app import app
from aethermind.server.app import create_app
from aethermind.server.web_ui import router as web_ui

PAGE = ROOT / "docs" / "requirements.md"
KIT = ROOT / "aethermind-core" / "src" / "aethermind" / "testing" / "suites"
ROWS = [
    tuple(cell.strip() for cell in line.strip("|").split(" | "))
    for line in PAGE.read_text(encoding="utf-8").partition("## Not met")[0].splitlines()
    if line.startswith("| ") and not line.startswith("| Requirement")
]
_CODE = re.compile(r"`([^`]+)`")


@cache
def defined_tests(path: str) -> frozenset[str]:
    file = KIT / path.removeprefix("kit/") if path.startswith("kit/") else ROOT / "tests" / path
    found = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    return frozenset(node.name for node in found if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@cache
def requests() -> frozenset[str]:
    """The method and path of every route of a server."""
    engine = SimpleNamespace(failure=None, stats=None, pid=None)
    info = SimpleNamespace(adapters=(), max_model_len=8, weight_bytes=0, kv_cache_bytes=0, arena_bytes=0)
    model: Any = SimpleNamespace(name="demo", engine=engine, info=info)
    model.with_adapters = lambda: [model]
    paths = create_app([model]).openapi()["paths"]
    documented = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    return frozenset({*documented, *(f"GET {route.path}" for route in web_ui.routes if isinstance(route, APIRoute))})


def check_command(words: list[str]) -> None:
    """The words are subcommands, arguments of the last one, and flags that it has."""
    command: Any = typer.main.get_command(app)
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    assert not getattr(command, "commands", {}), "no command is named"
    context = command.make_context("aethermind", [], resilient_parsing=True)
    flags = {flag for option in command.get_params(context) for flag in (*option.opts, *option.secondary_opts)}
    for word in words:
        assert not word.startswith("-") or word in flags, word


def test_the_page_has_its_rows() -> None:
    assert len(ROWS) > 60
    assert {len(row) for row in ROWS} == {3}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:40])
def test_what_shows_and_holds_a_requirement_exists(row: tuple[str, str, str]) -> None:
    _, shown, held = row
    assert _CODE.findall(shown)
    assert _CODE.findall(held)
    for code in _CODE.findall(shown):
        if code.startswith("aethermind."):
            resolve_name(code)
        elif code.startswith("aethermind "):
            check_command(code.split()[1:])
        else:
            assert code in requests(), code
    for code in _CODE.findall(held):
        path, _, name = code.partition("::")
        assert name in defined_tests(path), code
