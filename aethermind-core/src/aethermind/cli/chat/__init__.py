"""`aethermind chat`: a conversation on the terminal, or through a pipe.

command        the command and its options
repl           the loop: read an entry, answer it; Ctrl-C
conversation   messages and settings as data, and their JSON files
readers        entries from a terminal or a pipe
slash          the commands that begin with a slash
answerers      a model loaded in this process, or one behind a URL
terminal       echo, word wrap, the history of typed lines
"""

from __future__ import annotations

from aethermind.cli.chat.command import EXAMPLES, chat

__all__ = ["EXAMPLES", "chat"]
