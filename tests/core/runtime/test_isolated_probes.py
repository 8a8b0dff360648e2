"""Probes of strangers' packages: whatever one does happens to a child, and is told in a sentence."""

from __future__ import annotations

import logging
import os
from importlib.metadata import version
from pathlib import Path

import pytest
from tests.core.plugins.fake_distributions import FakeDistributions

from aethermind import Runtime
from aethermind.errors import DeviceError
from aethermind.hal import Probe, isolated_probe
from aethermind.plugins import kept_answers

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
    """What the registry gets to hear of a probe with this body."""
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
def test_a_probe_that_goes_wrong_is_an_answer(fakes: FakeDistributions, answer: str, reason: str) -> None:
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
def test_a_probe_that_hangs_is_left_alone_after_its_time(
    fakes: FakeDistributions, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    install(fakes, answer)
    for limit_s in (0.2, 2.0, 20.0):  # on a busy machine it may not get as far as to hang
        monkeypatch.setattr(isolated_probe, "PROBE_LIMIT_S", limit_s)
        probe = next(iter(Runtime.boot().devices)).probe()
        assert probe.reason == f"its probe did not answer within {limit_s:g} s. Update or uninstall fake-rogue."
        if num_asked(fakes):
            break
        isolated_probe.ANSWERS.file.unlink()
    (pid,) = (fakes.folder / "asked").read_text().split()
    with pytest.raises(ProcessLookupError):
        os.killpg(int(pid), 0)


def test_what_a_hanging_probe_has_started_ends_with_it(
    fakes: FakeDistributions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolated_probe, "PROBE_LIMIT_S", 0.5)
    os.mkfifo(fakes.folder / "alive")
    with os.fdopen(os.open(fakes.folder / "alive", os.O_RDONLY | os.O_NONBLOCK)) as alive:
        ask(fakes, "subprocess.call(['sleep', '600'], stderr=ASKED.with_name('alive').open('w'))")
        os.set_blocking(alive.fileno(), True)
        assert alive.read() == ""  # which waits until nobody can write any more


def test_what_a_probe_prints_is_not_its_answer(fakes: FakeDistributions) -> None:
    probe = ask(fakes, "print('{}'); os.write(1, b'[]'); return Probe(3, 'it is ünusual.')")
    assert probe == Probe(3, "it is ünusual.")


def test_a_package_released_with_the_core_is_asked_in_this_process(fakes: FakeDistributions) -> None:
    requires = f"aethermind-core=={version('aethermind-core')}"
    install(fakes, "return Probe(os.getpid(), 'here.')", distribution="aethermind-rogue", requires=requires)
    assert next(iter(Runtime.boot().devices)).probe().count == os.getpid()


def test_auto_says_what_it_goes_without_and_a_broken_device_is_an_error(
    fakes: FakeDistributions, caplog: pytest.LogCaptureFixture
) -> None:
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
    assert warning.endswith("`aethermind doctor` tells more.")
    with pytest.raises(DeviceError, match="Device 'rogue' is not available: its probe crashed with signal 11"):
        runtime.devices.select("rogue")


def test_an_absent_device_is_no_reason_to_warn(fakes: FakeDistributions, caplog: pytest.LogCaptureFixture) -> None:
    install(fakes, "return Probe(0, 'no such card.')")
    Runtime.boot().devices.select("auto")
    assert not caplog.records


def test_nobody_asks_who_wants_another_device(fakes: FakeDistributions) -> None:
    install(fakes, "ctypes.string_at(0)")
    runtime = Runtime.boot()
    runtime.open_device("numpy").backend.close()
    assert num_asked(fakes) == 0


def test_auto_believes_the_last_answer_and_who_names_an_absent_device_asks_again(fakes: FakeDistributions) -> None:
    install(fakes, "return Probe(0, 'no such card.')")
    Runtime.boot().devices.select("auto")
    Runtime.boot().devices.select("auto")
    assert num_asked(fakes) == 1
    with pytest.raises(DeviceError, match="no such card"):
        Runtime.boot().devices.select("rogue")
    assert num_asked(fakes) == 2


def test_a_device_that_was_there_is_believed_in(fakes: FakeDistributions) -> None:
    install(fakes, "return Probe(1, 'here.')")
    assert [Runtime.boot().devices.select(text).entry.name for text in ("auto", "rogue", "auto")] == ["rogue"] * 3
    assert num_asked(fakes) == 1


@pytest.mark.parametrize("change", ["version", "boot", "file", "variable", "rubbish", "nonsense"])
def test_what_an_answer_depends_on_makes_it_stale(
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
        monkeypatch.setattr(kept_answers, "_BOOT_ID", fakes.folder / "boot_id")
    elif change == "file":
        (module,) = fakes.folder.glob("plugin_of_*.py")
        os.utime(module, (1, 1))
    elif change == "variable":
        monkeypatch.setenv("ROGUE_VISIBLE_DEVICES", "1")
    elif change == "rubbish":
        isolated_probe.ANSWERS.file.write_text("{")
    else:
        kept = isolated_probe.ANSWERS.file
        kept.write_text(kept.read_text().replace('"count": 0', '"count": "many"'))
    Runtime.boot().devices.select("auto")
    assert num_asked(fakes) == 2


@pytest.mark.parametrize("obstacle", ["no folder", "no boot id"])
def test_what_cannot_be_kept_is_asked_each_time(
    fakes: FakeDistributions, monkeypatch: pytest.MonkeyPatch, obstacle: str
) -> None:
    install(fakes, "return Probe(0, 'no such card.')")
    if obstacle == "no folder":
        monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    else:
        monkeypatch.setattr(kept_answers, "_BOOT_ID", Path("/nowhere/boot_id"))
    for _ in range(2):
        Runtime.boot().devices.select("auto")
    assert num_asked(fakes) == 2
