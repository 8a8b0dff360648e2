"""The commands: verbs of the core, each imported when it is first used, and those that plugins add."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import typer
from typer.core import TyperGroup

from aethermind.env import expand_home
from aethermind.errors import InvalidArgumentError

if TYPE_CHECKING:
    import pluggy

    from aethermind.plugins.discovery import PluginRecord

__all__ = [
    "COMMANDS",
    "COMPLETION_VARIABLE",
    "CommandSpec",
    "LazyCommands",
    "SummaryGroup",
    "collect_commands",
    "load_commands",
]


COMPLETION_VARIABLE = "_AETHERMIND_COMPLETE"
"""Set by the scripts of `aethermind completion` when they ask for completions."""


class CommandSpec(NamedTuple):
    """Where a verb is defined: the function of its name, or the group `app`, in a module below `aethermind.cli`.

    `summary` is the first sentence of its help. `examples` names the module's examples. `has_settings` is whether its
    options can come from a file and from variables, `is_serving` whether it runs until it is stopped and logs requests.
    """

    module: str
    summary: str
    examples: str = "EXAMPLES"
    has_settings: bool = True
    is_group: bool = False
    is_serving: bool = False


COMMANDS: Mapping[str, CommandSpec] = {
    "generate": CommandSpec("generate", "Continue a prompt and print the text."),
    "chat": CommandSpec("chat", "Hold a conversation with a chat model."),
    "serve": CommandSpec("serve", "Serve models through an OpenAI-compatible HTTP API.", is_serving=True),
    "run": CommandSpec("run", "Download a model if it is not here, and chat with it."),
    "ps": CommandSpec("ps", "List the models that a running server has loaded.", has_settings=False),
    "pull": CommandSpec("pull", "Download models of the Hugging Face Hub.", has_settings=False),
    "quantize": CommandSpec("quantize", "Quantise a model's weights and write it for this and other engines."),
    "doctor": CommandSpec(
        "doctor", "Report on the machine, its devices and the installed plugins.", has_settings=False
    ),
    "explain": CommandSpec("explain", "Show which kernel runs each operator, or where two devices disagree."),
    "models": CommandSpec("models", "List models: installed, on disk, or downloaded."),
    "tokenize": CommandSpec("tokens", "Show the tokens of a text, one per line with its id.", "TOKENIZE_EXAMPLES"),
    "detokenize": CommandSpec("tokens", "Print the text of token ids, special tokens included.", "DETOKENIZE_EXAMPLES"),
    "ops": CommandSpec("ops", "List the operators, and how each device computes them.", has_settings=False),
    "profile": CommandSpec("profile", "Show where time and memory go."),
    "conform": CommandSpec(
        "conform",
        "Check a device or a model package with the conformance kit.",
        has_settings=False,
    ),
    "simulate": CommandSpec("simulate", "Replay a trace of requests through the scheduler and compare policies."),
    "completion": CommandSpec(
        "completion", "Print a script for tab completion in bash, zsh or fish.", has_settings=False
    ),
    "plugin": CommandSpec("plugin_new", "Write packages that extend AetherMind.", is_group=True),
    "plugins": CommandSpec("plugins", "List installed plugins.", is_group=True),
    "sessions": CommandSpec(
        "sessions",
        "List, save, load, protect and delete sessions: conversations whose KV cache is kept.",
        is_group=True,
    ),
    "cache": CommandSpec("cache", "Show or delete the cached files that make later starts fast.", is_group=True),
    "bench": CommandSpec("bench", "Measure speed, its limits, and what quantisation costs in quality.", is_group=True),
}


class LazyCommands(Mapping[str, Any]):
    """The commands of COMMANDS by name, each imported at its first lookup."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = _load(name, COMMANDS[name])
        return self._loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in COMMANDS

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


def _load(name: str, verb: CommandSpec) -> Any:
    module = import_module(f"aethermind.cli.{verb.module}")
    if verb.is_group:
        return _expanding_home(typer.main.get_group(module.app))
    from aethermind.cli.configured import ConfiguredCommand, ServingCommand

    alone = typer.Typer(rich_markup_mode=None, add_completion=False)
    configured = ServingCommand if verb.is_serving else ConfiguredCommand
    cls = configured if verb.has_settings else None
    alone.command(name, cls=cls, epilog=getattr(module, verb.examples))(getattr(module, name))
    return _expanding_home(typer.main.get_command(alone))


def _expanding_home(command: Any) -> Any:
    """The command, with `~` expanded in every path that it takes: shells do so only at the beginning of a word."""
    for parameter in command.params:
        kind = parameter.type
        if kind.name in ("path", "file", "directory"):
            kind.convert = partial(_expanded, kind.convert)
    for below in getattr(command, "commands", {}).values():
        _expanding_home(below)
    return command


def _expanded(convert: Callable[..., Any], path: Any, parameter: Any, context: Any) -> Any:
    try:
        return convert(str(expand_home(path)), parameter, context)
    except InvalidArgumentError as error:
        raise typer.BadParameter(str(error), ctx=context, param=parameter) from None


class SummaryGroup(TyperGroup):
    """A group of commands whose help shows their whole summaries, wrapped instead of cut."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        commands: list[tuple[str, Any]] = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, command.get_short_help_str(limit=1000)) for name, command in commands if not command.hidden]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def load_commands(taken: Container[str]) -> dict[str, Any]:
    """Load the installed plugins and return their commands by name."""
    from aethermind.plugins.sandbox_load import load_installed

    records, manager = load_installed()
    return collect_commands(records, manager, taken)


def collect_commands(
    records: Sequence[PluginRecord], manager: pluggy.PluginManager, taken: Container[str]
) -> dict[str, Any]:
    """Call `register_commands` of each loaded plugin; failures and names already taken are noted in its record."""
    from aethermind.plugins.loading import call_each

    commands: dict[str, Any] = {}
    for record in records:
        app = typer.Typer(rich_markup_mode=None)
        has_answered = list(call_each(manager, [record], "register_commands", app=app))
        if not has_answered or not (app.registered_commands or app.registered_groups):
            continue
        found = typer.main.get_group(app).commands
        clashes = [name for name in found if name in taken or name in commands]
        if clashes:
            record.fail(f"its command {clashes[0]!r} exists already; rename it.")
        added = {name: command for name, command in found.items() if name not in clashes}
        record.registered["commands"] = sorted(added)
        commands.update(added)
    return commands
