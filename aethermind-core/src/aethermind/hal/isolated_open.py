"""Opening a third party's device in a child first: a backend that crashes or hangs there is never opened here.

An exception in `open()` needs no trial, since Python catches it. A signal, `os._exit` or an endless wait would take
the command with it, and not even `aethermind doctor` could name the package. So the first opening by each version of
a package happens in a child, as its import does (see `plugins.trial`), and the verdict is kept until its code, what is
installed beside it, or the boot of this machine changes. From then on a start costs what it did before; devices of
packages that are released with the core are not tried at all.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from aethermind.errors import DeviceError
from aethermind.log import get_logger
from aethermind.plugins.discovery import own_code
from aethermind.plugins.kept_answers import KeptAnswers
from aethermind.plugins.trial import TRIED_AGAIN, WHEN_TRIED, code_stamp

if TYPE_CHECKING:
    from aethermind.hal.backend import Backend
    from aethermind.plugins.discovery import PluginRecord

__all__ = ["IsolatedOpen", "OPEN_LIMIT_S", "START_LIMIT_S", "VERDICTS", "facts_of"]

logger = get_logger(__name__)

OPEN_LIMIT_S = 30.0
"""How long it may take to open a device, to ask for its properties, or to close it: drivers load firmware meanwhile."""

START_LIMIT_S = 20.0
"""How long a process may take to start and to import the plugin, which this process has done already."""

VERDICTS = KeptAnswers("opens.json")


class IsolatedOpen:
    """The `open` of one device of one plugin: `open` returns its backend, `examine` what a child learns of it."""

    def __init__(self, record: PluginRecord, device: str, open: Callable[[], Backend]) -> None:
        self._record = record
        self._device = device
        self._open = open
        self._key = f"{record.distribution}:{record.name}:{device}"

    def open(self) -> Backend:
        """The backend; DeviceError where opening it ended a child, now or earlier."""
        stamp = code_stamp(self._record)
        verdict = VERDICTS.recall(self._key, stamp)
        reason = self._try(stamp)[0] if verdict is None else verdict.get("error")
        if reason:
            raise self._failure(str(reason))
        with own_code(self._record):
            return self._open()

    def examine(self) -> dict[str, Any]:
        """What `facts_of` says of its backend, opened in a child whatever the last verdict was; DeviceError if it
        cannot be opened.
        """
        reason, answer = self._try(code_stamp(self._record))
        if reason:
            raise self._failure(reason)
        if "error" in answer:
            raise DeviceError(str(answer["error"]))
        return answer

    def _try(self, stamp: str | None) -> tuple[str | None, dict[str, Any]]:
        """Why it must not be opened here, or None, and what the child answered."""
        from aethermind.plugins.child_process import ChildError, start_child

        stage = None
        try:
            with start_child("aethermind.hal.open_child", {**self._record.request, "device": self._device}) as child:
                stage = child.read_line(START_LIMIT_S)
                while not (line := child.read_line(OPEN_LIMIT_S)).startswith("{"):
                    stage = line
            reason, answer = None, json.loads(line)
        except (ChildError, OSError) as failure:
            if stage is None:  # which says nothing about the device
                logger.info("device %s is opened untried: the process for it %s", self._device, failure)
                return None, {"error": f"The process for it {failure}."}
            reason, answer = f"{stage} {failure}", {}
        VERDICTS.keep(self._key, stamp, {"error": reason})
        return reason, answer

    def _failure(self, reason: str) -> DeviceError:
        return DeviceError(
            f"Device {self._device!r} cannot be opened: {reason}, {WHEN_TRIED}. {self._record.repair} {TRIED_AGAIN}"
        )


def facts_of(backend: Backend) -> dict[str, Any]:
    """What a backend says about its first device, for `aethermind doctor --json`."""
    properties = backend.devices.properties(0)
    return {
        "title": properties.name,
        "isa": list(properties.isa),
        "details": dict(properties.details),
        "total_memory_bytes": properties.total_memory_bytes,
        "num_cores": properties.num_cores,
        "dtypes": [str(dtype) for dtype in backend.capabilities.dtypes],
    }
