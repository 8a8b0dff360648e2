"""What the suites share. They run in environments of their own and import nothing of AetherMind."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, Literal

from pydantic import BaseModel

__all__ = ["CALL", "CALLED", "MODEL", "PARAMETERS", "Person", "SUNNY", "URL", "run", "script", "with_script"]

URL, MODEL = (*sys.argv[1:3], "", "")[:2]

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}},
    "required": ["city"],
    "additionalProperties": False,
}
"""Those of the tool `weather`."""

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
CALLED = {"city": "Zürich"}
SUNNY = "It is sunny in Zürich."


class Person(BaseModel):
    """An answer's schema, which bounds the length: a random model would write on, and some clients drop `maxLength`."""

    mood: Literal["happy", "sad"]
    is_tall: bool


def script(*answers: str) -> str:
    """What makes the scripted model write these answers, one in each turn (see `tests.clients.scripted`)."""
    return f"script:{base64.urlsafe_b64encode(json.dumps(answers).encode()).decode()};"


def with_script(*answers: str) -> list[dict[str, Any]]:
    """A user's message with a script."""
    return [{"role": "user", "content": f"How are you? {script(*answers)}"}]


def run(package: str, *checks: Callable[[], None]) -> None:
    """Run the checks and name each; the first failure ends the suite."""
    print(f"{package} {version(package)}:", end="", flush=True)
    for check in checks:
        print(f" {check.__name__.removeprefix('check_')}", end="", flush=True)
        check()
    print()
