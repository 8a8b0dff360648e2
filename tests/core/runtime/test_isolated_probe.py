"""Probes of third parties: each runs in a child, and a crash or a timeout there becomes its answer."""

from __future__ import annotations

import logging
import os
from importlib.metadata import version
from pathlib import Path

import pytest
from tests.core.plugins.fake_distributions import FakeDistributions

from aethermind import Runtime
from aethermind.errors import DeviceError
from aethermind.hal import Probe
from aethermind.plugins import sandbox
from aethermind.runtime import isolated_devices

PLUGIN = """
    import ctypes, os, signal, subprocess, sys, threading
    from pathlib import Path

    ASKED = Path(__file__).with_name("asked")

    def probe():
        with ASKED.open("a") as file:
            file.write(f"{{os.getpid()}} ")
        {answer}

    @hookimpl
    def register_devices(registry):
        registry.register("rogue", probe=probe, open=NullBackend, priority=99, provider="fake-rogue")
"""


def install(fakes: FakeDistributions, answer: str, **how: str) -> None:
    fakes.install("rogue", PLUGIN.format(answer=answer), **how)  # type: ignore[arg-type]


def ask(fakes: FakeDistributions, answer: str) -> Probe:
    """The answer that the registry gets from a probe with this body."""
    install(fakes, answer)
    return next(iter(Runtime.boot().devices)).probe()


def num_asked(fakes: FakeDistributions) -> int:
    asked = fakes.folder / "asked"
    return len(asked.read_text().split()) if asked.exists() else 0


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("ctypes.string_at(0)", "its probe crashed with signal 11 (SIGSEGV)"),
        ("os.abort()", "its probe crashed with signal 6 (SIGABRT)"),
        ("os._exit(3)", "its probe ended its process with exit code 3"),
        ("sys.exit('no licence')", "its probe raised SystemExit: no licence"),
        ("raise OSError('no libx.so.')", "its probe raised OSError: no libx.so"),
        ("return 1", "its probe returned int instead of a Probe"),
    ],
)
def test_a_probe_that_fails_answers_that_the_device_is_broken(
    fakes: FakeDistributions, answer: str, reason: str
) -> None:
    probe = ask(fakes, answer)
    assert probe == Probe(0, f"{reason}. Update or uninstall fake-rogue.", is_broken=True)


