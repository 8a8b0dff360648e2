"""The chat command on a terminal: a person talks, interrupts, takes back, saves, and leaves."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

TIMEOUT_S = 300.0
PROMPT = r"\n> "
MODES = re.compile(r"\x1b\[\?2004[hl]")
"""With which readline switches bracketed paste on and off."""
STATS = r"\[(\d+) prompt tokens, (\d+) reused · (\d+) answer"


class Terminal:
    """`aethermind chat` with a terminal of its own."""

    def __init__(self, inputrc: Path, *options: str) -> None:
        self._screen, keyboard = pty.openpty()
        command = (sys.executable, "-m", "aethermind", "chat", "--device", "cpu", "--dtype", "float32", *options)
        environment = {**os.environ, "TERM": "dumb", "INPUTRC": str(inputrc), "XDG_STATE_HOME": str(inputrc.parent)}
        self._process = subprocess.Popen(
            command,
            stdin=keyboard,
            stdout=keyboard,
            stderr=keyboard,
            env=environment,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(keyboard)
        self._unread = ""

    def read_until(self, pattern: str) -> re.Match[str]:
        """Wait until `pattern` was shown, and return the match; what was shown up to its end has been read."""
        deadline = time.monotonic() + TIMEOUT_S
        while not (match := re.search(pattern, self._unread, re.DOTALL)):
            ready, _, _ = select.select([self._screen], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"{pattern!r} was not shown but {self._unread!r}"
            shown = os.read(self._screen, 65536).decode(errors="replace")
            self._unread = MODES.sub("", self._unread + shown.replace("\r", ""))
        self._unread = self._unread[match.end() :]
        return match

    def press(self, keys: str) -> None:
        os.write(self._screen, keys.encode())

    def interrupt(self) -> None:
        """Press Ctrl-C once the prompt waits for keys: Python's readline overlooks it in the moment before."""
        deadline = time.monotonic() + TIMEOUT_S
        status = Path(f"/proc/{self._process.pid}/stat")
        while status.read_text().rpartition(")")[2].split()[0] != "S":
            assert time.monotonic() < deadline, "the prompt never waits"
            os.sched_yield()
        self.press("\x03")

    def enter(self, line: str, pattern: str) -> re.Match[str]:
        """Enter a line, and wait for `pattern` and the next prompt after it."""
        self.press(line + "\n")
        match = self.read_until(pattern)
        self.read_until(PROMPT)
        return match

    def hang_up(self) -> None:
        """Send what a terminal's program gets when its window is closed."""
        self._process.send_signal(signal.SIGHUP)

    def exit_code(self) -> int:
        return self._process.wait(TIMEOUT_S)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._screen)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Any]:
    """`terminal("--stats")` starts a chat and waits for its first prompt."""
    started = []

    def start(*options: str) -> Terminal:
        started.append(Terminal(tmp_path / "no.inputrc", *options))
        started[-1].read_until(r"demo on cpu:0 float32 · /help.*" + PROMPT)
        return started[-1]

    yield start
    for one in started:
        one.close()


def test_a_conversation_from_the_first_prompt_to_exit(terminal: Any, tmp_path: Path) -> None:
    chat, saved = terminal("--stats", "--max-tokens", "30", "--seed", "3"), tmp_path / "chat.json"
    first = chat.enter("Tell me a story about a fox.", STATS)
    assert int(first[2]) == 0
    second = chat.enter("Another one.", STATS)
    num_known = int(first[1]) + int(first[3]) - 1
    assert int(second[2]) == num_known // 16 * 16, "all but the last token of the first turn"

    chat.enter("/set max_tokens 1900", r"\[max_tokens: 1900\]")
    chat.enter("/set ignore_eos true", r"\[ignore_eos: True\]")
    chat.press("On and on.\n")
    chat.read_until(r"On and on\.\n.{20}")
    chat.press("\x03")
    chat.read_until(r"\[stopped; /regen" + "[^\n]*" + PROMPT)
    chat.enter(f"/save {saved}", "saved 6 messages")
    messages = json.loads(saved.read_text(encoding="utf-8"))["messages"]
    assert [message.get("interrupted", False) for message in messages] == [False] * 5 + [True]
    assert messages[-1]["content"]

    chat.enter("/undo", r"took back: On and on\.")
    chat.enter("/clear", "cleared")
    chat.enter(f"/load {saved}", "loaded 6 messages")
    chat.enter("/undo", "took back")
    chat.enter("/set max_tokens 5", r"\[max_tokens: 5\]")
    assert int(chat.enter("/regen", STATS)[1]) == int(second[1])
    chat.enter('"""\nOne\n\ntwo"""', STATS)
    chat.enter("/sav", "did you mean /save")
    chat.press("/exit\n")
    assert chat.exit_code() == 0


