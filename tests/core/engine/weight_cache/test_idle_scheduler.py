"""Background work runs while a model is idle, and piece by piece if it is always busy."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aethermind.engine.weight_cache import IdleScheduler
from aethermind.graph.constants import BusyTracker

STEP_S, PIECE_S = 0.03, 0.002
BETWEEN_STEPS_S = 0.004


class StepLoop:
    """An engine on a clock that advances only by waiting or working: it is in a step, or between two."""

    def __init__(self, requests: Sequence[tuple[float, int]]) -> None:
        """Each request comes so many seconds after the one before has ended, and takes so many steps."""
        self.now = 0.0
        self.steps: list[tuple[float, float]] = []
        begin = 0.0
        for after_s, num_steps in requests:
            begin += after_s
            for _ in range(num_steps):
                self.steps.append((begin, begin + STEP_S))
                begin += STEP_S + BETWEEN_STEPS_S
        self._to_come = list(self.steps)
        self._is_in_step = False
        self.activity = BusyTracker(self.clock)
        self.scheduler = IdleScheduler(self.activity, clock=self.clock, wait=self.wait)

    def clock(self) -> float:
        return self.now

    def wait(self, _event: threading.Event, seconds: float) -> None:
        self.pass_s(seconds + 1e-9)  # a wait so short that the sum rounds it away would never end

    def pass_s(self, seconds: float) -> None:
        until = self.now + seconds
        while self._to_come:
            begin, end = self._to_come[0]
            if not self._is_in_step:
                if begin > until:
                    break
                self.now = begin
                self.activity.__enter__()
                self._is_in_step = True
            if end > until:
                break
            self.now = end
            self.activity.__exit__()
            self._is_in_step = False
            self._to_come.pop(0)
        self.now = until

    def write(self, num_pieces: int) -> list[float]:
        """When each piece was begun."""
        begun = []
        for _ in range(num_pieces):
            assert not self.scheduler.wait_until_idle()
            begun.append(self.now)
            self.pass_s(PIECE_S)
        return begun

    def is_quiet(self, moment: float) -> bool:
        """Whether no step runs, and none has for as long as there have to be none."""
        return not any(begin < moment < end + 0.99 * IdleScheduler.IDLE_S for begin, end in self.steps)


def test_all_pieces_are_written_after_a_request_has_ended() -> None:
    loop = StepLoop([(0.0, 10)])
    begun = loop.write(100)
    assert begun[0] >= loop.steps[-1][1] + 0.99 * IdleScheduler.IDLE_S
    assert begun[-1] - begun[0] == pytest.approx(99 * PIECE_S)


def test_a_new_request_interrupts_the_writing_until_it_ends() -> None:
    loop = StepLoop([(0.2, 10)])
    begun = loop.write(100)
    before = [moment for moment in begun if moment < 0.2]
    behind = begun[len(before) :]
    assert len(before) == pytest.approx((0.2 - IdleScheduler.IDLE_S) / PIECE_S, abs=1)
    assert behind[0] >= loop.steps[-1][1] + 0.99 * IdleScheduler.IDLE_S


def test_a_busy_model_lets_a_piece_through_after_the_longest_wait() -> None:
    loop = StepLoop([(0.0, 1000)])
    begun = loop.write(20)
    assert all(not loop.is_quiet(moment) for moment in begun)
    gaps = [after - before for before, after in zip([0.0, *begun[:-1]], begun, strict=True)]
    assert gaps == pytest.approx([IdleScheduler.MAX_WAIT_S] * 20, abs=PIECE_S + 1e-6)


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0.01, 0.6), st.integers(1, 40)), min_size=1, max_size=8), st.integers(1, 200))
def test_a_piece_is_written_when_idle_or_after_the_longest_wait(
    requests: list[tuple[float, int]], num_pieces: int
) -> None:
    loop = StepLoop(requests)
    begun = loop.write(num_pieces)
    for before, moment in zip([0.0, *begun[:-1]], begun, strict=True):
        waited_s = moment - before
        assert loop.is_quiet(moment) or waited_s >= 0.99 * IdleScheduler.MAX_WAIT_S
        assert waited_s <= IdleScheduler.MAX_WAIT_S + PIECE_S + 1e-6


def test_the_end_of_the_program_waits_for_no_idle_time() -> None:
    loop = StepLoop([(0.0, 1000)])
    loop.write(1)
    loop.scheduler.finish_now()
    begun = loop.write(50)
    assert begun[-1] - begun[0] == pytest.approx(49 * PIECE_S)


def test_a_waiting_thread_is_woken_by_a_cancellation() -> None:
    """With real threads and clocks, and a run that never ends."""
    activity = BusyTracker()
    scheduler = IdleScheduler(activity, wait=lambda event, seconds: event.wait())
    asked = threading.Event()
    answers = []

    def ask() -> None:
        asked.set()
        answers.append(scheduler.wait_until_idle())

    with activity:
        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        asked.wait()
        scheduler.cancel()
        thread.join()
    assert answers == [True]
    assert scheduler.wait_until_idle()


def test_a_model_is_idle_between_runs_only() -> None:
    now = [5.0]
    activity = BusyTracker(lambda: now[0])
    now[0] = 7.0
    assert activity.idle_s == 2.0
    with activity:
        now[0] = 8.0
        assert activity.idle_s == 0.0
    now[0] = 8.5
    assert activity.idle_s == 0.5
    with pytest.raises(ZeroDivisionError), activity:
        raise ZeroDivisionError
    assert activity.idle_s == 0.0
    now[0] = 9.5
    assert activity.idle_s == 1.0
