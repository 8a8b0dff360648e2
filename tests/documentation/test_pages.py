"""What pages say besides commands: links lead somewhere, flags exist, and the Python on them runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main
from release import models_table
from tests.documentation.commands import ROOT, environment

from aethermind.cli.app import app

USING = sorted((ROOT / "docs" / "using").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMING_FROM = ROOT / "docs" / "using" / "coming-from.md"
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`]+)`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FLAG = re.compile(r"(?<![\w-])--?[a-z][a-z0-9-]*")
_PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
_OTHER_PROGRAMS = ("docker ", "hf ", "modelscope ", "pip ", "python ")

WITH_PYTHON = [page for page in (PAGES[0], *USING) if _PYTHON.search(page.read_text(encoding="utf-8"))]


def prose(page: Path) -> str:
    return _FENCED.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def flags_of(command: Any) -> set[str]:
    own = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    return own.union(*(flags_of(child) for child in getattr(command, "commands", {}).values()))


FLAGS = flags_of(typer.main.get_command(app)) | {"--help", "--config", "--print-config", "--log-level"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for link in _LINK.findall(prose(page)):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_rows_of_tables_are_lines(page: Path) -> None:
    wrapped = [line for line in prose(page).splitlines() if "|---|" in line and set(line) - set("|-: ")]
    assert not wrapped


@pytest.mark.parametrize("page", [page for page in USING if page != COMING_FROM], ids=lambda page: page.stem)
def test_flags_in_prose_exist(page: Path) -> None:
    ours = " ".join(code for code in _CODE.findall(prose(page)) if not code.startswith(_OTHER_PROGRAMS))
    assert {flag for flag in _FLAG.findall(ours) if flag.startswith("--")} <= FLAGS


def test_flags_for_those_who_come_from_elsewhere_exist() -> None:
    """In the last column of tables whose last column is ours; -n, -c and -tp among them."""
    found: set[str] = set()
    for table in re.findall(r"(?:^\|.*\n)+", prose(COMING_FROM), re.MULTILINE):
        rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in table.splitlines()]
        if "AetherMind" in rows[0][-1]:
            found |= set(_FLAG.findall(" ".join(code for row in rows[2:] for code in _CODE.findall(row[-1]))))
    assert len(found) > 40
    assert found <= FLAGS


def test_the_table_of_models_is_that_of_the_registries() -> None:
    """`python -m release.models_table` writes it."""
    page = models_table.PAGE.read_text(encoding="utf-8")
    assert page == models_table.with_table(page)


@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: page.stem)
def test_the_python_of_a_page_runs(page: Path, folder: Path) -> None:
    """All blocks of a page in one process, in order, but those that need a server."""
    blocks = [block for block in _PYTHON.findall(page.read_text(encoding="utf-8")) if "openai" not in block]
    result = subprocess.run(
        [sys.executable, "-c", "\n".join(blocks)],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert result.returncode == 0, result.stderr
