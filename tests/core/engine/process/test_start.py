"""The start of an engine's processes, and descriptions of their exit codes."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from aethermind import __version__
from aethermind.engine.process.start import blocked_signals, check_version, child_environment, describe_exit
from aethermind.errors import PluginError

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
