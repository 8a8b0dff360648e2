"""The commands of a chat, which begin with a slash."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from aethermind.cli import console
from aethermind.cli.chat.conversation import load_conversation, parse_setting, save_conversation
from aethermind.errors import InvalidArgumentError, did_you_mean

if TYPE_CHECKING:
    from aethermind.cli.chat.repl import Repl

__all__ = ["COMMANDS", "NextAction", "run"]


class NextAction(Enum):
    """What the chat does after a command."""

    READ = "read"
    ANSWER = "answer"
    """Reply to the last user message."""
    EXIT = "exit"


_SEPARATOR = re.compile(r"\s*=\s*|\s+")
"""The separator between a setting's name and its value: spaces, or an equals sign."""


def run(repl: Repl, line: str) -> NextAction:
    """Run a command given without its slash. Raises InvalidArgumentError for an unknown one or a bad argument."""
    name, argument = [*re.split(r"\s", line, maxsplit=1), ""][:2]
    command = COMMANDS.get(_ALIASES.get(name, name))
    if command is None:
        raise InvalidArgumentError(
            f"There is no command /{name}{did_you_mean(f'/{name}', [f'/{command_name}' for command_name in COMMANDS])} "
            "/help lists them, and // begins a message with a slash."
        )
    argument = argument.strip()
    if command.usage:
        return command.run(repl, argument)
    if argument:
        raise InvalidArgumentError(f"/{name} takes no argument, got {_truncated(argument)!r}.")
    return command.run(repl)


def _help(repl: Repl) -> NextAction:
    rows = [(f"/{name} {command.usage}".rstrip(), command.help) for name, command in COMMANDS.items()]
    repl.print_note(console.columns(rows))
    repl.print_note(
        '  """ begins and ends a message of several lines; pasted lines are one message. Ctrl-C stops an answer.'
    )
    return NextAction.READ


def _system(repl: Repl, argument: str) -> NextAction:
    if argument:
        repl.conversation.system = None if argument == "none" else argument
    repl.print_note(f"[system: {repl.conversation.system or 'none'}]")
    return NextAction.READ


def _set(repl: Repl, argument: str) -> NextAction:
    if not argument:
        repl.print_note(console.columns((key, _shown(value)) for key, value in repl.shown_settings().items()))
        return NextAction.READ
    name, *value = _SEPARATOR.split(argument, maxsplit=1)
    if not "".join(value):
        raise InvalidArgumentError(f"A value is missing: /set {name} VALUE; /set alone shows all.")
    changed = repl.conversation.set(name, parse_setting(value[0]))
    repl.print_note(f"[{changed}: {_shown(repl.shown_settings()[changed])}]")
    return NextAction.READ


def _shown(value: object) -> str:
    if value is None or value == ():
        return "none"
    return ", ".join(map(repr, value)) if isinstance(value, tuple) else str(value)


def _truncated(text: str, num_chars: int = 60) -> str:
    line = " ".join(text.split())
    return line if len(line) <= num_chars else line[: num_chars - 1] + "…"


def _regen(repl: Repl) -> NextAction:
    repl.conversation.remove_reply()
    return NextAction.ANSWER


def _edit(repl: Repl, argument: str) -> NextAction:
    message = repl.conversation.last_user_message
    text = argument or repl.reader.edit(message)
    if not text or text.isspace() or text == message:
        repl.print_note("[unchanged]")
        return NextAction.READ
    repl.conversation.edit(text)
    return NextAction.ANSWER


def _undo(repl: Repl) -> NextAction:
    repl.print_note(f"[took back: {_truncated(repl.conversation.undo())}]")
    return NextAction.READ


def _save(repl: Repl, argument: str) -> NextAction:
    path = save_conversation(repl.conversation, _file(argument, "save"))
    repl.print_note(f"[saved {len(repl.conversation.messages)} messages to {path}]")
    return NextAction.READ


def _load(repl: Repl, argument: str) -> NextAction:
    loaded = load_conversation(_file(argument, "load"), repl.conversation)
    origin = f", which were answered by {loaded.model}" if loaded.model != repl.conversation.model else ""
    loaded.model = repl.conversation.model
    repl.conversation = loaded
    repl.print_note(f"[loaded {len(loaded.messages)} messages{origin}]")
    if loaded.messages:
        repl.print_note(f"[last: {_truncated(loaded.messages[-1].content)}]")
    return NextAction.READ


def _file(argument: str, name: str) -> str:
    if not argument:
        raise InvalidArgumentError(f"A file name is missing: /{name} FILE.")
    return argument


def _clear(repl: Repl) -> NextAction:
    repl.conversation.clear()
    repl.print_note("[cleared; system prompt and settings are kept]")
    return NextAction.READ


def _stats(repl: Repl) -> NextAction:
    repl.print_note(console.columns(repl.statistics.rows(repl.conversation, repl.chat_model.max_model_len)))
    return NextAction.READ


class _Command(NamedTuple):
    usage: str
    """Placeholder of the argument; empty if there is none."""
    help: str
    run: Callable[..., NextAction]


COMMANDS = {
    "help": _Command("", "list these commands", _help),
    "system": _Command("[TEXT]", "show or replace the system prompt; none removes it", _system),
    "set": _Command("[NAME VALUE]", "show the settings, or change one: /set temperature 0.2", _set),
    "regen": _Command("", "answer the last message again", _regen),
    "edit": _Command("[TEXT]", "change the last message and answer it", _edit),
    "undo": _Command("", "take back the last message and its answer", _undo),
    "save": _Command("FILE", "write the conversation as JSON", _save),
    "load": _Command("FILE", "continue a saved conversation", _load),
    "clear": _Command("", "start over", _clear),
    "stats": _Command("", "show token counts, reused tokens and the context", _stats),
    "exit": _Command("", "leave; so do /quit, /bye, a bare exit or quit, and Ctrl-D", lambda _: NextAction.EXIT),
    "quit": _Command("", "leave", lambda _: NextAction.EXIT),
}
"""The commands by name, in the order of /help."""

_ALIASES = {"?": "help", "bye": "exit"}
"""Names that the commands have in other programs."""
