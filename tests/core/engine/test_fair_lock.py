"""FairLock: fairness and reentrancy."""

from __future__ import annotations

from threading import Event, Thread

from aethermind.engine.thread_safety import FairLock


def test_a_thread_that_takes_the_lock_repeatedly_yields_it() -> None:
    turns, begun, had = FairLock(), Event(), Event()

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
        turns.yield_lock()
    other.join()
    assert had.is_set()


def test_the_lock_is_reentrant() -> None:
    turns = FairLock()
    with turns, turns:
        turns.yield_lock()
    with turns:
        pass
