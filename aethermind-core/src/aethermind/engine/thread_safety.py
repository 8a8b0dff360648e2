"""The thread-safe base of an engine: a fair lock, listeners, and the release of memory when the engine is closed."""

from __future__ import annotations

import os
import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from functools import wraps
from itertools import count
from threading import RLock
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, ParamSpec, Protocol, TypeVar
from weakref import WeakSet

from aethermind.engine.requests.output_delta import OutputReader
from aethermind.engine.requests.sample_group import group_request_ids
from aethermind.errors import AetherMindError, EngineDeadError, InvalidArgumentError
from aethermind.hal.host_memory import trim_heap
from aethermind.log import get_logger

if TYPE_CHECKING:
    from aethermind.engine.requests.output import RequestOutput
    from aethermind.engine.requests.output_delta import OutputSource

__all__ = ["EngineListener", "FairLock", "ThreadSafeEngine", "synchronized_call"]

_YIELD_S = 1e-4
"""Long enough for a waiting thread to wake up and take the lock."""


_ALL_LOCKS: WeakSet[FairLock] = WeakSet()


class FairLock:
    """A reentrant lock. A thread that takes it repeatedly can yield it to others.

    It is reentrant because garbage collection in the middle of a step may call methods that take it.
    """

    def __init__(self) -> None:
        self._lock = RLock()
        _ALL_LOCKS.add(self)
        self._waiting: deque[None] = deque()  # a counter whose changes are atomic

    def __enter__(self) -> None:
        if self._lock.acquire(blocking=False):
            return
        self._waiting.append(None)
        try:
            self._lock.acquire()
        finally:
            self._waiting.pop()

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def yield_lock(self) -> None:
        """Let waiting threads take the lock. The calling thread does not hold it.

        Without this a thread that takes the lock in a loop usually gets it again before the others wake up.
        """
        if self._waiting:
            time.sleep(_YIELD_S)


def _replace_all_locks() -> None:
    """Replace all locks in a forked process, where the threads that held them do not exist."""
    for lock in _ALL_LOCKS:
        lock._lock = RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_replace_all_locks)


_log = get_logger(__name__)
_CLOSED = "The engine was closed; load the model again."

_Engine = TypeVar("_Engine", bound="ThreadSafeEngine")
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class EngineListener(Protocol):
    """A user of an engine, which receives the output of all requests and selects that of its own.

    The methods are called by the thread that holds the lock.
    """

    def put(self, sources: Sequence[OutputSource]) -> None:
        """Receive the requests that have new output after a step or an abort."""

    def closed(self) -> None:
        """Handle the closing of the engine; open requests get no further output."""


def synchronized_call(
    method: Callable[Concatenate[_Engine, _Arguments], _Result],
) -> Callable[Concatenate[_Engine, _Arguments], _Result]:
    """Run a method under the object's lock; EngineDeadError if the engine was closed, or the process forked."""

    @wraps(method)
    def call(engine: _Engine, /, *arguments: _Arguments.args, **named: _Arguments.kwargs) -> _Result:
        _check_process(engine._pid)
        with engine.lock:
            if engine.is_closed:
                raise EngineDeadError(_CLOSED)
            return method(engine, *arguments, **named)

    return call


class ThreadSafeEngine(ABC):
    """The base of `Engine`: its lock, its listeners, and how it is closed.

    Weights, KV cache and threads are held only by the attributes in `_released_on_close`. Closing deletes these, which
    frees the memory at once, unless a thread still uses it.
    """

    _released_on_close: ClassVar[frozenset[str]]

    def __init__(self) -> None:
        self.is_closed = False
        self.lock = FairLock()
        """Held by a thread while a method runs, or around several calls that must not be interleaved with others."""
        self._pid = os.getpid()
        self._listeners: list[EngineListener] = []
        self._numbers = count()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        """Close the engine if it was not closed. At interpreter exit the system frees everything.

        By then this module's globals may be cleared, so the function that tells it is a default argument.
        """
        if is_finalizing() or "lock" not in self.__dict__:
            return
        try:
            self.close()
        except AetherMindError as error:  # a destructor has no caller to handle it
            _log.info("an engine that was dropped did not end well: %s", error)

    if not TYPE_CHECKING:  # for a type checker every attribute would exist

        def __getattr__(self, name: str) -> Any:
            if name in self._released_on_close and self.__dict__.get("is_closed"):
                raise EngineDeadError(_CLOSED)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def add_listener(self, listener: EngineListener) -> None:
        """Send outputs to a listener from now on. EngineDeadError if the engine was closed."""
        with self.lock:
            if self.is_closed:
                raise EngineDeadError(_CLOSED)
            self._listeners.append(listener)

    def remove_listener(self, listener: EngineListener) -> None:
        """Stop sending outputs to a listener."""
        with self.lock:
            self._listeners = [other for other in self._listeners if other is not listener]

    def free_id(self) -> str:
        """Return an id that no open request has. The caller holds the lock until it has added the request."""
        return next(name for name in map(str, self._numbers) if not self._has(name))

    def _check_id(self, request_id: str, num_completions: int) -> None:
        if any(map(self._has, group_request_ids(request_id, num_completions))):
            raise InvalidArgumentError(f"Request id {request_id!r} is in use; give each request an id of its own.")

    def abort(self, request_id: str) -> RequestOutput | None:
        """Abort a request and free its blocks; returns its output so far, None for unknown and finished ids."""
        with self.lock:
            source = None if self.is_closed else self._abort(request_id)
            if source is None:
                return None
            self._publish([source])
            return OutputReader().read(source)

    def close(self) -> None:
        """Finish the device's work and free weights, KV cache and threads. Later calls raise EngineDeadError.

        It waits for a step of another thread. In a forked process there is nothing to close.
        """
        if os.getpid() != self._pid:
            return
        with self.lock:
            if self.is_closed:
                return
            self.is_closed = True
            listeners, self._listeners = self._listeners, []
            try:
                self._finish_work()
            finally:
                for name in self._released_on_close:
                    self.__dict__.pop(name, None)
        trim_heap()
        for listener in listeners:
            listener.closed()

    @abstractmethod
    def _finish_work(self) -> None:
        """Finish the work in progress."""

    @abstractmethod
    def _abort(self, request_id: str) -> OutputSource | None: ...

    @abstractmethod
    def _has(self, request_id: str) -> bool:
        """Whether an open request has this id."""

    def _publish(self, sources: Sequence[OutputSource]) -> None:
        for listener in self._listeners:
            listener.put(sources)


def _check_process(loading_pid: int) -> None:
    """EngineDeadError in a fork of the process that loaded the model: the device's threads do not exist in the fork."""
    if os.getpid() != loading_pid:
        raise EngineDeadError(
            "The model was loaded before this process was forked, and its threads are not here. Load it in this "
            "process, or start processes by spawn instead of fork."
        )
