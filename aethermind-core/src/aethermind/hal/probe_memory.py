"""What probes answered before, kept in a file of the user's cache until something changes that they depend on."""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aethermind.hal.device import Probe
from aethermind.log import get_logger

__all__ = ["keep", "memory_file", "recall", "stamp_of"]

logger = get_logger(__name__)

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def memory_file() -> Path:
    """`aethermind/probes.json` under XDG_CACHE_HOME or ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "aethermind" / "probes.json"


def stamp_of(version: str, probe: Callable[[], Any]) -> str | None:
    """Everything an answer depends on that can be told cheaply, as text; None where the time of boot is not known.

    It is the package's version and the age of the probe's file (an author edits it without a new version), the host
    and its boot, the Python installation, and the variables that hide devices or choose libraries.
    """
    try:
        boot = _BOOT_ID.read_text().strip()
    except OSError:
        return None
    code = getattr(probe, "__code__", None)
    try:
        written = os.stat(code.co_filename).st_mtime_ns if code else 0
    except OSError:
        written = 0
    chosen = {name: value for name, value in sorted(os.environ.items()) if _changes_what_is_there(name)}
    return json.dumps([version, written, boot, platform.node(), sys.prefix, platform.python_version(), chosen])


def recall(key: str, stamp: str | None) -> Probe | None:
    """The answer kept for `key`, if it was given under the same stamp."""
    kept = _read().get(key)
    if stamp is None or not isinstance(kept, dict) or kept.get("stamp") != stamp:
        return None
    try:
        return Probe(int(kept["count"]), str(kept["reason"]), is_broken=bool(kept["is_broken"]))
    except (KeyError, TypeError, ValueError):
        return None


def keep(key: str, stamp: str | None, probe: Probe) -> None:
    """Keep an answer; where the file cannot be written, the next process asks again."""
    if stamp is None:
        return
    answer = {"stamp": stamp, "count": probe.count, "reason": probe.reason, "is_broken": probe.is_broken}
    path = memory_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix="probes-", delete=False) as file:
            json.dump({**_read(), key: answer}, file, indent=1)
        os.replace(file.name, path)
    except OSError as error:
        logger.info("the answer of a probe cannot be kept in %s: %s", path, error)


def _read() -> dict[str, Any]:
    try:
        kept = json.loads(memory_file().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return kept if isinstance(kept, dict) else {}


def _changes_what_is_there(name: str) -> bool:
    return name.endswith("VISIBLE_DEVICES") or name in ("LD_LIBRARY_PATH", "LD_PRELOAD")
