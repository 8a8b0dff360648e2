"""`aethermind chat`: a conversation on the terminal, or through a pipe.

repl           the loop: read an entry, answer it; Ctrl-C
conversation   messages and settings as data, and their JSON files
readers        entries from a terminal or a pipe
slash          the commands that begin with a slash
chat_models    a model loaded in this process, or the model of a server
mcp_tools      tools of MCP servers
terminal       echo, word wrap, the history of typed lines
"""

from __future__ import annotations

import sys
from contextlib import ExitStack, closing, nullcontext
from functools import wraps
from inspect import getdoc
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aethermind import env
from aethermind.cli import console, options
from aethermind.cli.flags import is_on_command_line, with_settings
from aethermind.cli.settings import (
    SAMPLING_DEFAULTS,
    ExecutionOptions,
    ModelOptions,
    OfflineEngineOptions,
    SamplingOptions,
)
from aethermind.errors import InvalidArgumentError, SettingsError
from aethermind.first_party import pip_install_command

if TYPE_CHECKING:
    from aethermind.cli.chat.chat_models import ChatModel, ServerChatModel
    from aethermind.cli.chat.mcp_tools import McpTools
    from aethermind.cli.chat.readers import Reader
    from aethermind.llm import LLM

__all__ = ["EXAMPLES", "RUN_EXAMPLES", "chat", "run"]

EXAMPLES = console.examples(
    "aethermind chat",
    'aethermind chat --system "You are brief." --temperature 0.2 --stats',
    'echo "Hello there" | aethermind chat --max-tokens 40',
    "aethermind chat --url http://127.0.0.1:8000",
)

RUN_EXAMPLES = console.examples(
    "aethermind run demo",
    "aethermind run Qwen/Qwen2.5-0.5B-Instruct",
)

_SERVER_OPTIONS = frozenset(
    {
        "url",
        "api_key",
        "model",
        "positional_model",
        "system",
        "stats",
        "history",
        "mcp",
        "mcp_allow",
        "config_file",
        "print_config",
        "log_level",
    }
)
"""Options of a chat with a server, besides those of sampling; all others are about a model loaded here."""


@with_settings
def chat(
    ctx: typer.Context,
    *,
    model: options.Model = None,
    system: options.System,
    chat_template: options.ChatTemplate,
    url: Annotated[
        str | None, typer.Option(help="Talk to a server with OpenAI's API at this URL instead of loading a model.")
    ] = None,
    api_key: options.ApiKeyToSend = None,
    model_options: ModelOptions,
    sampling: SamplingOptions,
    engine: OfflineEngineOptions,
    execution: ExecutionOptions,
    stats: Annotated[bool, typer.Option("--stats/--no-stats", help="Print tokens and speed of each answer.")] = False,
    history: options.History,
    mcp: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COMMAND|URL",
            help="Let the model use the tools of an MCP server: a command, or the URL of one with streamable HTTP. "
            "Each call needs your consent. Can be repeated.",
        ),
    ] = None,
    mcp_allow: Annotated[
        list[str] | None,
        typer.Option(metavar="TOOL", help="Run this tool of an MCP server without asking. Can be repeated."),
    ] = None,
) -> None:
    """Hold a conversation with a chat model.

    On a terminal, /help lists the commands. From a pipe, each line is a message. Earlier turns remain in the KV cache.
    Defaults called "the model's" come from its generation_config.json.
    """
    from aethermind.cli.chat.chat_models import LocalChatModel
    from aethermind.cli.progress import open_llm
    from aethermind.sampling.params import with_defaults
    from aethermind.text.chat_templates import ChosenTemplate

    given = sampling.given()
    with ExitStack() as stack:
        used = stack.enter_context(_open_tools(mcp)) if mcp else None
        tools = [] if used is None else used.functions
        repl: dict[str, Any] = {"tools": used, "allowed_tools": mcp_allow or (), "has_stats": stats}
        if url is not None:
            _check_flags(ctx)
            name = model if is_on_command_line(ctx, "model") else None
            server = stack.enter_context(closing(_server(url, name, api_key, tools)))
            _chat(server, server.model, f"at {url}", system, given, has_history=history, **repl)
            return
        adapter = options.chosen_adapter(model_options.adapters)
        chosen = None if chat_template is None else ChosenTemplate.read(chat_template)
        name = options.chosen_model(model)
        llm = stack.enter_context(closing(open_llm(name, model_options, engine, execution, max_num_seqs=1)))
        template = None if chosen is None else chosen.of(llm.tokenizer.chat_templates)
        _check_template(llm, name, template)
        given = with_defaults({**SAMPLING_DEFAULTS, **llm.sampling_defaults}, given)
        place = f"on {llm.info.device} {llm.info.dtype}"
        chat_model = LocalChatModel(llm, template, adapter, tools)
        _chat(chat_model, name, place, system, given, has_history=history, **repl)


