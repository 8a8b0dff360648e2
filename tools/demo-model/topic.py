"""Topics, read from `topics/*.txt`: what can be asked about, in how many ways, and what is answered.

A file holds `[topic]` sections of `key: phrase` lines. A `thing` is a noun phrase ("the KV cache"), a `command` what
is typed ("doctor"), a `deed` a verb phrase ("install AetherMind"), an `ask` a whole question, and an `answer` one of
those that fit all of them. Phrases use `[one|other]` for a choice and `{slot}` for a list of synonyms in `slots.txt`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

_FOLDER = Path(__file__).parent / "topics"
_CHOICE = re.compile(r"\[([^\[\]]*)\]")
_SLOT = re.compile(r"\{(\w+)\}")
_SPACES = re.compile(r" {2,}")
_KEYS = ("answer", "ask", "deed", "thing", "command")


@dataclass(slots=True)
class Topic:
    """One section of a file; `weight` is how often the topic comes up."""

    name: str
    weight: float = 1.0
    phrases: dict[str, list[str]] = field(default_factory=lambda: {key: [] for key in _KEYS})

    @property
    def answers(self) -> list[str]:
        """What may be answered."""
        return self.phrases["answer"]


def _lines(name: str) -> list[str]:
    lines = (_FOLDER / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def read_topics(name: str) -> list[Topic]:
    """The topics of `topics/NAME.txt`."""
    topics: list[Topic] = []
    for line in _lines(name):
        if line.startswith("["):
            topics.append(Topic(line.strip("[]")))
            continue
        key, phrase = line.split(": ", 1)
        if key == "weight":
            topics[-1].weight = float(phrase)
        else:
            topics[-1].phrases[key].append(phrase)
    return topics


_SLOTS = {name: f"[{choices}]" for name, choices in (line.split(": ", 1) for line in _lines("slots"))}


def fill(rng: Random, template: str) -> str:
    """`template` with its slots and choices resolved."""
    while True:
        if _SLOT.search(template):
            template = _SLOT.sub(lambda match: _SLOTS[match[1]], template)
        elif _CHOICE.search(template):
            template = _CHOICE.sub(lambda match: rng.choice(match[1].split("|")), template)
        else:
            return _SPACES.sub(" ", template).strip()


def choose(rng: Random, templates: Sequence[str]) -> str:
    """One of `templates`, filled; those with more choices come up more often."""
    return fill(rng, rng.choices(templates, [1 + template.count("|") for template in templates])[0])
