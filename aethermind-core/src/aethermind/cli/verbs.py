"""Our verbs: what each does, in a sentence, and where it is, so that only the one asked for is imported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, NamedTuple

import typer

__all__ = ["VERBS", "Verb", "Verbs"]


class Verb(NamedTuple):
    """The function of a verb's name, or the group `app`, in a module below `aethermind.cli`.

    `summary` is the first sentence of its help. `examples` names the module's examples; `has_settings` is whether its
    options can come from a file and from variables; `is_serving`, whether it logs what it does as it goes.
    """

    module: str
    summary: str
    examples: str = "EXAMPLES"
    has_settings: bool = True
    is_group: bool = False
    is_serving: bool = False


VERBS: Mapping[str, Verb] = {
    "generate": Verb("generate", "Continue a prompt and print the text."),
    "chat": Verb("chat", "Hold a conversation with a chat model."),
    "serve": Verb("serve", "Serve models through an OpenAI-compatible HTTP API.", is_serving=True),
    "doctor": Verb("doctor", "Report on the machine, its devices and the installed plugins.", has_settings=False),
    "explain": Verb("explain", "Show which kernel runs each operator, or where two devices disagree."),
    "models": Verb("models", "List models, installed or on disk."),
    "tokenize": Verb("tokens", "Show the tokens of a text, one per line with its id.", "TOKENIZE_EXAMPLES"),
    "detokenize": Verb("tokens", "Print the text of token ids, special tokens included.", "DETOKENIZE_EXAMPLES"),
    "ops": Verb("ops", "List the operators, and how each device computes them.", has_settings=False),
    "profile": Verb("profile", "Show where time and memory go."),
    "conform": Verb(
        "conform",
        "Check a device or a model package with the conformance kit.",
        has_settings=False,
    ),
    "simulate": Verb("simulate", "Replay a trace of requests through the scheduler and compare policies."),
    "completion": Verb("completion", "Print a script for tab completion in bash, zsh or fish.", has_settings=False),
    "plugin": Verb("plugin_new", "Write packages that extend AetherMind.", is_group=True),
    "plugins": Verb("plugins", "List installed plugins.", is_group=True),
    "cache": Verb("cache", "Show or delete the cached files that make later starts fast.", is_group=True),
    "bench": Verb("bench", "Measure speed, its limits, and what quantisation costs in quality.", is_group=True),
}


class Verbs(Mapping[str, Any]):
    """The commands of VERBS by name, each imported when it is first looked up."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = _load(name, VERBS[name])
        return self._loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in VERBS

    def __iter__(self) -> Iterator[str]:
        return iter(VERBS)

    def __len__(self) -> int:
        return len(VERBS)


def _load(name: str, verb: Verb) -> Any:
    module = import_module(f"aethermind.cli.{verb.module}")
    if verb.is_group:
        return typer.main.get_group(module.app)
    from aethermind.cli.configured import ConfiguredCommand, ServingCommand

    alone = typer.Typer(rich_markup_mode=None, add_completion=False)
    configured = ServingCommand if verb.is_serving else ConfiguredCommand
    cls = configured if verb.has_settings else None
    alone.command(name, cls=cls, epilog=getattr(module, verb.examples))(getattr(module, name))
    return typer.main.get_command(alone)
