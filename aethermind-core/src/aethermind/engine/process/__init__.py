"""An engine in a process of its own, so that a crash of the engine does not end the server.

EngineProcess (client)     the engine as the server sees it: requests and their output
  └ Supervisor             starts the process, detects its end, restarts it
      └ Child              one process: a private socket, its exit status (`StandbyProcess` starts one ahead of time)
──────────────────────── messages in msgpack, output as deltas (`protocol`) ────────────────────────
worker                     the process: loads a model, steps an engine, never waits for its reader (`outbox`)

`start` has what both sides do at the start of a process; ranks of tensor parallelism use it, too (`executors`).
"""

from __future__ import annotations

from typing import Any

__all__ = ["EngineProcess", "RestartPolicy", "StandbyProcess"]

_MODULE_OF = {
    "EngineProcess": "aethermind.engine.process.client",
    "RestartPolicy": "aethermind.engine.process.supervisor",
    "StandbyProcess": "aethermind.engine.process.supervisor",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_MODULE_OF[name]), name)
