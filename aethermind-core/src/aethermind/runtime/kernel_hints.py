"""For `aethermind doctor` and `plugins list`: what is wrong with the kernels that third parties' plugins offer.

Kernels are loaded when their device is opened, which may be long after a package was installed, and one that no plan
can use is passed over in silence. So these two commands load them all, in a process of its own for each plugin.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from aethermind.plugins.child_process import ChildError, start_child
from aethermind.plugins.discovery import PluginRecord

__all__ = ["hint_at_kernels"]

START_LIMIT_S = 40.0
"""How long the process may take to start and to load all plugins."""

LOAD_LIMIT_S = 20.0
"""How long the kernels may take to load."""


def hint_at_kernels(records: Sequence[PluginRecord]) -> None:
    """Write into the records what their kernels have that is never used, or why they cannot be loaded."""
    for record in records:
        if record.is_ours or record.error is not None or "kernels" not in record.registered:
            continue
        for hint in _ask(record):
            record.hint(hint)


def _ask(record: PluginRecord) -> list[str]:
    """The child writes an empty line when it begins with the kernels, and then its hints as a line of JSON."""
    has_begun = False
    try:
        with start_child("aethermind.runtime.kernel_hints_child", record.request) as child:
            child.read_line(START_LIMIT_S)
            has_begun = True
            return list(json.loads(child.read_line(LOAD_LIMIT_S)))
    except (ChildError, OSError) as failure:
        what = "loading its kernels" if has_begun else "the process to load its kernels in"
        return [f"{what} {failure}."]
