"""`python -m tests.clients.agents [NAME ...]`: coding agents of the npm registry edit a file by their own tools.

Each is installed with its pinned version below build/agents, and runs once without a terminal, in a folder and a home
of its own. A scripted model forces the calls (see `tests.clients.scripted`); everything else is theirs and ours.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.clients.scripted import MODEL, scripted_server
from tests.clients.suites.common import script

FOLDER = Path(__file__).parents[2] / "build" / "agents"
BEFORE, AFTER = 'def greet():\n    return "hello"\n', 'def greet():\n    return "goodbye, 世界"\n'
DONE = "It is done."
_TIMEOUT_S = 300


@dataclass(frozen=True)
class Run:
    """Where an agent runs: the server's address, and the file that it edits, in its working directory."""

    address: str
    file: Path
    home: Path


@dataclass(frozen=True)
class Agent:
    """An agent: its npm package, the calls that edit the file, and its command with environment variables.

    `prepare` writes its configuration.
    """

    package: str
    calls: Callable[[Run], list[tuple[str, dict[str, str]]]]
    command: tuple[str, ...]
    environment: Callable[[Run], dict[str, str]] = lambda run: {}
    prepare: Callable[[Run], object] = lambda run: None


def _claude_calls(run: Run) -> list[tuple[str, dict[str, str]]]:
    edit = {"file_path": str(run.file), "old_string": BEFORE, "new_string": AFTER}
    return [("Read", {"file_path": str(run.file)}), ("Edit", edit)]


def _codex_calls(run: Run) -> list[tuple[str, dict[str, str]]]:
    lines = [f"-{line}" for line in BEFORE.splitlines()] + [f"+{line}" for line in AFTER.splitlines()]
    patch = "\n".join(["*** Begin Patch", f"*** Update File: {run.file.name}", "@@", *lines, "*** End Patch"])
    commands = [f"cat {run.file.name}", f"apply_patch <<'EOF'\n{patch}\nEOF\n"]
    return [("exec_command", {"cmd": command}) for command in commands]


def _opencode_calls(run: Run) -> list[tuple[str, dict[str, str]]]:
    edit = {"filePath": str(run.file), "oldString": BEFORE, "newString": AFTER}
    return [("read", {"filePath": str(run.file)}), ("edit", edit)]


def _configure_codex(run: Run) -> None:
    provider = {"name": "local", "base_url": f"{run.address}/v1", "wire_api": "responses"}
    lines = [f"{name} = {json.dumps(value)}" for name, value in provider.items()]
    settings = [f'model = "{MODEL}"', 'model_provider = "local"', "[model_providers.local]", *lines]
    (run.home / ".codex").mkdir()
    (run.home / ".codex" / "config.toml").write_text("\n".join(settings))


def _configure_opencode(run: Run) -> None:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{run.address}/v1", "apiKey": "none"},
        "models": {MODEL: {"name": MODEL}},
    }
    model = f"local/{MODEL}"
    settings = {"provider": {"local": provider}, "model": model, "small_model": model, "autoupdate": False}
    run.file.with_name("opencode.json").write_text(json.dumps(settings))


AGENTS = {
    "claude": Agent(
        "@anthropic-ai/claude-code@2.1.197",
        _claude_calls,
        ("claude", "--model", MODEL, "--permission-mode", "acceptEdits", "-p"),
        lambda run: {
            "ANTHROPIC_BASE_URL": run.address,
            "ANTHROPIC_API_KEY": "none",
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": MODEL,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        },
    ),
    "codex": Agent(
        "@openai/codex@0.171.0",
        _codex_calls,
        ("codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
        prepare=_configure_codex,
    ),
    "opencode": Agent("opencode-ai@1.18.33", _opencode_calls, ("opencode", "run"), prepare=_configure_opencode),
}


def install(agent: Agent) -> Path:
    """The folder of the package's commands; npm installs it unless it is there."""
    folder = FOLDER / agent.package.replace("/", "+")
    if not (folder / "node_modules" / ".bin").exists():
        folder.mkdir(parents=True, exist_ok=True)
        npm = ["npm", "install", "--no-audit", "--no-fund", "--silent", "--prefix", str(folder), agent.package]
        subprocess.run(npm, check=True)
    return folder / "node_modules" / ".bin"


def edits_the_file(agent: Agent, commands: Path, address: str) -> bool:
    """Run an agent; whether it ended well, said what the script says, and the file is as it should be."""
    with TemporaryDirectory() as home, TemporaryDirectory() as work:
        run = Run(address, Path(work) / "greet.py", Path(home))
        run.file.write_text(BEFORE)
        agent.prepare(run)
        calls = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in agent.calls(run)]
        answers = [f"I edit it.\n<tool_call>\n{call}\n</tool_call>" for call in calls]
        prompt = f"Change the greeting. {script(*answers, DONE)}"
        environment = {"PATH": os.environ["PATH"], "HOME": home, **agent.environment(run)}
        command = [str(commands / agent.command[0]), *agent.command[1:], prompt]
        found = subprocess.run(
            command,
            cwd=work,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        is_right = found.returncode == 0 and DONE in found.stdout and run.file.read_text() == AFTER
        if not is_right:
            print(found.stdout, file=sys.stderr)
        return is_right


def main(names: list[str]) -> int:
    """Run the agents of these names, or all; the exit code is 1 if any failed."""
    if unknown := set(names) - set(AGENTS):
        print(f"There is no agent {', '.join(sorted(unknown))}. Choose of: {', '.join(AGENTS)}.", file=sys.stderr)
        return 2
    if shutil.which("npm") is None:
        print("The agents need npm: install Node.js.", file=sys.stderr)
        return 2
    failed = []
    for name in names or AGENTS:
        agent = AGENTS[name]
        commands = install(agent)
        with scripted_server() as address:
            is_right = edits_the_file(agent, commands, address)
        print(f"{agent.package}: {'edited the file' if is_right else 'failed'}", flush=True)
        if not is_right:
            failed.append(name)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
