"""Queues of work: what is put on one stream runs in order, streams run beside each other.

Several threads may use the streams of a backend at the same time, each its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aethermind.hal.event import Event

__all__ = ["Stream", "StreamManager"]


class Stream(ABC):
    """An ordered queue of device work."""

    @abstractmethod
    def query(self) -> bool:
        """Whether everything submitted so far has finished; never waits."""

    @abstractmethod
    def synchronize(self) -> None:
        """Return when everything submitted so far has finished; raises DeviceError if some of it failed.

        Work that fails raises nothing where it is submitted, which returned before. An error is told once; whether work
        behind it ran, and whether the stream is of any use afterwards, is the device's affair: the engine gives up.
        """

    @abstractmethod
    def wait_event(self, event: Event) -> None:
        """Let work submitted from now on start only after `event`, without holding up the host.

        It is the mark as it is at this call that counts: recording the event again later changes nothing.
        """

    @abstractmethod
    def destroy(self) -> None:
        """Finish what was submitted and give the stream back, as `synchronize` does; using it afterwards is a
        DeviceError.
        """


class StreamManager(ABC):
    """Makes the streams of one backend. Nothing orders two of them but an event, the default stream included.

    The engine puts steps, what they read and what it reads of them on the default stream of its device. Where the host
    cannot reach the device's memory, a second stream swaps blocks of the KV cache beside the steps; a KV store adds one
    for blocks on their way to it, which a thread of its own uses.
    """

    @abstractmethod
    def create(self, index: int = 0, *, priority: int = 0) -> Stream:
        """A new stream on device `index`; a lower number is a higher priority."""

    @abstractmethod
    def default(self, index: int = 0) -> Stream:
        """The stream that work goes to when none is named; it lives as long as the backend."""
