"""Signals that end a command leave nothing behind that it was writing."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aethermind.cli.app import signals_exit

SIGNALS = [signal.SIGTERM, signal.SIGHUP]


@pytest.fixture(params=SIGNALS)
def number(request: pytest.FixtureRequest) -> Iterator[signal.Signals]:
    """A signal, which ends processes by default, also if the tests run under nohup."""
    before = signal.signal(request.param, signal.SIG_DFL)
    yield request.param
    signal.signal(request.param, before)


def test_a_signal_raises_system_exit_once(number: signal.Signals) -> None:
    after: list[object] = []

    def interrupted() -> None:
        with signals_exit():
            try:
                signal.raise_signal(number)
            finally:
                after.append(signal.getsignal(number))

    with pytest.raises(SystemExit) as end:
        interrupted()
    assert end.value.code == 128 + number
    assert after == [signal.SIG_DFL], "a second one ends the process"
    assert signal.getsignal(number) is signal.SIG_DFL


def test_a_signal_that_is_ignored_remains_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals_exit():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


QUANTIZE = """
import os, signal, sys
from pathlib import Path
from aethermind.cli.app import run
from aethermind.engine.quantize.compressed_tensors import CompressedTensorsModel

def write(self, folder, *_):
    (folder / "model.safetensors").write_bytes(b"begun")
    print([path.suffix for path in Path(sys.argv[-1]).parent.iterdir()], flush=True)
    os.kill(os.getpid(), int(number))

number = sys.argv.pop(1)
CompressedTensorsModel.write = write
run()
"""


def test_quantize_deletes_what_it_was_writing(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-c", QUANTIZE, str(int(number)), "quantize", "demo", "--device", "numpy"]
    options = ["--to", "int8_channel", "--quality-tokens", "0", "--out", str(tmp_path / "out")]
    result = subprocess.run([*command, *options], capture_output=True, text=True, timeout=60)
    assert (result.stdout, result.returncode) == ("['.part']\n", 128 + number), result.stderr
    assert list(tmp_path.iterdir()) == []
