"""Turns of threads at one thing."""

from __future__ import annotations

from threading import Event, Thread

from aethermind.engine.turns import Turns


def test_who_takes_turn_after_turn_leaves_one_to_who_waits() -> None:
    turns, begun, had = Turns(), Event(), Event()

    def want() -> None:
        begun.set()
        with turns:
            had.set()

    with turns:
        other = Thread(target=want)
        other.start()
        begun.wait()
    for _ in range(100_000):
        with turns:
            if had.is_set():
                break
        turns.give_way()
    other.join()
    assert had.is_set()


def test_a_thread_may_take_the_turn_that_it_has() -> None:
    turns = Turns()
    with turns, turns:
        turns.give_way()
    with turns:
        pass
