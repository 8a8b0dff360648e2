"""What `make cuda-check` is made of: a budget of time, a table, and a tree that counts as installed."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.architecture.sources import ROOT
from tests.cuda.check import tree
from tests.cuda.check.__main__ import BUDGET_S
from tests.cuda.check.qwen2_7b import CONFIG, NUM_PARAMETERS
from tests.cuda.check.running import Outcome, Result, Step, execute, run_steps, table
from tests.processes import await_end


class Clock:
    """Time that passes when a step runs."""

    def __init__(self, durations: dict[str, float]) -> None:
        self.now = 100.0
        self.limits: dict[str, float] = {}
        self._durations = durations

    def run(self, step: Step, limit: float) -> tuple[int | None, str]:
        """A step whose first word is its exit status; it ends when its limit does."""
        self.limits[step.title] = limit
        took = self._durations[step.title]
        self.now += min(took, limit)
        return (None if took > limit else int(step.command[0])), f"working\n{step.title} said so\n\n"


def outcomes(steps: list[Step], budget: float, durations: dict[str, float]) -> tuple[list[Result], Clock]:
    clock = Clock(durations)
    return list(run_steps(steps, budget, clock.run, lambda: clock.now)), clock


def test_a_step_that_fails_or_hangs_does_not_stop_the_others() -> None:
    steps = [Step("bad", ["3"], 10), Step("slow", ["0"], 10), Step("good", ["0"], 10)]
    results, _ = outcomes(steps, 100, {"bad": 1, "slow": 99, "good": 2})
    assert [result.outcome for result in results] == [Outcome.FAILED, Outcome.TIMED_OUT, Outcome.PASSED]
    assert [result.seconds for result in results] == [1, 10, 2]
    assert results[0].said == "bad said so"


def test_steps_are_bounded_by_the_remaining_budget() -> None:
    steps = [Step(title, ["0"], 60, min_s=0) for title in ("first", "second", "third")]
    results, clock = outcomes(steps, 97, {"first": 60, "second": 34, "third": 1})
    assert clock.limits == {"first": 60, "second": 37}
    assert [result.outcome for result in results] == [Outcome.PASSED, Outcome.PASSED, Outcome.NO_TIME]


def test_each_step_has_its_minimum_time() -> None:
    steps = [
        Step("greedy", ["0"], 90, min_s=5),
        Step("gone", [], 9, "not here", 80),
        Step("late", ["0"], 60, None, 40),
    ]
    results, clock = outcomes(steps, 100, {"greedy": 90, "late": 33})
    assert clock.limits == {"greedy": 60, "late": 40}
    assert [result.outcome for result in results] == [Outcome.TIMED_OUT, Outcome.SKIPPED, Outcome.PASSED]


@pytest.fixture
def on_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if there were an A100 with everything that is compared with, and kernels still to be compiled."""
    from tests.cuda.check import machine, steps

    monkeypatch.setattr(steps, "capability_of_first", lambda: (8, 0))
    monkeypatch.setattr(machine, "capability_of_first", lambda: (8, 0))
    monkeypatch.setattr(steps, "reason_to_keep", lambda *_: None)
    monkeypatch.setattr(steps, "find_spec", lambda name: name)
    monkeypatch.setattr(steps, "find_tool", lambda name: f"/usr/bin/{name}")


def all_steps() -> list[Step]:
    from tests.cuda.check.steps import steps

    return steps(Path("build"))


@pytest.mark.usefixtures("on_a_card")
def test_the_minimum_times_fit_the_budget_of_ten_minutes() -> None:
    needed = sum(step.min_s for step in all_steps())
    assert needed <= BUDGET_S <= 10 * 60 - 20
    assert all(5 <= step.min_s <= step.limit_s for step in all_steps())
    titles = [step.title for step in all_steps()]
    in_order = ["machine", "loading", "shapes: linear", "figures", "conform: operators", "parity", "memcheck", "ncu"]
    assert sorted(in_order, key=titles.index) == in_order
    assert titles[-1] == "transformers"


