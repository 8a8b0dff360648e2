"""An engine in a process of its own, so that what breaks it breaks nothing else.

EngineProcess (client)     what the server holds: requests by name, answers as they grow
  └ Supervisor             starts the process, notices its end, starts it again
      └ Child              one process: a private socket, its exit
─────────────── `messages` in msgpack (`wire`), answers as what is new of them (`growth`) ───────────────
worker                     the process: loads a model, steps an engine, never waits for its reader (`outbox`)

`start` is what both sides do when a process begins, also that of a rank (`executors`).
"""

from __future__ import annotations

from typing import Any

__all__ = ["EngineProcess", "RestartPolicy"]

_HOMES = {
    "EngineProcess": "aethermind.engine.process.client",
    "RestartPolicy": "aethermind.engine.process.supervisor",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