@wraps(chat)
def run(**options: Any) -> None:
    chat(**options)


run.__name__ = "run"
run.__doc__ = f"Download a model if it is not here, and chat with it.\n\nThe same as chat. {getdoc(chat)}"


def _chat(
    chat_model: ChatModel,
    name: str,
    place: str,
    system: str | None,
    sampling: dict[str, Any],
    *,
    has_history: bool,
    **options: Any,
) -> None:
    """Run the conversation on the terminal or through a pipe. `options` are those of `Repl`."""
    from aethermind.cli.chat.conversation import Conversation
    from aethermind.cli.chat.readers import PipeReader, TerminalReader
    from aethermind.cli.chat.repl import Repl
    from aethermind.cli.chat.slash import COMMANDS
    from aethermind.cli.chat.terminal import typed_history

    is_interactive = console.is_terminal(sys.stdin) and console.is_terminal(sys.stdout)
    reader: Reader = TerminalReader(tuple(COMMANDS)) if is_interactive else PipeReader(sys.stdin.buffer)
    repl = Repl(chat_model, Conversation(name, system, sampling), reader, **options)
    if is_interactive:
        repl.print_note(f"{name} {place} · /help shows commands, Ctrl-D leaves")
    elif console.is_terminal(sys.stdin):
        repl.print_note(f"{name} {place} · each line is a message, Ctrl-D leaves")
    keeps_history = is_interactive and has_history
    with typed_history(env.state_directory() / "chat_history") if keeps_history else nullcontext():
        repl.run()


def _open_tools(servers: list[str]) -> McpTools:
    from aethermind.cli.chat.mcp_tools import McpTools

    return McpTools(servers)


def _server(url: str, model: str | None, api_key: list[str] | None, tools: list[dict[str, Any]]) -> ServerChatModel:
    from aethermind.cli.chat.chat_models import ServerChatModel

    try:
        return ServerChatModel(url, model, api_key[0] if api_key else None, tools)
    except ImportError as error:
        raise SettingsError(
            f"`chat --url` needs {error.name}. Run `{pip_install_command('aethermind[serve]')}`."
        ) from None


def _check_flags(ctx: typer.Context) -> None:
    """Raise InvalidArgumentError for a flag that is about a model loaded here."""
    from aethermind.cli.chat.conversation import SETTINGS

    for parameter in ctx.command.params:
        if parameter.name not in _SERVER_OPTIONS.union(SETTINGS) and is_on_command_line(ctx, parameter.name):
            raise InvalidArgumentError(
                f"{parameter.opts[0]} is about a model that is loaded here, and --url names a server's; leave one out."
            )


def _check_template(llm: LLM, model: str, template: str | None) -> None:
    """InvalidArgumentError, before the first message, where the model has no chat template or a given one is wrong."""
    if template is not None:
        from aethermind.text.chat_prompt import chat_prompt

        chat_prompt(llm.tokenizer, [{"role": "user", "content": "Hello"}], chat_template=template)
    elif llm.tokenizer.chat_template is None:
        others = llm.tokenizer.chat_templates
        raise InvalidArgumentError(
            f"The model {model} has no chat template, so it is probably no chat model. Continue a text with "
            "`aethermind generate`, or pass a Jinja template as --chat-template FILE"
            + (f", or one of its own by name ({', '.join(sorted(others))})." if others else ".")
        )
