"""The recorder does not change answers, records each step, and its file survives the process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from aethermind import LLM, Runtime, SamplingParams
from aethermind.errors import InvalidArgumentError
from aethermind_blackbox.recorder import NUM_RECORDS, Recorder, read

RUNTIME = Runtime.boot()
GREEDY = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
PROMPT = "Once upon a time"


@pytest.fixture
def file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("AETHERMIND_BLACKBOX_FILE", str(tmp_path / "steps.bin"))
    return tmp_path / "steps.bin"


def tokens(executor: str) -> list[int]:
    with LLM("demo", device="cpu", dtype="float32", executor=executor, runtime=RUNTIME) as llm:
        return llm.generate(PROMPT, GREEDY)[0].outputs[0].token_ids


def test_answers_are_those_of_inline_and_each_step_is_recorded(file: Path) -> None:
    assert tokens("blackbox") == tokens("inline")
    steps = read(file)
    assert [step.number for step in steps] == [1, 2, 3, 4, 5]
    assert [step.num_tokens for step in steps[1:]] == [1, 1, 1, 1]
    assert steps[0].num_tokens > 1
    assert all(step.seconds is not None and step.seconds > 0 for step in steps)
    assert len({step.request_ids for step in steps}) == 1


def test_the_file_of_a_killed_process_has_its_running_step(file: Path) -> None:
    code = f"""
import os, signal
from aethermind_blackbox.recorder import Recorder, path
recorder = Recorder(path())
recorder.end(recorder.begin(7, 0, "first"), 0.5)
recorder.begin(1, 2, "second")
os.kill(os.getpid(), signal.{signal.SIGKILL.name})
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    assert read(file) == [(1, 0.5, 7, 0, "first"), (2, None, 1, 2, "second")]
    command = [sys.executable, "-m", "aethermind", "blackbox", "--last", "1"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, env=dict(os.environ))
    assert said.stdout == "step 2: 1 tokens, 2 copies, did not end, of second\n"


def test_the_ring_keeps_the_last_steps(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "ring.bin")
    for number in range(NUM_RECORDS + 3):
        recorder.end(recorder.begin(number, 0, "é" * 100), 1.0)
    steps = read(tmp_path / "ring.bin")
    assert [steps[0].number, steps[-1].number, len(steps)] == [4, NUM_RECORDS + 3, NUM_RECORDS]


def test_a_missing_file_is_reported_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="There is no flight recorder"):
        read(tmp_path / "none.bin")
    with pytest.raises(InvalidArgumentError, match="cannot be written"):
        Recorder(tmp_path / "missing" / "steps.bin")
