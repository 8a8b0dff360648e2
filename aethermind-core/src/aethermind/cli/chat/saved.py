"""Conversations as JSON files."""

from __future__ import annotations

import json
import os
from pathlib import Path

from aethermind.cli.chat.conversation import Conversation
from aethermind.errors import InvalidArgumentError

__all__ = ["load", "save"]


def save(conversation: Conversation, file: str) -> Path:
    """Write a conversation; only another conversation is overwritten. Raises InvalidArgumentError."""
    path = Path(file).expanduser()
    if path.exists():
        try:
            load(file)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{path} exists and is something else; choose another name.") from error
    text = json.dumps(conversation.as_record(), indent=2, ensure_ascii=False) + "\n"
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except (OSError, ValueError) as error:
        draft.unlink(missing_ok=True)
        raise InvalidArgumentError(f"{path} cannot be written: {getattr(error, 'strerror', None) or error}.") from error
    return path


def load(file: str) -> Conversation:
    """Read a conversation. Raises InvalidArgumentError that names the file and what is wrong with it."""
    path = Path(file).expanduser()
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgumentError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"{path} is not a saved conversation: it is not JSON ({error}).") from error
    try:
        return Conversation.from_record(record)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{path} cannot be loaded. {error}") from error
