"""Strangers' plugins are loaded in a child first: one that crashes or hangs is named, and everything else works."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer.testing
from tests.core.plugins.fake_distributions import FakeDistributions

from aethermind import Runtime
from aethermind.cli.app import app
from aethermind.errors import DeviceError
from aethermind.plugins import trial
from aethermind.plugins.discovery import PluginRecord, discover
from aethermind.plugins.trial import try_strangers

LOADED = "import ctypes, os, signal, sys\nwith open(__file__ + '.loaded', 'a') as file: file.write('.')\n"
HOOK = "@hookimpl\ndef {}({}):\n    {}"


@pytest.fixture
def strangers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDistributions:
    monkeypatch.setenv("AETHERMIND_PLUGINS", "rogue,good,slow,qwen2,cpu")
    return FakeDistributions(tmp_path, monkeypatch, are_tried=True)


def install(fakes: FakeDistributions, source: str, **how: Any) -> None:
    fakes.install("rogue", LOADED + source, **how)


def tried() -> PluginRecord:
    """The record of `rogue` after the trial of all."""
    records = discover()
    try_strangers(records)
    (record,) = [record for record in records if record.name == "rogue"]
    return record


def num_loads(fakes: FakeDistributions) -> int:
    (file,) = fakes.folder.glob("*.loaded")
    return len(file.read_text())


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("os.abort()", "its import crashed with signal 6 (SIGABRT)"),
        ("ctypes.string_at(0)", "its import crashed with signal 11 (SIGSEGV)"),
        ("os._exit(0)", "its import ended its process with exit code 0"),
        ("raise KeyboardInterrupt", "its import raised KeyboardInterrupt"),
        (HOOK.format("register_operators", "registry", "os.abort()"), "its hook register_operators crashed with sig"),
        (HOOK.format("register_commands", "app", "os._exit(3)"), "its hook register_commands ended its process with"),
        (HOOK.format("doctor_checks", "", "raise KeyboardInterrupt"), "its hook doctor_checks raised KeyboardInterr"),
    ],
)
def test_what_would_end_this_process_ends_a_child(strangers: FakeDistributions, source: str, reason: str) -> None:
    install(strangers, source)
    record = tried()
    assert (record.error or "").startswith(reason)
    assert (record.error or "").endswith(", when it was tried in a process of its own.")
    assert record.advice.startswith("Update it (pip install --upgrade fake-rogue), or uninstall it. `aetherm")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("signal.pause()", "its import"),
        (HOOK.format("register_kernels", "registry", "signal.pause()"), "its hook register_kernels"),
    ],
)
def test_what_hangs_is_left_alone_after_its_time(
    strangers: FakeDistributions, monkeypatch: pytest.MonkeyPatch, source: str, reason: str
) -> None:
    install(strangers, source)
    for limit_s in (0.3, 3.0, 30.0):  # which on a busy machine its import may take
        monkeypatch.setattr(trial, "TRIAL_LIMIT_S", limit_s)
        error = tried().error or ""
        assert f" did not answer within {limit_s:g} s, " in error
        if error.startswith(reason):
            return
        trial.forget_failures()
    pytest.fail(error)


@pytest.mark.parametrize("source", ["sys.exit(3)", HOOK.format("register_models", "registry", "sys.exit(3)")])
def test_what_python_catches_passes_the_trial_and_is_told_when_it_is_loaded(
    strangers: FakeDistributions, source: str
) -> None:
    install(strangers, source)
    (record,) = [record for record in Runtime.boot().plugins if record.name == "rogue"]
    assert "raised SystemExit: 3." in (record.error or "")


def test_the_command_line_works_beside_it_and_doctor_tries_again(strangers: FakeDistributions) -> None:
    """In this process, which a plugin that is loaded untried would end."""
    install(strangers, "os.abort()")
    strangers.install("good", HOOK.format("register_devices", "registry", "claim_device(registry, 'good', 'fake')"))
    runner = typer.testing.CliRunner()
    assert runner.invoke(app, ["--help"]).exit_code == 0
    with pytest.raises(
        DeviceError, match=r"Device 'rogue' is not available: its plugin rogue .* crashed with signal 6"
    ):
        Runtime.boot().open_device("rogue")
    assert "good" in [entry.name for entry in Runtime.boot().devices]
    assert num_loads(strangers) == 1
    report = json.loads(runner.invoke(app, ["doctor", "--json"]).stdout)
    assert num_loads(strangers) == 2
    (rogue,) = [plugin for plugin in report["plugins"] if plugin["name"] == "rogue"]
    assert rogue["status"] == "failed"
    assert "its import crashed with signal 6 (SIGABRT)" in rogue["error"]


def test_a_real_command_line_with_a_plugin_that_aborts(strangers: FakeDistributions) -> None:
    install(strangers, "os.abort()")
    command = [sys.executable, "-m", "aethermind", "plugins", "list"]
    environment = {**os.environ, "PYTHONPATH": str(strangers.folder)}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    assert "fake-rogue 9.9" in result.stdout
    assert "its import crashed with signal 6 (SIGABRT)" in result.stdout


@pytest.mark.parametrize("change", ["nothing", "version", "file", "site-packages", "rubbish"])
def test_a_version_is_tried_once(strangers: FakeDistributions, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    site = strangers.folder / "site-packages"
    site.mkdir()
    monkeypatch.syspath_prepend(site)
    install(strangers, "os.abort()")
    assert tried().error
    if change == "version":
        (strangers.folder / "fake_rogue-9.9.dist-info").rename(strangers.folder / "fake_rogue-10.0.dist-info")
        metadata = strangers.folder / "fake_rogue-10.0.dist-info/METADATA"
        metadata.write_text(metadata.read_text().replace("9.9", "10.0"))
    elif change == "file":
        (module,) = strangers.folder.glob("plugin_of_*.py")
        os.utime(module, (1, 1))
    elif change == "site-packages":
        os.utime(site, (1, 1))
    elif change == "rubbish":
        trial.VERDICTS.file.write_text("[")
    assert tried().error
    assert num_loads(strangers) == (1 if change == "nothing" else 2)


def test_a_change_in_a_module_beside_the_plugin_is_a_change(strangers: FakeDistributions) -> None:
    package = strangers.folder / "rogue_package" / "inner"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "plugin.py").write_text(LOADED)
    strangers.write("fake-rogue", "[aethermind.plugins.v1]\nrogue = rogue_package.inner.plugin\n")
    assert tried().error is None
    (package / "kernels.py").touch()
    assert tried().error is None
    assert "rogue_package" not in sys.modules
    assert len((package / "plugin.py.loaded").read_text()) == 2


def test_what_is_released_with_the_core_is_not_tried(strangers: FakeDistributions) -> None:
    install(strangers, "", distribution="aethermind-rogue", requires=f"aethermind-core=={version('aethermind-core')}")
    assert tried().error is None
    assert not list(strangers.folder.glob("*.loaded"))


def test_a_plugin_whose_process_does_not_start_is_loaded_untried(
    strangers: FakeDistributions, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(strangers, "")
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert tried().error is None
    monkeypatch.setattr(sys, "executable", "/bin/true")
    assert tried().error is None


def test_a_name_that_no_package_has_is_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("AETHERMIND_PLUGINS", "qwen2,qwen_3")
    with caplog.at_level(logging.WARNING, "aethermind"):
        trial.load_installed()
    (message,) = [record.getMessage() for record in caplog.records if "AETHERMIND_PLUGINS" in record.getMessage()]
    assert message.startswith("AETHERMIND_PLUGINS names 'qwen_3', which no package provides. Installed: ")
    assert "qwen2" in message.partition("Installed: ")[2]
