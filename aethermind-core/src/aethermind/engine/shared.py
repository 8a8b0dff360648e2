"""What several threads share until it is closed: turns at it, listeners, and attributes that are given back."""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import wraps
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, ParamSpec, Protocol, TypeVar

from aethermind.engine.requests.sample_group import answer_ids
from aethermind.engine.turns import Turns
from aethermind.errors import AetherMindError, EngineDeadError, InvalidArgumentError
from aethermind.hal.host_memory import trim_heap
from aethermind.log import get_logger

if TYPE_CHECKING:
    from aethermind.engine.requests.output import RequestOutput
    from aethermind.engine.requests.output_builder import OutputUpdate

__all__ = ["EngineListener", "Shared", "in_turn"]

_log = get_logger(__name__)
_CLOSED = "The engine was closed; load the model again."

_Own = TypeVar("_Own", bound="Shared")
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class EngineListener(Protocol):
    """One user of an engine: told of all users' requests, in whatever thread has the turn, it keeps its own."""

    def put(self, updates: Sequence[OutputUpdate]) -> None:
        """What came of a step, or of a request that was aborted."""

    def closed(self) -> None:
        """The engine was closed; open requests get no answer."""


def in_turn(
    method: Callable[Concatenate[_Own, _Arguments], _Result],
) -> Callable[Concatenate[_Own, _Arguments], _Result]:
    """A method that one thread at a time is in; EngineDeadError where the engine was closed, or the process forked."""

    @wraps(method)
    def call(own: _Own, /, *arguments: _Arguments.args, **named: _Arguments.kwargs) -> _Result:
        _check_process(own._pid)
        with own.turns:
            if own.is_closed:
                raise EngineDeadError(_CLOSED)
            return method(own, *arguments, **named)

    return call


class Shared(ABC):
    """The base of an engine. Its memory is held by the attributes that `_given_back` names, and by nothing else: when
    they are deleted it is free at once, unless a thread is still at work on it.
    """

    _given_back: ClassVar[frozenset[str]]

    def __init__(self) -> None:
        self.is_closed = False
        self.turns = Turns()
        """Held by the thread that a method is in, and by one whose calls have to follow each other."""
        self._pid = os.getpid()
        self._listeners: list[EngineListener] = []
        self._numbers = count()

    def __del__(self) -> None:
        """Close what nobody closed. At the end of the program the system takes everything back."""
        if sys.is_finalizing() or "turns" not in self.__dict__:
            return
        try:
            self.close()
        except AetherMindError as error:  # nobody is there to handle it
            _log.info("an engine that was dropped did not end well: %s", error)

    if not TYPE_CHECKING:  # a type checker would take it that every attribute exists

        def __getattr__(self, name: str) -> Any:
            if name in self._given_back and self.__dict__.get("is_closed"):
                raise EngineDeadError(_CLOSED)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def listen(self, listener: EngineListener) -> None:
        """Tell a user what comes of requests from now on. EngineDeadError where the engine was closed."""
        with self.turns:
            if self.is_closed:
                raise EngineDeadError(_CLOSED)
            self._listeners.append(listener)

    def unlisten(self, listener: EngineListener) -> None:
        """Tell it no more."""
        with self.turns:
            self._listeners = [one for one in self._listeners if one is not listener]

    def free_id(self) -> str:
        """An id that no open request has; the request is to be added within the same turn."""
        return next(name for name in map(str, self._numbers) if not self._has(name))

    def _check_id(self, request_id: str, num_answers: int) -> None:
        if any(map(self._has, answer_ids(request_id, num_answers))):
            raise InvalidArgumentError(f"Request id {request_id!r} is in use; give each request an id of its own.")

    def abort(self, request_id: str) -> RequestOutput | None:
        """End a request now and free its blocks; returns what there is of it, None for unknown and finished ids."""
        with self.turns:
            output = None if self.is_closed else self._abort(request_id)
            if output is not None:
                self._tell([output])
            return output

    def close(self) -> None:
        """Finish the device's work and give everything back: weights, KV cache, threads. What is asked afterwards is an
        EngineDeadError.

        Waits for the step of another thread. In a fork of the process there is nothing to close.
        """
        if os.getpid() != self._pid:
            return
        with self.turns:
            if self.is_closed:
                return
            self.is_closed = True
            listeners, self._listeners = self._listeners, []
            try:
                self._end()
            finally:
                for name in self._given_back:
                    self.__dict__.pop(name, None)
        trim_heap()
        for listener in listeners:
            listener.closed()

    @abstractmethod
    def _end(self) -> None:
        """Finish what is under way."""

    @abstractmethod
    def _abort(self, request_id: str) -> RequestOutput | None: ...

    @abstractmethod
    def _has(self, request_id: str) -> bool:
        """Whether an open request has this id."""

    def _tell(self, updates: Sequence[OutputUpdate]) -> None:
        for listener in self._listeners:
            listener.put(updates)


def _check_process(loaded_by: int) -> None:
    """EngineDeadError in a fork of the process that loaded the model: the device's threads do not exist in the fork."""
    if os.getpid() != loaded_by:
        raise EngineDeadError(
            "The model was loaded before this process was forked, and its threads are not here. Load it in this "
            "process, or start processes by spawn instead of fork."
        )
