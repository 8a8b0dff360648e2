"""Everything that documentation and help pages show works as it is printed."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.documentation.commands import ROOT, environment, help_commands, page_commands
from tests.ports import free_port

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "using").glob("*.md"))]

SAVED_SESSION = (
    "curl -s http://127.0.0.1:8000/v1/completions "
    """-d '{"model": "demo", "prompt": "Once upon a time there was a fox", "session_id": "tale"}'""",
    "aethermind sessions save tale --url http://127.0.0.1:8000",
)
"""What the examples of `sessions` are about."""


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=folder,
        env=environment(folder),
        input="Hello there\n",
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def at_port(port: int, command: str) -> str:
    """The command with that port for the default one, which something else on this machine may have."""
    command = command.replace(":8000", f":{port}")
    if "aethermind serve" in command:
        command = re.sub(" --port [0-9]+", "", command).replace("aethermind serve", f"aethermind serve --port {port}")
    if "--url" not in command:
        command = command.replace("aethermind bench serve", f"aethermind bench serve --url http://127.0.0.1:{port}")
    return command


@contextmanager
def served(command: str, folder: Path) -> Iterator[None]:
    """A server for the commands that follow on the page; it stops when it is told to, and says that all was well."""
    bash = ["bash", "-c", command.replace("aethermind serve", "exec aethermind serve")]
    process = subprocess.Popen(bash, cwd=folder, env=environment(folder), stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    with process:
        said = ""
        while "Serving" not in said:
            line = process.stderr.readline()
            assert line, f"{command}\n{said}"
            said += line
        try:
            yield
        finally:
            process.terminate()
            assert process.wait(300) == 0, f"{command}\n{said}{process.stderr.read()}"


def assert_works(command: str, folder: Path, servers: ExitStack) -> None:
    if "aethermind serve" in command:
        servers.close()  # a reader has one at a time
        servers.enter_context(served(command, folder))
        return
    result = run(command, folder)
    assert result.returncode == 0, f"{command}\n{result.stdout}{result.stderr}"
    assert result.stdout.strip(), f"{command} prints nothing"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_of_a_page_work_in_order(page: Path, folder: Path) -> None:
    port = free_port()
    commands = [at_port(port, command) for command in page_commands(page)]
    assert commands, "a page about using it shows how"
    with ExitStack() as servers:
        for command in commands:
            assert_works(command, folder, servers)


@pytest.mark.parametrize("command", help_commands())
def test_the_examples_of_help_work(command: str, folder: Path) -> None:
    port = free_port()
    with ExitStack() as servers:
        if "aethermind sessions" in command:
            servers.enter_context(served(at_port(port, "aethermind serve --session-dir sessions"), folder))
            for preparation in SAVED_SESSION:
                assert_works(at_port(port, preparation), folder, servers)
        elif "aethermind bench serve" in command or "--url" in command:
            servers.enter_context(served(at_port(port, "aethermind serve"), folder))
        assert_works(at_port(port, command), folder, servers)


def test_every_page_is_found_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert all(f"docs/using/{page.name}" in readme for page in PAGES[1:])
