"""Conversations as JSON files."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from aethermind import env
from aethermind.cli.chat.conversation import Conversation
from aethermind.errors import InvalidArgumentError

__all__ = ["load", "save"]


def save(conversation: Conversation, file: str) -> Path:
    """Write a conversation; only another conversation is overwritten. Raises InvalidArgumentError."""
    path = _path(file)
    if os.path.lexists(path):
        try:
            load(file, conversation)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{path} exists and is something else; choose another name.") from error
    text = json.dumps(conversation.as_record(), indent=2, ensure_ascii=False) + "\n"
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except (OSError, ValueError) as error:
        with suppress(OSError, ValueError):
            draft.unlink()
        raise InvalidArgumentError(f"{path} cannot be written: {getattr(error, 'strerror', None) or error}.") from error
    return path


def load(file: str, unsaid: Conversation) -> Conversation:
    """Read a conversation; what the file has no word about is as in `unsaid`.

    Raises InvalidArgumentError that names the file and what is wrong with it.
    """
    path = _path(file)
    try:
        if path.exists() and not path.is_file():
            raise InvalidArgumentError(f"{path} is not a regular file, so it holds no conversation.")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidArgumentError(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise InvalidArgumentError(f"{path} is not a saved conversation: it is not UTF-8 text ({error}).") from error
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"{path} is not a saved conversation: it is not JSON ({error}).") from error
    try:
        return Conversation.from_record(record, unsaid)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{path} cannot be loaded. {error}") from error


def _path(file: str) -> Path:
    path = env.expand_home(file)
    if not path.name:
        raise InvalidArgumentError(f"{path} is a directory; add the name of a file.")
    return path
