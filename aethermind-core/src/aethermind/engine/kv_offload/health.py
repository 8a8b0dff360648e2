"""Health of a KV store as an engine sees it: counters, a circuit breaker, and warnings that are logged once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from aethermind.log import get_logger

__all__ = ["CircuitBreaker", "KVStoreStats", "StoreUnavailableError", "WarnOnce"]


@dataclass(slots=True)
class KVStoreStats:
    """Counts of blocks since the engine started; `num_errors` counts failed calls and bad entries.

    `num_hits` were fetched; `num_misses` were absent, late or invalid, so that they were computed. `num_stored` were
    written; `num_dropped` were not, because they were evicted before the writer reached them, or because the store
    failed. These two also count snapshots of recurrent states.
    """

    num_hits: int = 0
    num_misses: int = 0
    num_stored: int = 0
    num_dropped: int = 0
    num_errors: int = 0


_log = get_logger(__name__)
_Result = TypeVar("_Result")

_INITIAL_BACKOFF_S = 1.0
_MAX_BACKOFF_S = 60.0


class WarnOnce:
    """Logs one warning for a failing store and one for bad content; repetitions are logged at level INFO."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._logged_kinds: set[str] = set()
        self.num_errors = 0
        """Errors so far."""

    def failed(self, error: BaseException) -> None:
        """Record a call that failed or took too long."""
        self._log_error(
            "failing", f"cannot be used ({_describe(error)}); prompts are computed, and it is retried later"
        )

    def refused(self, error: BaseException) -> None:
        """Record an entry of the store that is damaged or of another model."""
        self._log_error(
            "bad", f"returned an entry that is not used ({_describe(error)}); it is deleted and computed again"
        )

    def _log_error(self, kind: str, text: str) -> None:
        with self._lock:
            self.num_errors += 1
            is_first = kind not in self._logged_kinds
            self._logged_kinds.add(kind)
        (_log.warning if is_first else _log.info)("KV store %s %s.", self._store, text)


class StoreUnavailableError(Exception):
    """A call on a store failed; the error has been logged."""


class CircuitBreaker:
    """A circuit breaker for one kind of call on a store (reading, writing).

    After a failure it is open for a pause, which doubles with each further failure. Calls come from one thread;
    other threads may read the properties.
    """

    def __init__(self, warnings: WarnOnce, slow_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """A call that takes longer than `slow_s` seconds counts as failed."""
        self._warnings = warnings
        self._slow_s = slow_s
        self._clock = clock
        self._backoff_s = _INITIAL_BACKOFF_S
        self._retry_at = 0.0
        self._called_at: float | None = None

    @property
    def retry_after_s(self) -> float:
        """Seconds until the next call is allowed; 0 if it is allowed now."""
        return max(0.0, self._retry_at - self._clock())

    @property
    def is_stuck(self) -> bool:
        """Whether a call in progress has taken too long."""
        called_at = self._called_at
        return called_at is not None and self._clock() - called_at > self._slow_s

    def call(self, function: Callable[[], _Result]) -> _Result:
        """Return the result of `function`. StoreUnavailableError if it fails, which opens the breaker."""
        self._called_at = started = self._clock()
        try:
            result = function()
        except Exception as error:  # a store may be third-party code, whose errors must not end an engine
            self._fail(error)
            raise StoreUnavailableError from error
        finally:
            self._called_at = None
        seconds = self._clock() - started
        if seconds > self._slow_s:
            self._fail(TimeoutError(f"an answer took {seconds:.1f} s"))
        else:
            self._backoff_s = _INITIAL_BACKOFF_S
        return result

    def _fail(self, error: Exception) -> None:
        self._warnings.failed(error)
        self._retry_at = self._clock() + self._backoff_s
        self._backoff_s = min(2 * self._backoff_s, _MAX_BACKOFF_S)


def _describe(error: BaseException) -> str:
    text = " ".join(str(error).split())[:200].rstrip(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
