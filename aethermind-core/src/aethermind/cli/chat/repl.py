"""The loop of a chat: read an entry, run a command or generate a reply; Ctrl-C interrupts the reply only."""

from __future__ import annotations

import json
import signal
import sys
from contextlib import closing, nullcontext
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from aethermind.cli import console
from aethermind.cli.chat import slash
from aethermind.cli.chat.conversation import Conversation
from aethermind.cli.chat.readers import Reader
from aethermind.cli.chat.slash import NextAction
from aethermind.cli.chat.terminal import WrappingWriter, without_echo
from aethermind.cli.console import TextWriter
from aethermind.errors import AetherMindError, ContextLengthError, InvalidArgumentError, SettingsError

if TYPE_CHECKING:
    from collections.abc import Collection

    from aethermind.cli.chat.chat_models import ChatModel, ChatReply
    from aethermind.cli.chat.mcp_tools import McpTools

__all__ = ["Interrupt", "Repl", "Statistics", "describe"]

_MAX_CALL_ROUNDS = 100
"""Replies with calls to one message, which a model could go on with for ever."""


@dataclass(slots=True)
class Statistics:
    """Token counts of all replies of a chat. Mutable."""

    num_answers: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    num_context_tokens: int = 0
    """Tokens of the prompt and the reply of the last turn."""

    def add(self, reply: ChatReply) -> None:
        """Add an answer."""
        self.num_answers += 1
        self.num_prompt_tokens += reply.num_prompt_tokens
        self.num_cached_tokens += reply.num_cached_tokens
        self.num_output_tokens += reply.num_output_tokens
        self.num_context_tokens = reply.num_prompt_tokens + reply.num_output_tokens

    def rows(self, conversation: Conversation, max_model_len: int | None) -> list[tuple[str, str]]:
        """Return names and values for a table."""
        limit = "" if max_model_len is None else f" of {max_model_len}"
        return [
            ("turns", str(conversation.num_turns)),
            ("answers", f"{self.num_answers}, {self.num_output_tokens} tokens"),
            ("prompts", f"{self.num_prompt_tokens} tokens, {self.num_cached_tokens} of them reused"),
            ("context", f"{self.num_context_tokens}{limit} tokens at the last answer"),
        ]


def describe(reply: ChatReply) -> str:
    """Return the token counts and speed of a reply as one line."""
    parts = [
        f"{reply.num_prompt_tokens} prompt tokens, {reply.num_cached_tokens} reused",
        f"{reply.num_output_tokens} answer tokens",
    ]
    if reply.ttft_s is not None:
        parts.append(f"first after {reply.ttft_s * 1e3:.0f} ms")
    if reply.decode_tokens_per_s is not None:
        parts.append(f"then {reply.decode_tokens_per_s:.1f} tokens/s")
    if reply.seed is not None:
        parts.append(f"seed {reply.seed}")
    return "[" + " · ".join(parts) + "]"


