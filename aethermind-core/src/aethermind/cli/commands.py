"""The commands: those of the core, each imported at its first use, those of plugins, and those of other programs."""

from __future__ import annotations

import shlex
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
    "EQUIVALENTS",
    "LazyCommands",
    "SummaryGroup",
    "collect_commands",
    "equivalent_command",
    "load_commands",
]


COMPLETION_VARIABLE = "_AETHERMIND_COMPLETE"
"""The environment variable with which the scripts of `aethermind completion` ask for completions."""


class CommandSpec(NamedTuple):
    """Where a command is defined: the function of its name (`_` for `-`), or the group `app`, in a module of
    `aethermind.cli`.

    `summary` is the first sentence of its help. `examples` is the module's variable with the examples. `has_settings`
    means that a configuration file and environment variables can set its options, `is_serving` that it runs until it is
    stopped, and logs requests.
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
    "run-batch": CommandSpec("run_batch", "Answer a file of requests offline, in the format of OpenAI's batches."),
    "run": CommandSpec("chat", "Download a model if it is not here, and chat with it.", "RUN_EXAMPLES"),
    "ps": CommandSpec("ps", "List the models that a running server has loaded.", has_settings=False),
    "pull": CommandSpec("models", "Download models of the Hugging Face Hub.", "PULL_EXAMPLES", has_settings=False),
    "quantize": CommandSpec("quantize", "Quantise a model's weights and write it for this and other engines."),
    "doctor": CommandSpec(
        "doctor", "Report on the machine, its devices and the installed plugins.", has_settings=False
    ),
    "explain": CommandSpec("explain", "Show which kernel runs each operator, or where two devices disagree."),
    "models": CommandSpec("models", "List models: installed, on disk, or downloaded."),
    "tokenize": CommandSpec("tokens", "Show the tokens of a text, one per line with its id.", "TOKENIZE_EXAMPLES"),
    "detokenize": CommandSpec("tokens", "Print the text of token ids, special tokens included.", "DETOKENIZE_EXAMPLES"),
    "tools": CommandSpec("tools", "Check how tool calls of a model are read.", has_settings=False, is_group=True),
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


def _load(name: str, spec: CommandSpec) -> Any:
    module = import_module(f"aethermind.cli.{spec.module}")
    if spec.is_group:
        return _expanding_home(typer.main.get_group(module.app))
    from aethermind.cli.configured import ConfiguredCommand, ServingCommand

    single = typer.Typer(rich_markup_mode=None, add_completion=False)
    base = ServingCommand if spec.is_serving else ConfiguredCommand
    cls = base if spec.has_settings else None
    single.command(name, cls=cls, epilog=getattr(module, spec.examples))(getattr(module, name.replace("-", "_")))
    return _expanding_home(typer.main.get_command(single))


def _expanding_home(command: Any) -> Any:
    """Make a command expand `~` in all its paths, and return it. Shells expand it only at the start of a word."""
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
    """A group of commands whose help wraps the summaries of its commands instead of truncating them."""

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
    """Call `register_commands` of each loaded plugin and return the commands by name.

    A failure, and a name that exists already, is stored in the plugin's record.
    """
    from aethermind.plugins.loading import call_each

    commands: dict[str, Any] = {}
    for record in records:
        app = typer.Typer(rich_markup_mode=None)
        has_succeeded = list(call_each(manager, [record], "register_commands", app=app))
        if not has_succeeded or not (app.registered_commands or app.registered_groups):
            continue
        found = typer.main.get_group(app).commands
        clashes = [name for name in found if name in taken or name in commands]
        if clashes:
            record.fail(f"its command {clashes[0]!r} exists already; rename it.")
        added = {name: command for name, command in found.items() if name not in clashes}
        record.registered["commands"] = sorted(added)
        commands.update(added)
    return commands


def equivalent_command(command: str, args: Sequence[str]) -> str | None:
    """Return the equivalent here of another program's command with these arguments, or None.

    The result continues a sentence that begins with "Type".
    """
    describe = EQUIVALENTS.get(command)
    return None if describe is None else describe([word for word in args if not word.startswith("-")])


def _run(words: Sequence[str]) -> str:
    return f"`aethermind run {_model(words)}`"


def _pull(words: Sequence[str]) -> str:
    return f"`aethermind pull {shlex.quote(words[0]) if words else 'ORG/NAME'}`"


def _show(words: Sequence[str]) -> str:
    return f"`aethermind models show {_model(words)}`, with `--estimate` for the memory that it needs here"


def _remove(words: Sequence[str]) -> str:
    return f"`aethermind models rm {_model(words)}`"


def _serve(words: Sequence[str]) -> str:
    return f"`aethermind serve {_model(words)}`"


def _complete(words: Sequence[str]) -> str:
    text = shlex.join([" ".join(words)]) if words else '"Once upon a time"'
    return f"`aethermind generate --model MODEL {text}`"


def _help(words: Sequence[str]) -> str:
    return f"`aethermind {shlex.join([*words, '--help'])}`"


def _use_model_files(words: Sequence[str]) -> str:
    return f"`aethermind chat {_model(words)}`: a model is a directory or a .gguf file, which nothing has to register"


def _model(words: Sequence[str]) -> str:
    return shlex.quote(words[0]) if words else "MODEL"


EQUIVALENTS: Mapping[str, Callable[[Sequence[str]], str]] = {
    "cli": _run,
    "complete": _complete,
    "completions": lambda _: "`aethermind completion bash`, `zsh` or `fish`",
    "cp": _use_model_files,
    "create": _use_model_files,
    "download": _pull,
    "embed": lambda _: "`aethermind serve MODEL`, and ask its /v1/embeddings; in Python `LLM(…).embed(…)`",
    "help": _help,
    "info": lambda _: "`aethermind doctor`",
    "launch_server": _serve,
    "list": lambda _: "`aethermind models list`, or `aethermind models FOLDER` for the models in a folder",
    "ls": lambda _: "`aethermind models list`, or `aethermind models FOLDER` for the models in a folder",
    "rm": _remove,
    "server": _serve,
    "show": _show,
    "stop": lambda _: "Ctrl-C where `aethermind serve` runs, or send it SIGTERM: it finishes what is open",
    "version": lambda _: "`aethermind --version`",
}
"""Commands of Ollama, vLLM, llama.cpp and SGLang, each with the equivalent command here."""
