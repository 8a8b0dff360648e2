"""Everything that documentation and help pages show works as it is printed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.adapters import linear_shapes, write_adapter
from tests.documentation.commands import ROOT, help_commands, page_commands
from tests.end_to_end.gguf_files import write_gguf
from tests.end_to_end.models import DEMO
from tests.ports import free_port

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "using").glob("*.md"))]
MODELS = ("Qwen2-0.5B", "Qwen2-0.5B-Instruct", "checkpoints/first", "my-model")
"""What readers are told to put there themselves; here it is the demo model."""


ADAPTERS = ("rhymes", "letters")
QUANTISED = "model-Q4_K_M.gguf"


@pytest.fixture(scope="session")
def quantised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model's shape in a mixture such as llama.cpp makes; K-quants are of random values."""
    modules = {"attn_q": "Q4_K", "attn_k": "Q4_K", "attn_v": "Q6_K", "attn_output": "Q4_K", "ffn_gate": "Q4_K",
               "ffn_up": "Q4_K", "ffn_down": "Q5_0"}  # fmt: skip
    types = {f"blk.{i}.{name}.weight": type for i in range(4) for name, type in modules.items()}
    path = tmp_path_factory.mktemp("quantised") / QUANTISED
    return write_gguf(DEMO, path, quantised={**types, "token_embd.weight": "Q8_0"})


@pytest.fixture
def folder(tmp_path: Path, quantised: Path) -> Path:
    """Where a reader might stand."""
    for name in MODELS:
        shutil.copytree(DEMO, tmp_path / name)
    shapes = linear_shapes(json.loads((DEMO / "config.json").read_text(encoding="utf-8")))
    for seed, name in enumerate(ADAPTERS):
        write_adapter(tmp_path / "adapters" / name, shapes, seed=seed, size=0.2)
    shutil.copy(quantised, tmp_path)
    shutil.copy(quantised, tmp_path / "model.gguf")
    shutil.copy(ROOT / "README.md", tmp_path)
    return tmp_path


def environment(folder: Path) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    others = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("AETHERMIND_") and name != "XDG_CACHE_HOME"  # commands clear the reader's cache
    }
    return {**others, "PATH": path, "HOME": str(folder)}


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
        if "aethermind bench serve" in command or "--url" in command:
            servers.enter_context(served(at_port(port, "aethermind serve"), folder))
        assert_works(at_port(port, command), folder, servers)


def test_every_page_is_found_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert all(f"docs/using/{page.name}" in readme for page in PAGES[1:])
