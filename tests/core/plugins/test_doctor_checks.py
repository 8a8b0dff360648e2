"""The checks of plugins for `doctor`: if a third party's check crashes or hangs, the other checks still report."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.core.plugins.fake_distributions import FakeDistributions

from aethermind.plugins import doctor_checks
from aethermind.plugins.discovery import PluginRecord, discover
from aethermind.plugins.doctor_checks import run_checks
from aethermind.plugins.loading import load_plugins

SOURCE = """
import os, signal, threading
def crash(): os.kill(os.getpid(), signal.SIGSEGV)
def hang(): threading.Event().wait()
@hookimpl
def doctor_checks():
    return [("fine", lambda: "72 a minute\\nor so"), ("crash", crash), ("error", lambda: 1 / 0), ("hang", hang),
            ("process", lambda: str(os.getpid())), ("exit", lambda: os._exit(3))]
"""


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDistributions:
    monkeypatch.setenv("AETHERMIND_PLUGINS", "rogue")
    return FakeDistributions(tmp_path, monkeypatch)


def results(records: list[PluginRecord]) -> dict[str, str]:
    found = list(run_checks(load_plugins(records), records))
    assert {plugin for plugin, _, _ in found} <= {"rogue"}
    return {title: result for _, title, result in found}


def test_a_crash_a_timeout_and_an_exception_are_results_of_checks(
    fakes: FakeDistributions, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes.install("rogue", SOURCE)
    for limit_s in (1.0, 10.0, 60.0):  # on a busy machine all of them may take a while
        monkeypatch.setattr(doctor_checks, "CHECK_LIMIT_S", limit_s)
        found = results(discover())
        if sum("did not answer" in result for result in found.values()) == 1:
            break
    assert int(found.pop("process")) != os.getpid()
    assert found == {
        "fine": "72 a minute\nor so",
        "crash": "crashed with signal 11 (SIGSEGV), in a process of its own",
        "error": "ZeroDivisionError: division by zero",
        "hang": f"did not answer within {limit_s:g} s, in a process of its own",
        "exit": "ended its process with exit code 3, in a process of its own",
    }


def test_every_check_reports_a_process_that_does_not_start(
    fakes: FakeDistributions, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes.install("rogue", "@hookimpl\ndef doctor_checks(): return [(title, str) for title in 'ab']")
    monkeypatch.setattr(doctor_checks, "START_LIMIT_S", 0.0)
    expected = "not run: the process for it did not answer within 0 s, in a process of its own"
    assert results(discover()) == {"a": expected, "b": expected}


def test_first_party_checks_run_in_this_process(fakes: FakeDistributions) -> None:
    fakes.install("rogue", "import os\n@hookimpl\ndef doctor_checks(): return [('process', os.getpid)]")
    (record,) = discover()
    record.is_first_party = True
    assert results([record]) == {"process": str(os.getpid())}
