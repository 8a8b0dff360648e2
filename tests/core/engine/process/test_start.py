"""The start of an engine's processes, and descriptions of their exit codes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aethermind import __version__
from aethermind.engine.executors.worker_group import _WorkerProcess
from aethermind.engine.process.start import blocked_signals, check_version, child_environment, describe_exit
from aethermind.engine.process.supervisor import Child
from aethermind.errors import PluginError
from aethermind.hal.communicator import shared_file
from aethermind.plugins.sandbox import start_child

_INTERRUPTED = """
import os, signal
os.kill(os.getpid(), signal.SIGINT)  # comes before the process has said that it ignores it
from aethermind.engine.process.start import init_child
init_child()
os.kill(os.getpid(), signal.SIGTERM)
print("went on")
"""


def test_an_interrupt_before_initialisation_does_not_end_a_child() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with blocked_signals():
        child = subprocess.Popen(
            [sys.executable, "-c", _INTERRUPTED], stdout=subprocess.PIPE, env=child_environment(), text=True
        )
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
    said, _ = child.communicate(timeout=60)
    assert (said, child.returncode) == ("went on\n", 0)


_SITE = """
import json, os, signal
masked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
with open(os.path.join(os.path.dirname(__file__), f"{os.getpid()}.json"), "w") as file:
    json.dump({"is_blocked": {signal.SIGINT, signal.SIGTERM} <= masked, "group": os.getpgid(0)}, file)
os._exit(0)
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder into which each child process writes what signals it takes, and ends, before it imports anything."""
    (tmp_path / "sitecustomize.py").write_text(_SITE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def report_of(site: Path, pid: int) -> dict[str, Any]:
    return dict(json.loads((site / f"{pid}.json").read_text()))


def test_a_rank_takes_no_signal_of_the_terminal_from_its_first_instruction(site: Path) -> None:
    memory_fd = shared_file(2)
    try:
        worker = _WorkerProcess.start(1, 2, memory_fd)
    finally:
        os.close(memory_fd)
    assert worker.describe_end() == "ended with exit code 0"
    worker.end(0.0)
    worker.reply_sock.close()
    assert report_of(site, worker.pid)["is_blocked"]


def test_engine_processes_that_start_at_once_take_none_and_leave_the_mask(site: Path) -> None:
    async def scenario() -> list[int]:
        children = await asyncio.gather(*(Child.launch(print, site) for _ in range(3)))
        for child in children:
            assert await child.ended() == 0
            await child.close(0.0)
        return [child.pid for child in children]

    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    pids = asyncio.run(scenario())
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
    assert all(report_of(site, pid)["is_blocked"] for pid in pids)


def test_a_sandboxed_plugin_is_in_no_group_of_the_terminal(site: Path) -> None:
    with start_child("json.tool", {}) as child, pytest.raises(Exception, match="exit code 0"):
        child.read_line(60)
    (report,) = (json.loads(path.read_text()) for path in site.glob("*.json"))
    assert report["group"] != os.getpgid(0)


def test_a_child_does_not_repeat_warnings_of_unknown_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AETHERMIND_PLUGINS", raising=False)
    assert "AETHERMIND_PLUGINS" not in child_environment()
    for value, left in {"qwen2, cpu,qwen_3": "cpu,qwen2", "qwen_3": "", "": ""}.items():
        monkeypatch.setenv("AETHERMIND_PLUGINS", value)
        assert child_environment()["AETHERMIND_PLUGINS"] == left


def test_a_child_of_another_version_does_not_start() -> None:
    check_version(__version__)
    with pytest.raises(PluginError, match=rf"AetherMind 0\.0\.9 became {__version__} while it ran"):
        check_version("0.0.9")


@pytest.mark.parametrize(
    ("code", "words"), [(3, "ended with exit code 3"), (-9, "was killed by SIGKILL"), (-99, "was killed by signal 99")]
)
def test_exit_codes_are_described(code: int, words: str) -> None:
    assert describe_exit(code) == words