def test_the_last_message_is_there_to_be_edited(terminal: Any, tmp_path: Path) -> None:
    chat, saved = terminal("--max-tokens", "3", "--ignore-eos", "--stats"), tmp_path / "chat.json"
    chat.enter("The old fix", STATS)
    chat.press("/edit\n")
    chat.read_until("> The old fix")
    chat.press("\x7f\x7fox\n")
    chat.read_until(STATS)
    chat.enter(f"/save {saved}", "saved 2 messages")
    assert json.loads(saved.read_text(encoding="utf-8"))["messages"][0]["content"] == "The old fox"


def test_ctrl_c_clears_the_line_and_pressed_twice_exits(terminal: Any) -> None:
    chat = terminal()
    chat.press("half a mess")
    chat.read_until("half a mess")
    chat.interrupt()
    chat.read_until(PROMPT)
    chat.interrupt()
    chat.read_until(r"\[Ctrl-C again.*" + PROMPT)
    chat.interrupt()
    assert chat.exit_code() == 0


def test_the_input_history_is_kept_between_chats(terminal: Any, tmp_path: Path) -> None:
    kept = tmp_path / "aethermind" / "chat_history"
    for options, keys in (((), "/clear\n"), (("--no-history",), "/stats\n"), ((), "/undo\n")):
        chat = terminal(*options)
        chat.press(keys)
        chat.read_until(PROMPT)
        chat.press("\x04")
        assert chat.exit_code() == 0
    assert kept.read_text().splitlines() == ["/clear", "/undo"]
    assert kept.stat().st_mode & 0o77 == 0
    chat = terminal()
    chat.press("\x10")
    chat.read_until("/undo")


def test_pasted_lines_are_one_message(terminal: Any, tmp_path: Path) -> None:
    chat, saved = terminal("--max-tokens", "3", "--ignore-eos"), tmp_path / "chat.json"
    pasted = "def f():\\n    return 1\\n\\n/help is no command here".replace("\\n", "\n")
    chat.press("\x1b[200~" + pasted.replace("\n", "\r") + "\x1b[201~")
    chat.enter("", r"command here\n")
    chat.enter(f"/save {saved}", "saved 2 messages")
    messages = json.loads(saved.read_text(encoding="utf-8"))["messages"]
    assert [(one["role"], one["content"]) for one in messages[:1]] == [("user", pasted)]
    chat.press("exit\n")
    assert chat.exit_code() == 0


def test_the_input_history_survives_a_closed_terminal(terminal: Any, tmp_path: Path) -> None:
    chat = terminal("--max-tokens", "1900", "--ignore-eos")
    chat.press("Tell me all.\n")
    chat.read_until(r"Tell me all\.\n.{20}")
    chat.hang_up()
    assert chat.exit_code() == 129
    assert (tmp_path / "aethermind" / "chat_history").read_text(encoding="utf-8") == "Tell me all.\n"


def test_ctrl_d_exits(terminal: Any) -> None:
    chat = terminal()
    chat.press("\x04")
    assert chat.exit_code() == 0


def test_a_full_context_is_reported_and_the_conversation_kept(terminal: Any) -> None:
    chat = terminal("--max-model-len", "64", "--ignore-eos")
    chat.enter("Tell me a story.", r"context of 64 tokens is full; /undo or /clear")
    chat.enter("Another one.", r"no longer fits the context of 64 tokens.*Nothing is lost")
    chat.enter("/undo", r"took back: Another one\.")
    chat.enter("/regen", r"context of 64 tokens is full")
    chat.enter("/stats", r"turns +1\n")


def test_messages_are_read_from_a_pipe() -> None:
    command = (
        sys.executable,
        "-m",
        "aethermind",
        "chat",
        "--device",
        "cpu",
        "--max-tokens",
        "4",
        "--ignore-eos",
        "--stats",
    )
    result = subprocess.run(
        command,
        input="Tell me about a fox and a hen in the snow.\nAgain\n",
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()
    first, second = re.findall(STATS, result.stderr)
    assert (int(first[1]), int(second[1]) >= 16) == (0, True)