@pytest.mark.usefixtures("on_a_card")
def test_hanging_steps_do_not_take_the_time_of_others() -> None:
    steps = [replace(step, is_needed=False) for step in all_steps()]
    results, clock = outcomes(steps, BUDGET_S, dict.fromkeys([step.title for step in steps], 1e6))
    assert sum(clock.limits.values()) <= BUDGET_S
    assert all(clock.limits[step.title] >= step.min_s for step in steps if step.reason_against is None)
    assert {result.outcome for result in results} <= {Outcome.TIMED_OUT, Outcome.SKIPPED}


def test_steps_are_skipped_without_their_prerequisite() -> None:
    steps = [Step("compile", ["1"], 10, is_needed=True), Step("use", ["0"], 10), Step("other", [], 9, "not here")]
    results, _ = outcomes(steps, 100, {"compile": 1})
    assert [result.outcome for result in results] == [Outcome.FAILED, Outcome.SKIPPED, Outcome.SKIPPED]
    assert [result.said for result in results[1:]] == ["it needs what `compile` did not do", "not here"]


def test_a_step_that_cannot_run_here_gives_the_reason() -> None:
    ((result,), clock) = outcomes([Step("sanitizer", [], 9, "compute-sanitizer is not installed")], 100, {})
    assert (result.outcome, result.said, clock.limits) == (Outcome.SKIPPED, "compute-sanitizer is not installed", {})


def test_the_table_names_the_machine_and_every_step() -> None:
    results = [Result("conform: hal", Outcome.PASSED, 3.21, "64 passed"), Result("x", Outcome.NO_TIME, 0, "late")]
    assert table({"card": "A100", "driver": "580.1"}, results).splitlines() == [
        "card:      A100",
        "driver:    580.1",
        "",
        "conform: hal  passed        3.2 s  64 passed",
        "x             no time       0.0 s  late",
    ]


def test_a_process_is_ended_with_its_children(tmp_path: Path) -> None:
    step = Step("hangs", ["sh", "-c", "sleep 600 & echo $!; wait"], 60)
    for limit_s in (1.0, 10.0, 60.0):  # on a busy machine it may take a while until there is a child
        status, said = execute(step, limit_s, tmp_path / "log")
        assert status is None
        if said.strip():
            break
    await_end(int(said))


def test_the_source_tree_takes_precedence_over_installed_packages(tmp_path: Path) -> None:
    paths = tree.python_path(ROOT, tmp_path)
    assert paths == [tmp_path, *(ROOT / name / "src" for name in tree.PACKAGES)]
    found = {one.metadata["Name"]: one for one in importlib.metadata.distributions(path=[str(tmp_path)])}
    assert set(found) == set(tree.PACKAGES)
    assert [(entry.group, entry.value) for entry in found["aethermind-cuda"].entry_points] == [
        ("aethermind.plugins.v2", "aethermind_cuda.plugin")
    ]
    assert found["aethermind-cuda"].version == importlib.metadata.version("aethermind-cuda")


def test_without_a_gpu_it_reports_that_and_exits_with_2(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.cuda.check", "--out", str(tmp_path)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if result.returncode != 2:
        pytest.skip("this machine has a GPU")
    assert result.stdout.startswith("There is nothing to check CUDA on: no NVIDIA driver is installed")


def test_the_sanitizer_needs_a_card_too(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.cuda.check", "--sanitize", "--out", str(tmp_path)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if result.returncode != 2:
        pytest.skip("this machine has a GPU, and compute-sanitizer")
    assert result.stdout.count("\n") == 1


def test_the_shapes_are_those_of_qwen2_7b() -> None:
    hidden, inner, kv = CONFIG["hidden_size"], CONFIG["intermediate_size"], 4 * 128
    layer = 2 * hidden * hidden + hidden + 2 * (hidden * kv + kv) + 3 * hidden * inner + 2 * hidden
    assert 28 * layer + 2 * CONFIG["vocab_size"] * hidden + hidden == NUM_PARAMETERS
