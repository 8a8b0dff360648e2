"""Shell completion of verbs, flags and values, requested as the scripts do."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aethermind.cli.commands import COMMANDS, COMPLETION_VARIABLE

SHELLS = ("bash", "zsh", "fish")


def complete(shell: str, *words: str) -> set[str]:
    """What the program offers where the last of these words is to be completed."""
    line = " ".join(("aethermind", *words))
    asked = {
        "bash": {"COMP_WORDS": line, "COMP_CWORD": str(len(words))},
        "zsh": {"_TYPER_COMPLETE_ARGS": line},
        "fish": {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }[shell]
    environment = {**os.environ, COMPLETION_VARIABLE: f"complete_{shell}", **asked}
    command = [sys.executable, "-m", "aethermind"]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout
    if shell == "zsh":
        return set(re.findall(r'^(?:.*\(\()?"(.*?)"', answer, re.MULTILINE))
    return {line.partition("\t")[0] for line in answer.splitlines()}


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("gene",), {"generate"}),
        (("generate", "--de"), {"--device", "--deterministic"}),
        (("generate", "--dtype", "bf"), {"bfloat16"}),
        (("serve", "--device", "nu"), {"numpy", "null"}),
        (("chat", "--model", "de"), {"demo"}),
        (("bench", "lat"), {"latency"}),
        (("completion", "f"), {"fish"}),
    ],
)
def test_candidates_for_a_partial_command(shell: str, words: tuple[str, ...], expected: set[str]) -> None:
    assert complete(shell, *words) == expected


def test_all_verbs_are_offered() -> None:
    assert complete("bash", "") >= COMMANDS.keys()


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_for_each_shell(invoke: Any, shell: str) -> None:
    result = invoke("completion", shell)
    assert result.exit_code == 0
    assert f"{COMPLETION_VARIABLE}=complete_{shell}" in result.stdout
    assert "aethermind" in result.stdout


def test_other_shells_are_refused_with_those_that_work(invoke: Any) -> None:
    result = invoke("completion", "tcsh")
    assert result.exit_code == 2
    assert all(shell in result.stderr for shell in SHELLS)


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_runs_its_script(tmp_path: Path, invoke: Any) -> None:
    program = tmp_path / "aethermind"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m aethermind "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    (tmp_path / "script").write_text(invoke("completion", "bash").stdout, encoding="utf-8")
    steps = """
    source ./script
    COMP_WORDS=(./aethermind generate --load-format du) COMP_CWORD=3
    _aethermind_completion ./aethermind
    echo "${COMPREPLY[@]}"
    """
    result = subprocess.run(["bash", "-c", steps], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.stdout == "dummy\n", result.stderr
