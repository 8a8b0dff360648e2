"""Whose code an exception came out of that nobody foresaw: the core's, or a third party's."""

from __future__ import annotations

from types import TracebackType

from aethermind.plugins.discovery import PluginRecord, discover

__all__ = ["fault_of_plugin"]


def fault_of_plugin(error: BaseException) -> str | None:
    """`rogue (fake-rogue 9.9), rogue/policy.py:12`, where a third party's plugin raised `error`; None otherwise.

    Libraries do not count: of the frames in packages of the core, of what is released with it and of plugins, the
    innermost is that of whoever used a library wrongly.
    """
    owners = {_top(record.entry_point.value): record for record in discover()}
    if all(record.is_ours for record in owners.values()):
        return None
    found: tuple[PluginRecord | None, str] = None, ""
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        top = _top(str(frame.f_globals.get("__name__", "")))
        if top == "aethermind" or top in owners:
            found = owners.get(top), f"{frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    record, where = found
    return None if record is None or record.is_ours else f"{record.title}, {where}"


def _top(name: str) -> str:
    return name.partition(":")[0].partition(".")[0].strip()
