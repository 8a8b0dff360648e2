"""`aethermind chat`: a conversation on the terminal, or through a pipe.

conversation   who said what, under which settings: data without terminal or model
saved          conversations as JSON files
readers        where lines come from: a terminal, or a pipe
history        what was typed, for the next chat
answerers      who answers: a model loaded here
server         … or one behind a URL
slash          the commands that begin with a slash
repl           reading, answering, and what Ctrl-C means
command        the verb and its options
"""

from __future__ import annotations

from aethermind.cli.chat.command import EXAMPLES, chat

__all__ = ["EXAMPLES", "chat"]
