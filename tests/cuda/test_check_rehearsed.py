"""`make cuda-check` over a libcuda whose kernels do nothing: every path of it but the card's own numbers.

What goes wrong on a card goes wrong here on purpose: no git and no compiler, a process that dies, a device that is
lost, a kernel that hangs. What was found before and what comes after has to be there all the same.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import ArgumentTypeError
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from tests.architecture.sources import ROOT
from tests.cuda.check import kernels
from tests.cuda.check.entry_points import shard_of
from tests.cuda.check.records import CASES_FILE, DEVICE_LOST_STATUS, CaseLog, lost_device
from tests.cuda.check.stream_figures import Watch
from tests.cuda.check.workers import supervise

from aethermind_cuda.driver import CudaError

SUITE = "aethermind-core/src/aethermind/testing/suites/test_operators.py"


@pytest.fixture(scope="session")
def idle_gpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the library."""
    folder = tmp_path_factory.mktemp("idle_gpu")
    options = ["-shared", "-fPIC", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-o", str(folder / "libcuda.so.1")]
    subprocess.run(["cc", *options, str(ROOT / "tests/cuda/stub/idle_gpu.c"), "-ldl"], check=True)
    return folder


@pytest.fixture
def environment(idle_gpu: Path) -> dict[str, str]:
    """Of a machine with that GPU and nothing else: no git, no nvcc, no tools of CUDA's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA", "PYTEST"))}
    return {**kept, "LD_LIBRARY_PATH": str(idle_gpu), "PATH": "/nonexistent", "CUDA_HOME": "/nonexistent"}


def check(environment: dict[str, str], out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.cuda.check", "--small", "--out", str(out), *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "cases.jsonl").read_text().splitlines()]


def outcomes(out: Path, suite: str) -> dict[str, str]:
    return {line["case"]: line["outcome"] for line in lines(out) if line.get("suite") == suite and "case" in line}


def test_without_git_and_compiler_the_records_are_complete(environment: dict[str, str], tmp_path: Path) -> None:
    result = check(environment, tmp_path, "--only", "machine,loading")
    assert result.returncode == 1, result.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"table.txt", "cases.jsonl", "all.log"}
    table = (tmp_path / "table.txt").read_text()
    assert "commit:    unknown: there is no git" in table
    assert "card:      idle H100, 4 GiB" in table
    assert table.strip() in result.stdout
    assert outcomes(tmp_path, "loading")["every entry point"] == "passed"
    assert outcomes(tmp_path, "loading")["one kernel"] == "FAILED"  # it computed nothing
    assert "== machine" in (tmp_path / "all.log").read_text()


def test_the_commit_can_be_given(environment: dict[str, str], tmp_path: Path) -> None:
    assert "commit:    abc123\n" in check(environment, tmp_path, "--only", "machine", "--commit", "abc123").stdout


def test_an_unknown_step_is_refused(environment: dict[str, str], tmp_path: Path) -> None:
    result = check(environment, tmp_path, "--only", "nonsense")
    assert (result.returncode, result.stdout) == (2, "Nothing can be run: no such step.\n")


def test_a_crashed_step_keeps_its_results_and_later_steps_run(environment: dict[str, str], tmp_path: Path) -> None:
    environment["IDLE_GPU_KILLS"] = "elementwise_add_float32"
    check(environment, tmp_path, "--only", "loading,shapes: sampling")
    assert outcomes(tmp_path, "loading") == {"every entry point": "passed"}
    assert [line["running"] for line in lines(tmp_path) if line.get("suite") == "loading" and "running" in line] == [
        "every entry point",
        "one kernel",
    ]
    assert len(outcomes(tmp_path, "sampling")) == 34
    steps = {line["step"]: line["outcome"] for line in lines(tmp_path) if "step" in line}
    assert steps == {"loading": "FAILED", "shapes: sampling": "FAILED"}


def test_a_resumed_check_skips_passed_cases(environment: dict[str, str], tmp_path: Path) -> None:
    check(environment, tmp_path, "--only", "machine")
    result = check(environment, tmp_path, "--only", "machine,loading", "--resume")
    assert "… loading" in result.stdout
    assert "… machine" not in result.stdout
    assert (tmp_path / "table.txt").read_text().count("passed") >= 1
    assert "machine" in (tmp_path / "table.txt").read_text()


def test_shapes_and_figures_complete(environment: dict[str, str], tmp_path: Path) -> None:
    groups = ("decode", "prefill", "scored", "mixture", "qkv", "gate_up")
    check(environment, tmp_path, "--only", ",".join([*(f"shapes: {group}" for group in groups), "figures"]))
    for suite in ("figures", "figures mixture"):
        assert set(outcomes(tmp_path, suite).values()) == {"passed"}
    for group in groups:
        reasons = [line.get("reason", "") for line in lines(tmp_path) if line.get("suite") == group and "case" in line]
        assert reasons, group
        assert all("relative error inf" in reason for reason in reasons), reasons  # of outputs that were not written


def test_a_lost_device_costs_one_case_of_a_worker(environment: dict[str, str], tmp_path: Path) -> None:
    environment |= {"IDLE_GPU_LOSES": "rms_norm_float16", CASES_FILE: str(tmp_path / "cases.jsonl")}
    worker = [sys.executable, "-m", "tests.cuda.check.entry_points", "suite"]
    command = [sys.executable, "-m", "tests.cuda.check.workers", "suite", "--", *worker]
    subprocess.run(command, cwd=ROOT, env={**environment, "PYTHONPATH": str(ROOT)}, capture_output=True, check=False)
    lost = [line for line in lines(tmp_path) if "ILLEGAL_ADDRESS" in line.get("reason", "")]
    assert [line["case"].split("-")[0] for line in lost] == ["rms_norm"]
    names = list(outcomes(tmp_path, "suite"))
    assert len(names) > names.index(lost[0]["case"]) + 10


def test_the_processes_of_a_sanitizer_share_the_samples(environment: dict[str, str], tmp_path: Path) -> None:
    sanitizer = tmp_path / "bin" / "compute-sanitizer"
    sanitizer.parent.mkdir()
    sanitizer.write_text('#!/bin/sh\nwhile [ "${1#--}" != "$1" ]; do shift; done\nexec "$@"\n')
    sanitizer.chmod(0o755)
    environment |= {"CUDA_HOME": str(tmp_path), "PYTHONPATH": str(ROOT), CASES_FILE: str(tmp_path / "cases.jsonl")}
    said = []
    for module, *arguments in (["sanitized", "memcheck", "--processes", "2"], ["entry_points", "all of them"]):
        command = [sys.executable, "-m", f"tests.cuda.check.{module}", *arguments, "--samples", "rms_norm-,layer_norm-"]
        result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        said.append(result.stdout.splitlines()[-1])
    begun = {
        suite: [line["running"] for line in lines(tmp_path) if line.get("suite") == suite and "running" in line]
        for suite in ("memcheck", "all of them")
    }
    assert sorted(begun["memcheck"]) == sorted(begun["all of them"])
    assert {name.split("-")[0] for name in begun["memcheck"]} >= {"rms_norm", "add_rms_norm", "layer_norm"}
    assert said[0] == f"0 passed, {len(begun['memcheck'])} failed, 0 unfinished; exit statuses [1, 1]"


@pytest.mark.parametrize("text", ["0/4", "5/4", "2", "a/b", "-1/4"])
def test_a_shard_that_does_not_exist_is_refused(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="is not like 2/4"):
        shard_of(text)


@pytest.mark.usefixtures("has_cubins")
def test_a_lost_device_costs_one_test_of_a_suite(environment: dict[str, str], tmp_path: Path) -> None:
    environment |= {"IDLE_GPU_LOSES": "rms_norm_float16", "PYTHONPATH": str(ROOT)}
    report = tmp_path / "cases.jsonl"
    options = ["--backend", "cuda", "--conformance-report", str(report), "-q", "-k", "rms_norm and 3x7", "-n", "2"]
    command = [sys.executable, "-m", "aethermind.testing", SUITE, *options, "-p", "tests.cuda.check.lost_device"]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    cases = {line["case"]["name"]: line["case"]["reason"] for line in lines(tmp_path) if "case" in line}
    lost = [name for name, reason in cases.items() if "ILLEGAL_ADDRESS" in reason]
    assert [name for name in lost if "-float16-" not in name] == [], result.stdout
    assert {name.split("-")[2] for name in cases} == {"bfloat16", "float16", "float32"}
    assert "worker" in result.stdout


@pytest.fixture
def has_cubins() -> None:
    from aethermind_cuda.library import Cubins

    assert Cubins().operators, "There are no compiled kernels: run `make cuda-kernels`."


WORKER = f"""
import os, signal, sys
from tests.cuda.check.records import CaseLog
log = CaseLog.of_environment("suite")
begun = log.begun()
for name in ("first", "lost", "hangs", "killed", "wrong", "last"):
    if name in begun:
        continue
    with log.case(name) as facts:
        if name == "lost":
            os._exit({DEVICE_LOST_STATUS})
        if name == "hangs":
            signal.pause()
        if name == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        assert name != "wrong", "it is wrong"
        facts["us"] = 1.5
"""


def test_a_worker_continues_after_the_case_that_crashed_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cases.jsonl"
    monkeypatch.setenv(CASES_FILE, str(path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    log = CaseLog("suite", path)
    assert supervise(log, [sys.executable, "-c", WORKER], patience_s=5.0) == 1
    assert outcomes(tmp_path, "suite") == {
        "first": "passed",
        "lost": "FAILED",
        "hangs": "FAILED",
        "killed": "FAILED",
        "wrong": "FAILED",
        "last": "passed",
    }
    reasons = {line["case"]: line.get("reason") for line in log.records() if "case" in line}
    assert reasons["lost"] == "it lost the device"
    assert reasons["hangs"] == "it hung for 5 s"
    assert reasons["killed"] == "its process ended with status -9"
    assert reasons["wrong"] == "AssertionError: it is wrong"
    assert capsys.readouterr().out.endswith("2 passed, 4 failed: lost, hangs, killed, wrong\n")


def test_a_step_that_does_not_end_shows_what_the_streams_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen = Event()

    def query() -> bool:
        seen.set()
        return False

    streams = (SimpleNamespace(stream=SimpleNamespace(query=query)) for _ in range(2))
    main, prefill = streams
    runner = SimpleNamespace(launch=lambda *_: "step", _main_stream=main, _prefill_stream=prefill)
    engine = SimpleNamespace(runner=runner, running=["a", "b"], waiting=["c"])
    watch = Watch(SimpleNamespace(engine=engine), CaseLog("suite", tmp_path / "cases.jsonl"), 0.01)  # type: ignore[arg-type]
    watch.doing = "round 1"
    with watch.watching():
        decision = SimpleNamespace(phase="mixed", num_decodes=2, num_batched_tokens=34)
        assert engine.runner.launch(decision, None) == "step"
        assert seen.wait(10)
    said = capsys.readouterr().out
    assert "in round 1: 1 steps, last mixed, 2 decodes, 34 tokens" in said
    assert "2 running, 1 waiting" in said
    assert "main stream: busy" in said
    assert lines(tmp_path)[-1]["progress"] == "round 1: 1 steps, last mixed, 2 decodes, 34 tokens"


@pytest.mark.usefixtures("has_cubins")
def test_memory_runs_out_and_a_long_context_is_compared(environment: dict[str, str]) -> None:
    """What the kernels of both dtypes did not compute is not the mean of the values."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "tests/cuda/hardware/test_memory.py"]
    command += ["-k", "out_of_memory or 128k"]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert result.stdout.splitlines()[-1].startswith("2 failed, 1 passed")
    assert result.stdout.count("E       Not equal to tolerance") == 2


def test_lines_that_were_cut_off_are_left_out(tmp_path: Path) -> None:
    log = CaseLog("suite", tmp_path / "cases.jsonl")
    log.write(running="one")
    with (tmp_path / "cases.jsonl").open("a") as stream:
        stream.write('{"suite": "suite", "runn')
    assert (log.begun(), log.unfinished()) == ({"one"}, ["one"])


def test_sticky_context_errors_are_distinguished() -> None:
    assert lost_device(CudaError("cuLaunchKernel", 700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal access"))
    assert lost_device(RuntimeError("CUDA error: an illegal memory access was encountered"))
    assert not lost_device(CudaError("cuMemAlloc", 2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"))
    assert not lost_device(AssertionError("off by 700"))


@pytest.mark.parametrize(
    ("stale", "has_compiler", "kept"),
    [
        (None, True, "the kernels are those of these sources"),
        (None, False, "the kernels are those of these sources"),
        ("rms_norm changed", True, None),
        ("rms_norm changed", False, "rms_norm changed, and there is no nvcc: the kernels are used as they are"),
    ],
)
def test_kernels_are_compiled_where_they_are_old_and_a_compiler_is_there(
    monkeypatch: pytest.MonkeyPatch, stale: str | None, has_compiler: bool, kept: str | None
) -> None:
    monkeypatch.setattr(kernels, "reason_to_compile", lambda _: stale)
    monkeypatch.setattr(kernels, "_has_compiler", lambda: has_compiler)
    monkeypatch.setattr(kernels.Cubins, "unsupported_reason", lambda *_: None)
    assert kernels.reason_to_keep("90a", (9, 0)) == kept


@pytest.mark.usefixtures("has_cubins")
def test_stale_cubins_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernels.reason_to_compile("90a") is None
    assert "was not compiled for sm_75" in str(kernels.reason_to_compile("75"))
    monkeypatch.setattr(kernels.Cubins, "operators", {})
    assert "was not compiled for sm_90a" in str(kernels.reason_to_compile("90a"))
