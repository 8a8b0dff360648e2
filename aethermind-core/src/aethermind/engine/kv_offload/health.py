"""Whether a store is worth asking: one that fails is left alone, twice as long each time, and complained of once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from aethermind.log import get_logger

__all__ = ["Complaints", "StoreHealth", "StoreUnavailableError"]

_log = get_logger(__name__)
_Result = TypeVar("_Result")

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0


class Complaints:
    """Says once what is wrong with a store, however often it is: a warning each for failing and for bad content."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._said: set[str] = set()
        self.num_errors = 0
        """Errors so far, said or not."""

    def failed(self, error: BaseException) -> None:
        """A call failed or took too long."""
        self._say("failing", f"cannot be used ({_in_words(error)}); prompts are computed, and it is asked again later")

    def refused(self, error: BaseException) -> None:
        """It returned what is not what was stored."""
        self._say("bad", f"returned an entry that is not used ({_in_words(error)}); it is deleted and computed again")

    def _say(self, kind: str, text: str) -> None:
        with self._lock:
            self.num_errors += 1
            is_first = kind not in self._said
            self._said.add(kind)
        (_log.warning if is_first else _log.info)("KV store %s %s.", self._store, text)


class StoreUnavailableError(Exception):
    """A store failed just now; what was wrong has been said."""


class StoreHealth:
    """Guards one kind of call on a store (reading, writing). Calls come from one thread, others may look."""

    def __init__(self, complaints: Complaints, slow_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Calls that take longer than `slow_s` seconds are as bad as those that fail."""
        self._complaints = complaints
        self._slow_s = slow_s
        self._clock = clock
        self._pause_s = _FIRST_PAUSE_S
        self._retry_at = 0.0
        self._called_at: float | None = None

    @property
    def seconds_to_wait(self) -> float:
        """Until the next call is worth making; 0 if it is now."""
        return max(0.0, self._retry_at - self._clock())

    @property
    def is_stuck(self) -> bool:
        """Whether a call takes too long already."""
        called_at = self._called_at
        return called_at is not None and self._clock() - called_at > self._slow_s

    def call(self, function: Callable[[], _Result]) -> _Result:
        """What `function` returns. StoreUnavailableError if it fails, for which the store is left alone for a while."""
        self._called_at = started = self._clock()
        try:
            result = function()
        except Exception as error:  # a store is anybody's code, and none of it may end an engine
            self._fail(error)
            raise StoreUnavailableError from error
        finally:
            self._called_at = None
        seconds = self._clock() - started
        if seconds > self._slow_s:
            self._fail(TimeoutError(f"an answer took {seconds:.1f} s"))
        else:
            self._pause_s = _FIRST_PAUSE_S
        return result

    def _fail(self, error: Exception) -> None:
        self._complaints.failed(error)
        self._retry_at = self._clock() + self._pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)


def _in_words(error: BaseException) -> str:
    text = " ".join(str(error).split())[:200].rstrip(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
