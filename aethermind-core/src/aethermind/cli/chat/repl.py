"""The loop of a chat: an entry is read, a command run or a message answered, and Ctrl-C ends the answer only."""

from __future__ import annotations

import signal
import sys
from contextlib import closing, nullcontext
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from aethermind.cli import console
from aethermind.cli.chat import slash
from aethermind.cli.chat.conversation import Conversation
from aethermind.cli.chat.readers import Reader
from aethermind.cli.chat.slash import Next
from aethermind.cli.chat.statistics import Statistics, describe
from aethermind.cli.chat.terminal import WrappingWriter, without_echo
from aethermind.cli.text_writer import TextWriter
from aethermind.errors import AetherMindError, ContextLengthError, InvalidArgumentError, SettingsError

if TYPE_CHECKING:
    from aethermind.cli.chat.answerers import Answerer, Reply

__all__ = ["Interrupt", "Repl"]


class Repl:
    """One chat: who answers, a conversation and who it is with. Answers go to stdout, everything else to stderr."""

    def __init__(
        self, answerer: Answerer, conversation: Conversation, reader: Reader, *, has_stats: bool = False
    ) -> None:
        self.answerer = answerer
        self.conversation = conversation
        self.reader = reader
        self.statistics = Statistics()
        self._has_stats = has_stats
        self._num_attempts = 0

    def run(self) -> None:
        """Go on to the end of the entries, or until somebody leaves.

        Mistakes are said and the chat goes on where somebody reads that, else they are raised.
        """
        while True:
            try:
                if not self._turn():
                    return
            except AetherMindError as error:
                if not self.reader.is_interactive:
                    raise
                self._explain(error)
            except KeyboardInterrupt:  # it came just after the answer that it was meant for
                if not self.reader.is_interactive:
                    raise
                self.say("")

    def _turn(self) -> bool:
        """Read an entry and do what it says; False at the end."""
        entry = self.reader.read()
        if entry is None:
            return False
        following = Next.ANSWER
        if entry.is_command:
            following = self._run_command(entry.text)
            self._num_attempts += following is Next.ANSWER
        else:
            self.conversation.ask(entry.text)
            self._num_attempts = 0
        if following is Next.ANSWER:
            self._answer()
        return following is not Next.LEAVE

    def _run_command(self, line: str) -> Next:
        """Run a command of the chat. Its mistakes are about settings as the chat calls them, not about flags."""
        try:
            return slash.run(self, line)
        except InvalidArgumentError as error:
            raise SettingsError(str(error)) from error

    def say(self, text: str) -> None:
        """Print something that is not an answer."""
        console.aside(console.printable(text))

    def _answer(self) -> None:
        is_interactive = self.reader.is_interactive
        can_wrap = is_interactive and console.can_redraw(sys.stdout)
        writer = WrappingWriter(sys.stdout) if can_wrap else TextWriter(sys.stdout)
        reply: Reply | None = None
        stream = self.answerer.answer(self.conversation, self._num_attempts)
        is_caught = is_interactive and self.answerer.has_steps
        quiet = without_echo(sys.stdin) if is_interactive else nullcontext()
        with quiet, Interrupt(is_caught=is_caught) as interrupt, closing(stream) as replies:
            try:
                for reply in replies:
                    interrupt.is_patient = bool(reply.text)
                    writer.show(reply.text)
                    if interrupt.is_requested:
                        break
            except KeyboardInterrupt:
                if not is_interactive:
                    raise
            except AetherMindError:
                if reply is not None and reply.text:
                    writer.finish(reply.text)  # what is said of the error begins a line
                raise
        text = "" if reply is None else reply.text
        writer.finish(text)
        self.conversation.answer(text, is_interrupted=reply is None or reply.finish_reason is None)
        if reply is not None:
            self.statistics.add(reply)
            if self._has_stats:
                self.say(describe(reply))
        if is_interactive and (note := self._note(reply)):
            self.say(note)

    def _note(self, reply: Reply | None) -> str | None:
        if reply is None or reply.finish_reason is None:
            return "[stopped; /regen answers again, /undo takes your message back]"
        if reply.finish_reason != "length":
            return None
        most, max_model_len = self.shown_settings()["max_tokens"], self.answerer.max_model_len
        if max_model_len is not None and self.statistics.num_context_tokens >= max_model_len:
            return f"[the context of {max_model_len} tokens is full; /undo or /clear makes room]"
        return f"[stopped after max_tokens = {most}; /set max_tokens changes it]"

    def shown_settings(self) -> dict[str, Any]:
        """Every setting with its value, or with whose it is."""
        conversation, unsaid = self.conversation, self.answerer.unsaid
        settings = conversation.settings()
        if unsaid is None:
            return settings
        return {name: unsaid if conversation.sampling.get(name) is None else settings[name] for name in settings}

    def _explain(self, error: AetherMindError) -> None:
        message = str(error)
        if isinstance(error, ContextLengthError):
            length = self.answerer.max_model_len
            of_tokens = "" if length is None else f" of {length} tokens"
            message = (
                f"The conversation no longer fits the context{of_tokens}, so there is no answer. "
                "Nothing is lost: /undo takes your message back, /save FILE keeps all, /clear starts over."
            )
        print(f"{console.style('Error:', 'red', sys.stderr)} {message}", file=sys.stderr)


class Interrupt:
    """Ctrl-C while an answer is made. Does nothing unless `is_caught`.

    Once it `is_patient` the first press is noted, to be looked at between two tokens, so that no step is left half
    done. Before, because a long prompt takes many steps until there is a token to look after, and at the second press,
    because a step may take too long, KeyboardInterrupt is raised.
    """

    def __init__(self, *, is_caught: bool) -> None:
        self.is_patient = False
        self.is_requested = False
        self._is_caught = is_caught
        self._previous: Any = None

    def __enter__(self) -> Interrupt:
        if self._is_caught:
            self._previous = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_caught:
            signal.signal(signal.SIGINT, self._previous)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if self.is_requested or not self.is_patient:
            raise KeyboardInterrupt
        self.is_requested = True
