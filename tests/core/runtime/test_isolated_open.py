"""Opening a third party's device: its backend opens in a child first, and a crash there becomes a DeviceError."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from importlib.metadata import version
from typing import Any

import pytest
import typer.testing
from tests.core.plugins.fake_distributions import FakeDistributions

from aethermind import Runtime
from aethermind.cli.app import app
from aethermind.errors import DeviceError
from aethermind.hal import Probe
from aethermind.hal.builtin_backends import NumpyBackend
from aethermind.runtime import isolated_devices

PLUGIN = """
    import ctypes, os, signal, sys
    from pathlib import Path
    from aethermind.errors import OutOfMemoryError

    OPENED = Path(__file__).with_name("opened")

    class Rogue(NullBackend):
        def close(self):
            {close}
            super().close()

    def open_backend():
        with OPENED.open("a") as file:
            file.write(f"{{os.getpid()}} ")
        {open}
        return Rogue()

    @hookimpl
    def register_devices(registry):
        registry.register("rogue", probe=lambda: Probe(1, "here."), open=open_backend, priority=99, provider="fake")
"""


def install(fakes: FakeDistributions, open: str = "pass", close: str = "pass", **how: Any) -> None:
    fakes.install("rogue", PLUGIN.format(open=open, close=close), **how)


def opened_by(fakes: FakeDistributions) -> list[int]:
    """The processes that opened the device."""
    file = fakes.folder / "opened"
    return [int(pid) for pid in file.read_text().split()] if file.exists() else []


@pytest.mark.parametrize(
    ("open", "close", "reason"),
    [
        ("ctypes.string_at(0)", "pass", "its open() crashed with signal 11 (SIGSEGV)"),
        ("os._exit(7)", "pass", "its open() ended its process with exit code 7"),
        ("pass", "os.abort()", "its close() crashed with signal 6 (SIGABRT)"),
    ],
)
def test_a_backend_that_would_end_this_process_is_an_error(
    fakes: FakeDistributions, open: str, close: str, reason: str
) -> None:
    install(fakes, open, close)
    for _ in range(2):  # the verdict is kept
        with pytest.raises(DeviceError) as caught:
            Runtime.boot().open_device("rogue")
        assert str(caught.value) == (
            f"Device 'rogue' cannot be opened: {reason}, when it was tried in a child process. Update it (pip "
            "install --upgrade fake-rogue), or uninstall it. `aethermind doctor` tries it again, and so does the "
            "next start after it has changed."
        )
    assert len(opened_by(fakes)) == 1


def test_a_backend_that_hangs_times_out(fakes: FakeDistributions, monkeypatch: pytest.MonkeyPatch) -> None:
    install(fakes, "signal.pause()")
    monkeypatch.setattr(isolated_devices, "OPEN_LIMIT_S", 0.2)
    with pytest.raises(DeviceError, match=r"its open\(\) did not answer within 0\.2 s"):
        Runtime.boot().open_device("rogue")
    for pid in opened_by(fakes):
        with pytest.raises(ProcessLookupError):
            os.killpg(pid, 0)


def test_a_device_that_the_plugin_does_not_claim_in_the_child(fakes: FakeDistributions) -> None:
    """It says nothing about opening the device, so `open` still works."""
    install(fakes)
    record = next(one for one in Runtime.boot().plugins if one.name == "rogue")
    device = isolated_devices.IsolatedDevice(record, "other", probe=lambda: Probe(1, "here."), open=NumpyBackend)
    with pytest.raises(DeviceError, match=r"^In a process of its own rogue claims no such device \(.*\)\.$"):
        device.examine()
    device.open().close()
    assert opened_by(fakes) == []


def test_a_backend_is_sandboxed_once_until_its_code_changes(fakes: FakeDistributions) -> None:
    install(fakes)
    for _ in range(2):
        Runtime.boot().open_device("rogue").backend.close()
    first, *others = opened_by(fakes)
    assert first != os.getpid()
    assert others == [os.getpid()] * 2
    (module,) = fakes.folder.glob("plugin_of_*.py")
    os.utime(module, (1, 1))
    Runtime.boot().open_device("rogue").backend.close()
    assert len(opened_by(fakes)) == 5


def test_a_device_released_with_the_core_is_opened_at_once(fakes: FakeDistributions) -> None:
    requires = f"aethermind-core=={version('aethermind-core')}"
    install(fakes, distribution="aethermind-rogue", requires=requires)
    Runtime.boot().open_device("rogue").backend.close()
    assert opened_by(fakes) == [os.getpid()]


@pytest.mark.parametrize(
    ("open", "reason"),
    [
        ("raise RuntimeError('the card is gone')", "could not be opened: RuntimeError: the card is gone"),
        ("raise OutOfMemoryError('No room on the card.')", "No room on the card"),
        ("sys.exit(3)", "could not be opened: SystemExit: 3"),
        ("return None", r"its open\(\) returned NoneType instead of a Backend"),
        ("ctypes.string_at(0)", "crashed with signal 11"),
    ],
)
def test_auto_skips_a_device_that_cannot_be_opened_with_a_warning(
    fakes: FakeDistributions, caplog: pytest.LogCaptureFixture, open: str, reason: str
) -> None:
    install(fakes, open)
    with caplog.at_level(logging.WARNING, "aethermind"):
        opened = Runtime.boot().open_device("auto")
    opened.backend.close()
    assert opened.device.type != "rogue"
    assert "passed over rogue: " in opened.selection.reason
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning.startswith(f"Running on {opened.device.type} without rogue: ")
    with pytest.raises(DeviceError, match=reason):
        Runtime.boot().open_device("rogue")


def test_if_no_device_opens_the_error_names_all(fakes: FakeDistributions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aethermind.hal.builtin_backends.NumpyBackend", lambda: 1 // 0)
    monkeypatch.setenv("AETHERMIND_PLUGINS", "rogue")
    install(fakes, "raise RuntimeError('the card is gone')")
    with pytest.raises(DeviceError, match=r"No device is available\. Considered: rogue: .*the card is gone.*; numpy: "):
        Runtime.boot().open_device("auto")


def test_doctor_reports_a_crashing_backend_and_retries_it(fakes: FakeDistributions) -> None:
    """In this process, which a backend that is opened here would end."""
    install(fakes, "ctypes.string_at(0)")
    runner = typer.testing.CliRunner()
    for _ in range(2):
        result = runner.invoke(app, ["doctor", "--json"])
        devices = {device["name"]: device for device in json.loads(result.stdout)["devices"]}
        assert devices["rogue"]["is_broken"]
        assert "its open() crashed with signal 11 (SIGSEGV)" in devices["rogue"]["reason"]
        assert devices["numpy"]["is_available"]
    assert len(opened_by(fakes)) == 2


def test_doctor_reports_the_facts_from_the_child(fakes: FakeDistributions) -> None:
    install(fakes)
    result = typer.testing.CliRunner().invoke(app, ["doctor", "--json"])
    devices = {device["name"]: device for device in json.loads(result.stdout)["devices"]}
    facts = ("title", "isa", "total_memory_bytes", "num_cores", "dtypes")
    assert [devices["rogue"][fact] for fact in facts] == [devices["null"][fact] for fact in facts]
    assert os.getpid() not in opened_by(fakes)


def test_a_real_doctor_beside_a_backend_that_crashes(fakes: FakeDistributions) -> None:
    install(fakes, "os.abort()")
    environment = {**os.environ, "PYTHONPATH": str(fakes.folder)}
    command = [sys.executable, "-m", "aethermind", "doctor"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    assert "its open() crashed with signal 6 (SIGABRT)" in result.stdout
