"""Third-party plugins are loaded in a child first: one that crashes or hangs fails, and everything else works."""

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
from aethermind.plugins import sandbox_load
from aethermind.plugins.discovery import PluginRecord, discover

LOADED = "import ctypes, os, signal, sys\nwith open(__file__ + '.loaded', 'a') as file: file.write('.')\n"
HOOK = "@hookimpl\ndef {}({}):\n    {}"


@pytest.fixture
def sandboxed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDistributions:
    monkeypatch.setenv("AETHERMIND_PLUGINS", "rogue,good,slow,qwen2,cpu")
    return FakeDistributions(tmp_path, monkeypatch, is_sandboxed=True)


def install(fakes: FakeDistributions, source: str, **how: Any) -> None:
    fakes.install("rogue", LOADED + source, **how)


def tried() -> PluginRecord:
    """The record of `rogue` after the sandboxed load of all plugins."""
    records = discover()
    sandbox_load.sandbox_load(records)
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
def test_a_crash_at_load_ends_a_child_and_fails_the_plugin(
    sandboxed: FakeDistributions, source: str, reason: str
) -> None:
    install(sandboxed, source)
    record = tried()
    assert (record.error or "").startswith(reason)
    assert (record.error or "").endswith(", when it was tried in a child process.")
    assert record.advice.startswith("Update it (pip install --upgrade fake-rogue), or uninstall it. `aetherm")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("signal.pause()", "its import"),
        (HOOK.format("register_kernels", "registry", "signal.pause()"), "its hook register_kernels"),
    ],
)
def test_a_load_that_hangs_times_out(
    sandboxed: FakeDistributions, monkeypatch: pytest.MonkeyPatch, source: str, reason: str
) -> None:
    install(sandboxed, source)
    for limit_s in (0.3, 3.0, 30.0):  # which on a busy machine its import may take
        monkeypatch.setattr(sandbox_load, "LOAD_LIMIT_S", limit_s)
        error = tried().error or ""
        assert f" did not answer within {limit_s:g} s, " in error
        if error.startswith(reason):
            return
        sandbox_load.forget_failures()
    pytest.fail(error)


@pytest.mark.parametrize("source", ["sys.exit(3)", HOOK.format("register_models", "registry", "sys.exit(3)")])
def test_an_exception_passes_the_sandbox_and_fails_the_load(sandboxed: FakeDistributions, source: str) -> None:
    install(sandboxed, source)
    (record,) = [record for record in Runtime.boot().plugins if record.name == "rogue"]
    assert "raised SystemExit: 3." in (record.error or "")


def test_the_command_line_works_beside_a_failed_plugin_and_doctor_retries_it(sandboxed: FakeDistributions) -> None:
    """In this process, which the plugin would end if it were loaded without a sandbox."""
    install(sandboxed, "os.abort()")
    sandboxed.install("good", HOOK.format("register_devices", "registry", "claim_device(registry, 'good', 'fake')"))
    runner = typer.testing.CliRunner()
    assert runner.invoke(app, ["--help"]).exit_code == 0
    with pytest.raises(
        DeviceError, match=r"Device 'rogue' is not available: its plugin rogue .* crashed with signal 6"
    ):
        Runtime.boot().open_device("rogue")
    assert "good" in [entry.name for entry in Runtime.boot().devices]
    assert num_loads(sandboxed) == 1
    report = json.loads(runner.invoke(app, ["doctor", "--json"]).stdout)
    assert num_loads(sandboxed) == 2
    (rogue,) = [plugin for plugin in report["plugins"] if plugin["name"] == "rogue"]
    assert rogue["status"] == "failed"
    assert "its import crashed with signal 6 (SIGABRT)" in rogue["error"]


def test_a_real_command_line_with_a_plugin_that_aborts(sandboxed: FakeDistributions) -> None:
    install(sandboxed, "os.abort()")
    command = [sys.executable, "-m", "aethermind", "plugins", "list"]
    environment = {**os.environ, "PYTHONPATH": str(sandboxed.folder)}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    assert "fake-rogue 9.9" in result.stdout
    assert "its import crashed with signal 6 (SIGABRT)" in result.stdout


@pytest.mark.parametrize("change", ["nothing", "version", "file", "site-packages", "rubbish"])
def test_a_version_is_sandboxed_once_until_its_code_changes(
    sandboxed: FakeDistributions, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    site = sandboxed.folder / "site-packages"
    site.mkdir()
    monkeypatch.syspath_prepend(site)
    install(sandboxed, "os.abort()")
    assert tried().error
    if change == "version":
        (sandboxed.folder / "fake_rogue-9.9.dist-info").rename(sandboxed.folder / "fake_rogue-10.0.dist-info")
        metadata = sandboxed.folder / "fake_rogue-10.0.dist-info/METADATA"
        metadata.write_text(metadata.read_text().replace("9.9", "10.0"))
    elif change == "file":
        (module,) = sandboxed.folder.glob("plugin_of_*.py")
        os.utime(module, (1, 1))
    elif change == "site-packages":
        os.utime(site, (1, 1))
    elif change == "rubbish":
        sandbox_load.LOAD_VERDICTS.file.write_text("[")
    assert tried().error
    assert num_loads(sandboxed) == (1 if change == "nothing" else 2)


def test_a_change_of_a_module_beside_the_plugin_invalidates_the_verdict(sandboxed: FakeDistributions) -> None:
    package = sandboxed.folder / "rogue_package" / "inner"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "plugin.py").write_text(LOADED)
    sandboxed.write("fake-rogue", "[aethermind.plugins.v2]\nrogue = rogue_package.inner.plugin\n")
    assert tried().error is None
    (package / "kernels.py").touch()
    assert tried().error is None
    assert "rogue_package" not in sys.modules
    assert len((package / "plugin.py.loaded").read_text()) == 2


def test_first_party_packages_are_not_sandboxed(sandboxed: FakeDistributions) -> None:
    install(sandboxed, "", distribution="aethermind-rogue", requires=f"aethermind-core=={version('aethermind-core')}")
    assert tried().error is None
    assert not list(sandboxed.folder.glob("*.loaded"))


def test_a_plugin_whose_process_does_not_start_is_loaded_untried(
    sandboxed: FakeDistributions, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(sandboxed, "")
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert tried().error is None
    monkeypatch.setattr(sys, "executable", "/bin/true")
    assert tried().error is None


def test_a_warning_names_unknown_plugins_of_the_allow_list(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AETHERMIND_PLUGINS", "qwen2,qwen_3")
    with caplog.at_level(logging.WARNING, "aethermind"):
        sandbox_load.load_installed()
    (message,) = [record.getMessage() for record in caplog.records if "AETHERMIND_PLUGINS" in record.getMessage()]
    assert message.startswith("AETHERMIND_PLUGINS names 'qwen_3', which no package provides. Installed: ")
    assert "qwen2" in message.partition("Installed: ")[2]
