"""The pages for authors of packages: the tutorial does what it says, and the reference of hooks is today's."""

from __future__ import annotations

import re
import subprocess
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from tests.documentation.commands import ROOT
from tests.plugins.scaffolded import environment, install

PAGES = ROOT / "docs" / "extending"
PACKAGE = "aethermind-my-chip"
_CODE = r"```python\n(.*?)```\n"
_STEP = re.compile(
    r"^```console\n(?P<session>.*?)^```$"
    rf"|^Append to `(?P<grown>[^`]+)`:\n\n{_CODE}"
    rf"|^Replace in `(?P<changed>[^`]+)`:\n\n{_CODE}\nby\n\n{_CODE}",
    re.MULTILINE | re.DOTALL,
)


class Reader:
    """Somebody who follows a page in a folder: types its commands, writes its code."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._package, self._metadata = folder / PACKAGE, folder / "metadata"

    def follow(self, page: Path) -> None:
        steps = list(_STEP.finditer(page.read_text(encoding="utf-8")))
        assert len(steps) >= 6
        for step in steps:
            appended, before, after = step.group(3, 5, 6)
            if step["session"] is not None:
                for command, printed in re.findall(r"^\$ (.*)\n((?:[^$].*\n|\n)*)", step["session"], re.MULTILINE):
                    self._type(command, printed)
            elif step["grown"] is not None:
                path = self._folder / step["grown"]
                path.write_text(f"{path.read_text()}\n\n{appended}")
            else:
                path = self._folder / step["changed"]
                assert path.read_text().count(before) == 1
                path.write_text(path.read_text().replace(before, after))

    def _type(self, command: str, printed: str) -> None:
        """Run a command and compare what it prints; `pip install` is played by metadata, `cd` by a new folder."""
        if command.startswith("cd "):
            self._folder /= command.removeprefix("cd ")
        elif command.startswith("pip install "):
            install(self._package, self._metadata)
        else:
            result = subprocess.run(
                ["bash", "-c", command],
                cwd=self._folder,
                env=environment(self._package, self._metadata),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=120,
                check=False,
            )
            assert result.returncode == 0, f"{command}\n{result.stdout}"
            assert re.fullmatch(as_pattern(printed), result.stdout), f"{command}\n{result.stdout}"


def as_pattern(printed: str) -> str:
    """What is shown as a pattern: `…` alone stands for any lines, at the end of a line for the rest of it."""
    lines = []
    for line in printed.rstrip().splitlines():
        rest = r"[^\n]*" if line.endswith("…") else ""
        lines.append(r"(?:[^\n]*\n)*?" if line == "…" else f"{re.escape(line.removesuffix('…'))}{rest}\n")
    return "".join(lines) + r"\n*"


def test_the_tutorial_does_what_it_says(tmp_path: Path) -> None:
    Reader(tmp_path).follow(PAGES / "your-own-backend.md")


def test_the_reference_of_hooks_is_todays() -> None:
    path = PAGES / "write_hooks.py"
    spec = spec_from_file_location("write_hooks", path)
    assert spec is not None
    assert spec.loader is not None
    script = module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.PAGE.read_text(encoding="utf-8") == script.text(), f"run python {path.relative_to(ROOT)}"
