"""The command line: the built-in commands and those of plugins, error messages and exit codes."""

from __future__ import annotations

import errno
import logging
import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from importlib import import_module
from pathlib import Path
from shutil import get_terminal_size
from types import FrameType
from typing import Annotated, Any, TextIO

import typer
from typer.core import TyperGroup

from aethermind import env, log
from aethermind.cli import console
from aethermind.cli.commands import COMMANDS, COMPLETION_VARIABLE, LazyCommands, equivalent_command
from aethermind.errors import AetherMindError, SettingsError

__all__ = ["app", "run", "signals_exit"]

_EXIT_SIGNALS = ("SIGTERM", "SIGHUP")
"""SIGHUP is sent when the terminal is closed. Windows does not have it."""


class Commands(TyperGroup):
    """The built-in commands and those of plugins. Plugins are loaded only to list or to find commands."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "commands": None})
        self.commands: Any = LazyCommands()

    @cached_property
    def _of_plugins(self) -> dict[str, Any]:
        from aethermind.cli.commands import load_commands

        return load_commands(taken=self.commands)

    def list_commands(self, ctx: Any) -> list[str]:
        return [*self.commands, *sorted(self._of_plugins)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return self.commands.get(cmd_name) or self._of_plugins.get(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands with their summaries, without importing the built-in ones."""
        rows = [(name, spec.summary) for name, spec in COMMANDS.items()]
        rows += [(name, command.get_short_help_str(limit=80)) for name, command in sorted(self._of_plugins.items())]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Make help as wide as the terminal, up to 120 columns."""
        extra.setdefault("max_content_width", min(get_terminal_size().columns, 120))
        return super().make_context(info_name, args, parent, **extra)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and self.get_command(ctx, args[0]) is None:
            advice = equivalent_command(args[0], args[1:])
            if advice is not None:
                raise SettingsError(f"There is no command {args[0]!r} here. Type {advice}.")
        name, command, rest = super().resolve_command(ctx, args)
        if ctx.params.get("config_file") is not None and not _takes_settings(command):
            raise SettingsError(f"--config has no effect on {name}, which takes no settings. Leave it out.")
        return name, command, rest

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        except BrokenPipeError:
            if not _discard_if_reader_closed(sys.stdout):
                raise
            raise typer.Exit(141) from None
        return result

    def main(self, *args: Any, **options: Any) -> Any:
        try:
            return super().main(*args, **options)
        except SettingsError as error:
            _fail(str(error), 2)
        except AetherMindError as error:
            from aethermind.cli.flags import with_flags

            _fail(with_flags(str(error)), 2)
        except OSError as error:
            if log.get_logger("aethermind").isEnabledFor(logging.DEBUG):
                raise
            _fail(f"{_error_subject(error)}: {error.strerror or error}. Check paths, permissions and free space.", 2)
        except Exception as error:
            if env.log_level() == "DEBUG" or log.get_logger("aethermind").isEnabledFor(logging.DEBUG):
                raise
            _fail(_bug_report(error), 1)


def _bug_report(error: Exception) -> str:
    """Return the message for an unexpected exception: a bug of the core, or of a plugin."""
    from aethermind.plugins.discovery import plugin_that_raised

    title = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    plugin = plugin_that_raised(error)
    if plugin is None:
        return f"{title}\nThis is a bug. Set AETHERMIND_LOG=debug to see the traceback, and please report it."
    return (
        f"{title}\nIt was raised in plugin {plugin}. Set AETHERMIND_LOG=debug to see the traceback, and report it to "
        "the authors of that package."
    )


def _error_subject(error: OSError) -> str:
    """Return the beginning of the message for an OSError: what cannot be used."""
    if error.filename is not None:
        return f"{error.filename} cannot be used"
    if error.errno == errno.ENOENT:
        return "The working directory cannot be used"
    is_writing = error.errno in (errno.ENOSPC, errno.EIO, errno.EBADF, errno.EFBIG, errno.EDQUOT, errno.EPIPE)
    return "Standard output cannot be written" if is_writing else "The operating system reports an error"


def _fail(message: str, exit_code: int) -> None:
    print(f"{console.style('Error:', 'red', sys.stderr)} {message}", file=sys.stderr)
    sys.exit(exit_code)


def _discard_if_reader_closed(stream: TextIO) -> bool:
    """If the reader of a stream has closed it, as `| head` does, redirect it to /dev/null. Returns whether it has."""
    poller = select.poll()
    poller.register(stream.fileno(), 0)
    if not any(events & select.POLLERR for _, events in poller.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return True


def _takes_settings(command: Any) -> bool:
    """Whether a command, or a command of a group, has options that a configuration file can set."""
    if any(parameter.name == "config_file" for parameter in command.params):
        return True
    return any(map(_takes_settings, getattr(command, "commands", {}).values()))


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        print(f"aethermind {console.version()}")
        raise typer.Exit()


def _set_level(level: str | None) -> str | None:
    if level is not None:
        from aethermind.cli.options import checked_level

        log.set_level(checked_level(level))
    return level


app = typer.Typer(
    cls=Commands,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=console.examples(
        'aethermind generate "Once upon a time"',
        "aethermind chat",
        "aethermind doctor",
        "aethermind explain --model demo",
        "aethermind models",
        "aethermind bench latency --prompt-tokens 64 --output-tokens 32",
    ),
)


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", "-V", help="Print the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
    config_file: Annotated[
        str | None, typer.Option("--config", metavar="FILE", help="Take settings from this TOML, YAML or JSON file.")
    ] = None,
    log_level: Annotated[
        str | None,
        typer.Option(
            help="Log to stderr from this level on: debug, info, warning or error.",
            show_default="AETHERMIND_LOG, or warning",
            callback=_set_level,
        ),
    ] = None,
) -> None:
    """LLM inference in which hardware and models are pip packages."""


def run() -> None:
    """Run the command line of this process."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by the parent process
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 (as long as the process)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    log.setup_console()
    if os.environ.get(COMPLETION_VARIABLE):
        import_module("typer.completion").completion_init()
    with signals_exit():
        app(prog_name="aethermind")


@contextmanager
def signals_exit() -> Iterator[None]:
    """Raise SystemExit for the signals that end a process by default; `nohup` makes it ignore SIGHUP.

    Temporary files are deleted then, and typed lines are saved. A second signal ends the process at once. The exit code
    is that of shells: 128 and the signal's number.
    """
    numbers = [getattr(signal, name) for name in _EXIT_SIGNALS if hasattr(signal, name)]
    changed = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]
    for number in changed:
        signal.signal(number, _exit)
    try:
        yield
    finally:
        for number in changed:
            signal.signal(number, signal.SIG_DFL)


def _exit(number: int, _frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)
    sys.exit(128 + number)
