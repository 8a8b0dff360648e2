"""Asking a stranger's probe in a process of its own, where it may crash or hang without taking this one with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from aethermind.hal.device import Probe
from aethermind.plugins.kept_answers import KeptAnswers, stamp_of

if TYPE_CHECKING:
    from aethermind.plugins.discovery import PluginRecord

__all__ = ["ANSWERS", "IsolatedProbe", "PROBE_LIMIT_S", "START_LIMIT_S"]

PROBE_LIMIT_S = 2.0
"""How long a probe may take, from the moment that its plugin is imported."""

START_LIMIT_S = 20.0
"""How long a process may take to start and to import the plugin, which this process has done already."""

ANSWERS = KeptAnswers("probes.json")


class IsolatedProbe:
    """The probe of one device of one plugin: `ask` runs it in a child, `recall` says what it answered last.

    The limit counts from when the child has imported the plugin, so a slow machine does not make a probe slow.
    """

    def __init__(self, record: PluginRecord, device: str, probe: Callable[[], Probe]) -> None:
        self._record = record
        self._device = device
        self._probe = probe
        self._key = f"{record.distribution}:{record.name}:{device}"

    def ask(self) -> Probe:
        """Run the probe in a child and keep its answer; whatever becomes of the child is an answer too."""
        answer = _ask_child({**self._record.request, "device": self._device})
        if answer.is_broken:
            answer = Probe(0, f"{answer.reason} Update or uninstall {self._record.distribution}.", is_broken=True)
        kept = {"count": answer.count, "reason": answer.reason, "is_broken": answer.is_broken}
        ANSWERS.keep(self._key, self._stamp(), kept)
        return answer

    def recall(self) -> Probe | None:
        """What the probe answered before on this boot of this machine, or None."""
        kept = ANSWERS.recall(self._key, self._stamp())
        if kept is None:
            return None
        try:
            return Probe(int(kept["count"]), str(kept["reason"]), is_broken=bool(kept["is_broken"]))
        except (KeyError, TypeError, ValueError):
            return None

    def _stamp(self) -> str | None:
        code = getattr(self._probe, "__code__", None)
        return stamp_of(self._record.version, [code.co_filename] if code else [])


def _ask_child(request: dict[str, str]) -> Probe:
    """The child writes an empty line when it begins to ask, and the answer as a line of JSON."""
    from aethermind.plugins.child_process import ChildError, start_child

    what = "its import"
    try:
        with start_child("aethermind.hal.probe_child", request) as child:
            child.read_line(START_LIMIT_S)
            what = "its probe"
            return Probe(**json.loads(child.read_line(PROBE_LIMIT_S)))
    except ChildError as failure:
        return Probe(0, f"{what} {failure}.", is_broken=True)
    except OSError as error:
        reason = f"the process for its probe could not be started ({error.strerror or error})."
        return Probe(0, reason, is_broken=True)