class Repl:
    """One chat: its model, conversation and reader. Replies go to stdout, everything else to stderr."""

    def __init__(
        self,
        chat_model: ChatModel,
        conversation: Conversation,
        reader: Reader,
        *,
        has_stats: bool = False,
        tools: McpTools | None = None,
        allowed_tools: Collection[str] = (),
    ) -> None:
        """`tools` are run when the model calls them: those of `allowed_tools` at once, others if the user agrees."""
        self.chat_model = chat_model
        self.conversation = conversation
        self.reader = reader
        self.statistics = Statistics()
        self._has_stats = has_stats
        self._num_regenerations = 0
        self._tools = tools
        self._allowed_tools = set(allowed_tools)

    def run(self) -> None:
        """Run to the end of the entries, or to a command that ends the chat.

        If the reader is interactive, an error is printed and the chat continues; else it is raised.
        """
        while True:
            try:
                if not self._turn():
                    return
            except AetherMindError as error:
                if not self.reader.is_interactive:
                    raise
                self._print_error(error)
            except KeyboardInterrupt:  # pressed just after the end of the answer
                if not self.reader.is_interactive:
                    raise
                self.print_note("")

    def _turn(self) -> bool:
        """Read an entry, and run the command or reply to the message; False at the end."""
        entry = self.reader.read()
        if entry is None:
            return False
        action = NextAction.ANSWER
        if entry.is_command:
            action = self._run_command(entry.text)
            self._num_regenerations += action is NextAction.ANSWER
        else:
            self.conversation.add_user_message(entry.text)
            self._num_regenerations = 0
        if action is NextAction.ANSWER:
            self._answer()
        return action is not NextAction.EXIT

    def _run_command(self, line: str) -> NextAction:
        """Run a command.

        An InvalidArgumentError becomes a SettingsError, whose message keeps names as `/set` has them; in other errors
        `with_flags` replaces `max_tokens` by `--max-tokens`.
        """
        try:
            return slash.run(self, line)
        except InvalidArgumentError as error:
            raise SettingsError(str(error)) from error

    def print_note(self, text: str) -> None:
        """Print a note that is not part of a reply."""
        console.print_note(console.printable(text))

    def _answer(self) -> None:
        """Reply, run the tools that the reply calls, and reply to their results, until a reply calls none."""
        self._reply()
        for _ in range(_MAX_CALL_ROUNDS):
            calls = self.conversation.pending_calls
            if self._tools is None or not calls:
                return
            results = ["Error: the user stopped this call."] * len(calls)
            try:
                for index, call in enumerate(calls):
                    results[index] = self._run_tool(self._tools, call["function"])
            finally:  # templates and servers want a result of each call, also after Ctrl-C
                for call, result in zip(calls, results, strict=True):
                    self.conversation.add_result(call["id"], result)
            self._reply()

    def _run_tool(self, tools: McpTools, function: dict[str, str]) -> str:
        """Run a tool, if the user agrees; returns the result for the model."""
        name, text = function["name"], function["arguments"]
        self.print_note(f"[the model calls {name} with {text}]")
        try:
            arguments = json.loads(text)
        except ValueError:
            return "Error: the arguments are not JSON."
        if not isinstance(arguments, dict):
            return "Error: the arguments are not an object."
        if name not in self._allowed_tools:
            answer = self.reader.ask("Run it? y: yes, a: always, n: no > ").strip().lower()
            if answer in ("a", "always"):
                self._allowed_tools.add(name)
            elif answer not in ("y", "yes"):
                self.print_note(f"[{name} was not run; --mcp-allow {name} runs it without a question]")
                return "Error: the user does not allow this call."
        return tools.call(name, arguments)

    def _reply(self) -> None:
        """Generate and print a reply, and add it to the conversation."""
        is_interactive = self.reader.is_interactive
        can_wrap = is_interactive and console.can_redraw(sys.stdout)
        writer = WrappingWriter(sys.stdout) if can_wrap else TextWriter(sys.stdout)
        reply: ChatReply | None = None
        stream = self.chat_model.reply(self.conversation, self._num_regenerations)
        is_caught = is_interactive and self.chat_model.interrupts_between_tokens
        echo_off = without_echo(sys.stdin) if is_interactive else nullcontext()
        with echo_off, Interrupt(is_caught=is_caught) as interrupt, closing(stream) as replies:
            try:
                for reply in replies:
                    interrupt.is_deferred = bool(reply.text)
                    writer.show(reply.text)
                    if interrupt.is_requested:
                        break
            except KeyboardInterrupt:
                if not is_interactive:
                    raise
            except AetherMindError:
                if reply is not None and reply.text:
                    writer.finish(reply.text)  # the error begins on a line of its own
                raise
        text = "" if reply is None else reply.text
        writer.finish(text)
        calls = () if reply is None else reply.tool_calls
        self.conversation.add_reply(text, is_interrupted=reply is None or reply.finish_reason is None, tool_calls=calls)
        if reply is not None:
            self.statistics.add(reply)
            if self._has_stats:
                self.print_note(describe(reply))
        if is_interactive and (note := self._note(reply)):
            self.print_note(note)

    def _note(self, reply: ChatReply | None) -> str | None:
        if reply is None or reply.finish_reason is None:
            return "[stopped; /regen answers again, /undo takes your message back]"
        if reply.finish_reason != "length":
            return None
        max_tokens, max_model_len = self.shown_settings()["max_tokens"], self.chat_model.max_model_len
        if max_model_len is not None and self.statistics.num_context_tokens >= max_model_len:
            return f"[the context of {max_model_len} tokens is full; /undo or /clear frees it]"
        return f"[stopped after max_tokens = {max_tokens}; /set max_tokens changes it]"

    def shown_settings(self) -> dict[str, Any]:
        """Return every setting with its value, or with the origin of its default."""
        conversation, default = self.conversation, self.chat_model.default_settings
        settings = conversation.settings()
        if default is None:
            return settings
        return {name: default if conversation.sampling.get(name) is None else settings[name] for name in settings}

    def _print_error(self, error: AetherMindError) -> None:
        message = str(error)
        if isinstance(error, ContextLengthError):
            length = self.chat_model.max_model_len
            limit = "" if length is None else f" of {length} tokens"
            message = (
                f"The conversation no longer fits the context{limit}, so there is no answer. "
                "Nothing is lost: /undo takes your message back, /save FILE keeps all, /clear starts over."
            )
        print(f"{console.style('Error:', 'red', sys.stderr)} {message}", file=sys.stderr)


class Interrupt:
    """Handles Ctrl-C (SIGINT) while a reply is generated. Does nothing unless `is_caught`.

    Once `is_deferred`, the first press only sets `is_requested`, which is read between two tokens so that no step is
    interrupted. Before that, and at the second press, KeyboardInterrupt is raised: a long prompt takes many steps until
    its first token, and a single step may take too long.
    """

    def __init__(self, *, is_caught: bool) -> None:
        self.is_deferred = False
        self.is_requested = False
        self._is_caught = is_caught
        self._previous: Any = None

    def __enter__(self) -> Interrupt:
        if self._is_caught:
            self._previous = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_caught:
            signal.signal(signal.SIGINT, self._previous)

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        if self.is_requested or not self.is_deferred:
            raise KeyboardInterrupt
        self.is_requested = True