@pytest.mark.parametrize(
    "answer",
    [
        "threading.Event().wait()",
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT]); signal.pause()",
        "os.closerange(0, 99); signal.pause()",
    ],
)
def test_a_probe_that_hangs_times_out(fakes: FakeDistributions, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    install(fakes, answer)
    for limit_s in (0.2, 2.0, 20.0):  # on a busy machine it may not get as far as to hang
        monkeypatch.setattr(isolated_devices, "PROBE_LIMIT_S", limit_s)
        probe = next(iter(Runtime.boot().devices)).probe()
        assert probe.reason == f"its probe did not answer within {limit_s:g} s. Update or uninstall fake-rogue."
        if num_asked(fakes):
            break
        isolated_devices.PROBES.file.unlink()
    (pid,) = (fakes.folder / "asked").read_text().split()
    with pytest.raises(ProcessLookupError):
        os.killpg(int(pid), 0)


def test_processes_that_a_hanging_probe_started_end_with_it(
    fakes: FakeDistributions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolated_devices, "PROBE_LIMIT_S", 0.5)
    os.mkfifo(fakes.folder / "alive")
    with os.fdopen(os.open(fakes.folder / "alive", os.O_RDONLY | os.O_NONBLOCK)) as alive:
        ask(fakes, "subprocess.call(['sleep', '600'], stderr=ASKED.with_name('alive').open('w'))")
        os.set_blocking(alive.fileno(), True)
        assert alive.read() == ""  # which waits until the last writer has closed it


def test_output_of_a_probe_is_not_its_answer(fakes: FakeDistributions) -> None:
    probe = ask(fakes, "print('{}'); os.write(1, b'[]'); return Probe(3, 'it is ünusual.')")
    assert probe == Probe(3, "it is ünusual.")


def test_a_first_party_device_is_probed_in_this_process(fakes: FakeDistributions) -> None:
    requires = f"aethermind-core=={version('aethermind-core')}"
    install(fakes, "return Probe(os.getpid(), 'here.')", distribution="aethermind-rogue", requires=requires)
    assert next(iter(Runtime.boot().devices)).probe().count == os.getpid()


def test_auto_warns_about_broken_devices(fakes: FakeDistributions, caplog: pytest.LogCaptureFixture) -> None:
    install(fakes, "ctypes.string_at(0)")
    fakes.install("unborn", "raise ImportError('no libx.so')")
    runtime = Runtime.boot()
    with caplog.at_level(logging.WARNING, "aethermind"):
        selection = runtime.devices.select("auto")
    assert selection.entry.name != "rogue"
    assert "passed over rogue: its probe crashed with signal 11" in selection.reason
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning.startswith(f"Running on {selection.entry.name} without rogue: its probe crashed with signal 11")
    assert "unborn: its plugin unborn (fake-unborn 9.9) failed: importing it raised ImportError" in warning
    assert warning.endswith("`aethermind doctor` gives details.")
    with pytest.raises(DeviceError, match="Device 'rogue' is not available: its probe crashed with signal 11"):
        runtime.devices.select("rogue")


def test_an_absent_device_gives_no_warning(fakes: FakeDistributions, caplog: pytest.LogCaptureFixture) -> None:
    install(fakes, "return Probe(0, 'no such card.')")
    Runtime.boot().devices.select("auto")
    assert not caplog.records


def test_the_probe_of_a_device_that_is_not_wanted_does_not_run(fakes: FakeDistributions) -> None:
    install(fakes, "ctypes.string_at(0)")
    runtime = Runtime.boot()
    runtime.open_device("numpy").backend.close()
    assert num_asked(fakes) == 0


def test_auto_uses_the_cached_answer_and_a_named_absent_device_is_probed_again(fakes: FakeDistributions) -> None:
    install(fakes, "return Probe(0, 'no such card.')")
    Runtime.boot().devices.select("auto")
    Runtime.boot().devices.select("auto")
    assert num_asked(fakes) == 1
    with pytest.raises(DeviceError, match="no such card"):
        Runtime.boot().devices.select("rogue")
    assert num_asked(fakes) == 2


def test_the_cached_answer_of_an_available_device_is_used(fakes: FakeDistributions) -> None:
    install(fakes, "return Probe(1, 'here.')")
    assert [Runtime.boot().devices.select(text).entry.name for text in ("auto", "rogue", "auto")] == ["rogue"] * 3
    assert num_asked(fakes) == 1


@pytest.mark.parametrize("change", ["version", "boot", "file", "variable", "rubbish", "nonsense"])
def test_changes_of_the_stamp_invalidate_an_answer(
    fakes: FakeDistributions, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    install(fakes, "return Probe(0, 'no such card.')")
    Runtime.boot().devices.select("auto")
    if change == "version":
        (fakes.folder / "fake_rogue-9.9.dist-info").rename(fakes.folder / "fake_rogue-10.0.dist-info")
        metadata = fakes.folder / "fake_rogue-10.0.dist-info/METADATA"
        metadata.write_text(metadata.read_text().replace("9.9", "10.0"))
    elif change == "boot":
        (fakes.folder / "boot_id").write_text("another")
        monkeypatch.setattr(sandbox, "_BOOT_ID", fakes.folder / "boot_id")
    elif change == "file":
        (module,) = fakes.folder.glob("plugin_of_*.py")
        os.utime(module, (1, 1))
    elif change == "variable":
        monkeypatch.setenv("ROGUE_VISIBLE_DEVICES", "1")
    elif change == "rubbish":
        isolated_devices.PROBES.file.write_text("{")
    else:
        kept = isolated_devices.PROBES.file
        kept.write_text(kept.read_text().replace('"count": 0', '"count": "many"'))
    Runtime.boot().devices.select("auto")
    assert num_asked(fakes) == 2


@pytest.mark.parametrize("obstacle", ["no folder", "no boot id"])
def test_an_answer_that_cannot_be_cached_is_probed_each_time(
    fakes: FakeDistributions, monkeypatch: pytest.MonkeyPatch, obstacle: str
) -> None:
    install(fakes, "return Probe(0, 'no such card.')")
    if obstacle == "no folder":
        monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    else:
        monkeypatch.setattr(sandbox, "_BOOT_ID", Path("/nowhere/boot_id"))
    for _ in range(2):
        Runtime.boot().devices.select("auto")
    assert num_asked(fakes) == 2
